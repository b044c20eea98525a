"""The proof that CI gives for every exercise and every misconception; CHAPTER=encoder SEEDS=3 pytest … proves more of one chapter."""

import ast
import importlib
import os
import re
from functools import cache, partial
from pathlib import Path

import nbformat
import pytest
import torch

import mha_course.exercises
from mha_course.exercises import CATALOGUE, MODULES, load
from mha_course.exercises.exercise import Exercise, Misconception
from mha_course.exercises.notebooks import exercise_notebooks, solution_cells
from mha_course.exercises.stubs import is_solution, stub
from mha_course.grader.diagnosis import experiments
from mha_course.grader.judging import judge
from mha_course.grader.reports import as_text
from mha_course.grader.verdicts import Verdict
from mha_course.grader.worker import run_case

SEEDS = int(os.environ.get("SEEDS", "1"))  # of the inputs, for each misconception
CHAPTERS = [chapter for chapter in CATALOGUE if chapter == os.environ.get("CHAPTER", chapter)]
EXERCISES = {name: load(name) for chapter in CHAPTERS for name in CATALOGUE[chapter]}
# Right answers in other styles, and wrong ones that are right almost everywhere.
STYLES = {}
SUBTLE = {}
for chapter in CHAPTERS:
    STYLES |= importlib.import_module(f"mha_course.exercises.{chapter}.styles").STYLES
    subtle = importlib.import_module(f"exercises.subtle_{chapter}")
    SUBTLE |= subtle.SUBTLE
    STYLES |= getattr(subtle, "STYLES", {})
BOOK = Path(__file__).parents[2] / "book"

every_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
every_misconception = pytest.mark.parametrize(
    ("exercise", "known"),
    [
        pytest.param(exercise, known, id=f"{exercise.name}-{known.name}")
        for exercise in EXERCISES.values()
        for known in exercise.misconceptions
    ],
)


def verdict_on(exercise: Exercise, answer, seed: int = 0) -> Verdict:
    return judge(exercise, partial(run_case, answer, is_learners=lambda filename: False), seed)


def written(exercise: Exercise, source: str):
    """Run a learner's notebook up to an exercise's cell, `source` in its place, and return what that defines.

    Of other cells only solutions are run, and imports.
    """
    namespace: dict = {}
    path = next(path for path in exercise_notebooks() if path.stem == f"{exercise.chapter}_exercises")
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        if cell.source == solution_cells()[exercise.name]:
            exec(source, namespace)
            return namespace[exercise.name]
        if is_solution(cell.source):
            exec(cell.source, namespace)
        else:
            imports = [node for node in ast.parse(cell.source).body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), "imports", "exec"), namespace)
    raise LookupError(exercise.name)


@every_exercise
def test_the_solution_that_the_book_shows_gets_full_marks(exercise):
    verdict = verdict_on(exercise, written(exercise, solution_cells()[exercise.name]))
    assert (verdict.verdict, verdict.points) == ("passed", exercise.points), verdict.message


@every_exercise
def test_what_is_handed_out_counts_as_not_attempted_or_has_the_slip_that_is_to_be_repaired(exercise):
    verdict = verdict_on(exercise, written(exercise, stub(solution_cells()[exercise.name])))
    if exercise.task == "repair":
        assert verdict.verdict in ("failed", "partly"), verdict.message
        assert verdict.misconception == exercise.misconceptions[0].name
        assert exercise.misconceptions[0].explanation not in verdict.message
    else:
        assert (verdict.verdict, verdict.points) == ("not_attempted", 0), verdict.message


@every_exercise
def test_the_reference_gets_full_marks_on_other_inputs(exercise):
    for seed in range(1, 6):
        assert verdict_on(exercise, exercise.reference, seed).verdict == "passed"


@pytest.mark.parametrize(
    ("name", "style"), [pytest.param(name, style, id=style.__name__) for name in STYLES for style in STYLES[name]]
)
def test_a_right_answer_in_another_style_gets_full_marks(name, style):
    for seed in range(3):
        verdict = verdict_on(EXERCISES[name], style, seed)
        assert verdict.verdict == "passed", verdict.message


@every_exercise
def test_at_least_two_other_styles_are_tried(exercise):
    assert len(STYLES[exercise.name]) >= 2


@every_exercise
@pytest.mark.parametrize(
    "lazy",
    [
        lambda *inputs: None,
        lambda *inputs: ...,
        lambda *inputs: inputs[0],
        lambda *inputs: torch.zeros(2, 3),
        lambda *inputs: torch.zeros_like(inputs[0]),
        lambda *inputs: (torch.zeros_like(inputs[0]), torch.zeros_like(inputs[0])),
        lambda: None,
        type("Empty", (), {}),
        type("EmptyModule", (torch.nn.Module,), {}),
    ],
)
def test_an_answer_without_work_gets_nothing(exercise, lazy):
    verdict = verdict_on(exercise, lazy)
    assert (verdict.verdict, verdict.points) == ("failed", 0), verdict.message


@every_misconception
def test_a_misconception_is_rejected_and_recognised_as_itself(exercise: Exercise, known: Misconception):
    for seed in range(SEEDS):
        for wrong in known.wrong:
            verdict = verdict_on(exercise, wrong, seed)
            assert verdict.verdict in ("failed", "partly"), verdict.message
            assert verdict.points < exercise.points
            assert verdict.misconception == known.name, (wrong.__name__, seed)
            to_find = exercise.task == "repair" and known is exercise.misconceptions[0]
            assert (known.explanation in verdict.message) is not to_find


@every_misconception
def test_a_misconception_leads_to_a_section_and_to_where_it_was_made(exercise: Exercise, known: Misconception):
    assert known.wrong
    assert known.section in anchors(known.section.partition("#")[0]), f"{known.section} is not in the book"
    assert all(re.fullmatch(r"https://\S+", source) for source in known.sources)


@every_exercise
def test_feedback_gives_neither_the_reference_nor_its_result_away(exercise):
    def like(right):
        if isinstance(right, torch.Tensor):
            return torch.zeros_like(right)
        return type(right)(map(like, right)) if isinstance(right, list | tuple) else right

    outputs = next((expected.outputs for _, expected in experiments(exercise, 0) if expected.outputs), (None,))
    verdict = verdict_on(exercise, lambda *inputs: like(outputs[0]))
    assert "tensor(" not in verdict.message
    assert "mha_course" not in verdict.message
    assert "Traceback" not in verdict.message


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        pytest.param(name, answer, id=f"{name}-{number}-{answer.__name__}")
        for name, answers in SUBTLE.items()
        for number, answer in enumerate(answers)
    ],
)
def test_an_answer_that_is_right_almost_everywhere_is_refused(name, answer):
    verdict = verdict_on(EXERCISES[name], answer)
    assert verdict.verdict in ("failed", "partly"), verdict.message
    assert verdict.points < verdict.max_points


def test_a_width_is_refused_by_a_word_about_it_and_not_by_accident():
    split = load("split_heads")

    def unchecked(x, num_heads):
        return x.reshape(x.size(0), x.size(1), num_heads, x.size(2) // num_heads).transpose(1, 2)

    def mistyped(x, num_heads):
        if x.size(2) % num_heads:
            raise Valueerror
        return unchecked(x, num_heads)

    verdict = verdict_on(split, unchecked)
    assert verdict.verdict == "passed"
    assert "a ValueError that names both numbers" in verdict.message.replace("A Value", "a Value")
    verdict = verdict_on(split, mistyped)
    assert (verdict.verdict, verdict.points) == ("partly", 2)
    assert "should raise a ValueError that says so, but raised NameError" in verdict.message


def test_parts_that_wait_for_the_core_are_said_to_wait():
    verdict = verdict_on(load("split_heads"), lambda x, num_heads: None)
    assert [part.waits for part in verdict.parts] == [False, True, True]
    assert "?/1, later  width" in as_text(verdict)


@every_exercise
def test_an_exercise_is_described_in_full(exercise):
    assert exercise.name in CATALOGUE[exercise.chapter]
    assert exercise.chapter in MODULES
    assert len(exercise.misconceptions) >= 4
    assert len({known.name for known in exercise.misconceptions}) == len(exercise.misconceptions)
    for part in exercise.parts:
        assert part.section in anchors(part.section.partition("#")[0])
    assert {case.part for case, _ in experiments(exercise, 0)} == {part.name for part in exercise.parts}
    assert len(set(exercise.hints)) == 3


def test_every_file_of_an_exercise_is_in_the_catalogue():
    folder = Path(mha_course.exercises.__file__).parent
    found = {
        path.stem for path in folder.glob("*/*.py") if re.search("^EXERCISE = ", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == {name for names in CATALOGUE.values() for name in names}


def test_a_name_that_no_exercise_has_is_a_key_error():
    with pytest.raises(KeyError, match="slit_heads"):
        load("slit_heads")


@cache
def anchors(page: str) -> set[str]:
    """Return page#anchor for every heading of a page of the book, as the built page has them."""
    source = (BOOK / f"{page}.ipynb").read_text(encoding="utf-8")
    headings = re.findall(r'"#{1,4} ([^"\\]+)', source)
    return {f"{page}#{re.sub(r'[^a-z0-9]+', '-', heading.lower()).strip('-')}" for heading in headings}

"""The command, as its users type it."""

import csv
import json
import os
import re
import shutil

import nbformat
import pytest

from mha_course.cli import main
from mha_course.exercises import CATALOGUE, NAMES, load_all
from mha_course.exercises.notebooks import exercise_notebooks, solution_cells
from mha_course.exercises.stubs import BEGIN

ALL = list(NAMES)
IMPORTS = "import math\nimport torch\nfrom torch import nn\nfrom mha_course.notebook import check, hint"


def notebook(path, *sources):
    """Write a notebook of code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)), "utf-8")
    return path


@pytest.fixture(scope="module")
def points():
    """All the points that there are."""
    return sum(exercise.points for exercise in load_all().values())


@pytest.fixture
def solved(tmp_path):
    """A learner's folder in which everything is right."""
    folder = tmp_path / "solved"
    folder.mkdir()
    for path in exercise_notebooks():
        shutil.copy(path, folder)
    return folder


def test_list_shows_every_exercise_with_chapter_points_and_kind(capsys):
    assert main(["list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == ALL
    assert rows["MultiHeadAttention"] == {
        "name": "MultiHeadAttention",
        "chapter": "multi_head",
        "points": 10,
        "kind": "class",
        "task": "write",
        "minutes": 40,
    }


def test_hint_shows_as_many_as_are_asked_for(capsys):
    assert main(["hint", "split_heads"]) == 0
    first = capsys.readouterr().out
    assert first.count("Hint") == 1
    assert "mha-course hint split_heads 2" in first
    assert main(["hint", "split_heads", "3"]) == 0
    assert capsys.readouterr().out.count("Hint") == 3


def test_start_writes_the_notebooks_without_solutions_and_overwrites_nothing(tmp_path, capsys):
    work = tmp_path / "new" / "work"
    assert main(["start", str(work)]) == 0
    assert capsys.readouterr().out.count("wrote") == len(CATALOGUE)
    for path in work.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not any(BEGIN in cell.source for cell in cells)
        assert any("raise NotImplementedError" in cell.source for cell in cells)
        assert not any("](multi_head.ipynb)" in cell.source or "](notation.md)" in cell.source for cell in cells)
        assert all(cell.outputs == [] and cell.execution_count is None for cell in cells if cell.cell_type == "code")
    mine = work / "multi_head_exercises.ipynb"
    mine.write_text("my work", "utf-8")
    assert main(["start", str(work)]) == 0
    told = capsys.readouterr().out
    assert (told.count("wrote"), told.count("kept")) == (0, len(CATALOGUE))
    assert mine.read_text("utf-8") == "my work"


def test_start_where_nothing_can_be_written_says_so(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["start", str(tmp_path / "file")]) == 2
    assert "can't write to" in capsys.readouterr().err


def test_check_of_fresh_notebooks_gives_no_points_and_ends_with_1(tmp_path, capsys, points):
    main(["start", str(tmp_path / "work")])
    capsys.readouterr()
    assert main(["check", str(tmp_path / "work")]) == 1
    told = capsys.readouterr().out
    repairs = sum(exercise.task == "repair" for exercise in load_all().values())
    assert told.count("not attempted") == len(ALL) - repairs
    assert told.count("not right yet") + told.count("partly right") == repairs
    assert f"0 of {len(ALL)} exercises passed" in told


def test_check_of_right_answers_ends_with_0_and_names_protections_and_seed(solved, capsys, points):
    assert main(["check", str(solved), "--seed", "5"]) == 0
    told = capsys.readouterr().out
    assert f"{len(ALL)} of {len(ALL)} exercises passed, {points:g} of {points:g} points." in told
    assert "seed 5" in told
    assert "own process group" in told


def test_check_of_one_file_leaves_out_what_it_does_not_hold(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(f"{IMPORTS}\n{solution_cells()['split_heads']}", "utf-8")
    assert main(["check", str(path)]) == 0
    assert "1 of 1 exercises passed" in capsys.readouterr().out


def test_grade_writes_a_result_for_each_submission_and_the_table(tmp_path, solved, capsys, points):
    folder, out = tmp_path / "class", tmp_path / "results"
    folder.mkdir()
    solved.rename(folder / "ann")
    (folder / "bob.py").write_text(
        "def split_heads(x, num_heads):\n    return x.reshape(x.size(0), num_heads, x.size(1), -1)\n", "utf-8"
    )
    assert main(["grade", str(folder), "--out", str(out), "--seed", "3"]) == 0
    ann, bob = (json.loads((out / f"{name}.json").read_text("utf-8")) for name in ("ann", "bob"))
    assert {name: found["verdict"] for name, found in ann["exercises"].items()} == dict.fromkeys(ALL, "passed")
    assert (ann["submission"], ann["seed"]) == ("ann", 3)
    assert "own process group" in ann["protections"]
    found = bob["exercises"]["split_heads"]
    assert (found["verdict"], found["points"], found["max_points"]) == ("failed", 0, 3)
    assert found["misconception"] == "split_no_transpose"
    assert "On batch 1, length 2" in found["message"]
    assert bob["exercises"]["merge_heads"]["verdict"] == "not_attempted"
    rows = list(csv.DictReader((out / "grades.csv").read_text("utf-8").splitlines()))
    assert [(row["submission"], row["total"]) for row in rows] == [("ann", f"{points:g}"), ("bob", "0")]
    capsys.readouterr()
    assert main(["grade", str(folder), "--out", str(out), "--seed", "3"]) == 0
    assert "2 submissions" in (told := capsys.readouterr().out)
    assert "0 of them graded now" in told


@pytest.fixture
def begun(tmp_path, monkeypatch, capsys):
    """The folder that a learner is in, with notebooks as they are handed out."""
    assert main(["start", str(tmp_path / "work")]) == 0
    monkeypatch.chdir(tmp_path / "work")
    capsys.readouterr()
    return tmp_path / "work"


def answer(path, name, source):
    """Write an answer into the cell of a learner's notebook in which it is wanted."""
    found = nbformat.read(path, as_version=4)
    cell = next(c for c in found.cells if c.cell_type == "code" and re.search(rf"(def|class) {name}\b", c.source))
    cell.source = source
    nbformat.write(found, path)


def test_status_shows_what_was_checked_and_what_is_next(begun, capsys):
    answer(begun / "multi_head_exercises.ipynb", "merge_heads", solution_cells()["merge_heads"])
    assert main(["status"]) == 0
    assert f"0 of {len(ALL)} exercises passed" in capsys.readouterr().out
    assert main(["check", "multi_head_exercises.ipynb"]) == 1
    capsys.readouterr()
    assert main(["status", str(begun)]) == 0
    told = capsys.readouterr().out
    assert f"1 of {len(ALL)} exercises passed, 3 of " in told
    assert "✓ merge_heads 3/3" in told
    assert f"Next: {ALL[0]} (" in told


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), lambda path: path.unlink()])
def test_status_mends_a_damaged_or_missing_file_from_the_notebooks(begun, capsys, damage):
    for path in begun.glob("*_exercises.ipynb"):
        if path.stem != "multi_head_exercises":
            path.unlink()
    answer(begun / "multi_head_exercises.ipynb", "split_heads", solution_cells()["split_heads"])
    damage(begun / "progress.json")
    assert main(["status"]) == 0
    told, error = capsys.readouterr()
    assert "your notebooks are checked to make it anew" in error
    assert "✓ split_heads 3/3" in told
    assert main(["status"]) == 0
    assert capsys.readouterr().err == ""


def test_status_where_nothing_was_begun_says_how_to_begin(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert "`mha-course start`" in capsys.readouterr().err


def test_a_solution_is_shown_after_three_hints_or_a_pass_and_not_before(begun, capsys):
    assert main(["solution", "split_heads"]) == 2
    assert "0 of its 3 hints are read" in capsys.readouterr().err
    main(["hint", "split_heads", "3"])
    capsys.readouterr()
    assert main(["solution", "split_heads"]) == 0
    told = capsys.readouterr().out
    assert "# The course's own\ndef split_heads(x, num_heads):" in told
    assert "SOLUTION" not in told
    assert "# Another way, 2\n" in told
    assert main(["solution", "merge_heads"]) == 2
    answer(begun / "multi_head_exercises.ipynb", "merge_heads", solution_cells()["merge_heads"])
    main(["check", "multi_head_exercises.ipynb"])
    capsys.readouterr()
    assert main(["solution", "merge_heads"]) == 0
    assert "# Another way, 1\n" in capsys.readouterr().out


def test_watch_checks_what_was_changed_when_a_file_is_saved(begun, capsys, monkeypatch):
    notebook_ = begun / "multi_head_exercises.ipynb"
    saves = [
        lambda: answer(notebook_, "split_heads", solution_cells()["split_heads"]),
        lambda: os.utime(notebook_, (1, 1)),
        lambda: (begun / "broken.py").write_text("def merge_heads(x:\n"),
        lambda: answer(notebook_, "merge_heads", "def merge_heads(x):\n    return x"),
    ]

    def save_instead_of_waiting(seconds):
        if not saves:
            raise KeyboardInterrupt
        saves.pop(0)()

    monkeypatch.setattr("mha_course.grader.practice.sleep", save_instead_of_waiting)
    assert main(["watch"]) == 130
    told = capsys.readouterr().out
    assert told.startswith("Watching .: save a notebook")
    first, second = "✓ split_heads: passed", "✗ merge_heads: not right yet"
    assert told.count("✓ split_heads: ") == 1
    assert told.index(first) < told.index("was saved; no answer in it has changed") < told.index(second)
    assert "broken.py" in told
    main(["status"])
    assert "✓ split_heads 3/3   ✗ merge_heads 0/3" in capsys.readouterr().out


def test_check_of_an_empty_folder_says_so_once(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert "can't be checked: there is no code in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hint", "split_head"], "did you mean split_heads?"),
        (["hint", "nothing_like_it_at_all"], "`mha-course list` shows all"),
        (["check", "no/such/folder"], "there is no file or folder no/such/folder"),
        (["grade", "no/such/folder", "--out", "out"], "no/such/folder"),
        (["grade", ".", "--out", "out", "--only", "split_head"], "did you mean split_heads?"),
    ],
)
def test_wrong_usage_gets_one_clear_line_and_code_2(arguments, told, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["grade", "x"], ["check", "x", "--seconds", "0"]])
def test_a_command_that_cannot_be_read_ends_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: mha-course" in capsys.readouterr().err

"""The command, as its users type it."""

import csv
import json

import nbformat
import pytest

from mha_course.cli import main
from mha_course.exercises.notebooks import solution_cells
from mha_course.exercises.stubs import BEGIN

ALL = ["scaled_dot_product_attention", "split_heads", "merge_heads", "MultiHeadAttention"]
IMPORTS = "import math\nimport torch\nfrom torch import nn\nfrom mha_course.notebook import check, hint"


def notebook(path, *sources):
    """Write a notebook of code cells."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)), "utf-8")
    return path


@pytest.fixture
def solutions(tmp_path):
    """A learner's notebook in which everything is right, with a check behind each answer."""
    cells = [IMPORTS]
    for name, source in solution_cells().items():
        cells += [source, f"check({name})"]
    return notebook(tmp_path / "right.ipynb", *cells)


def test_list_shows_every_exercise_with_chapter_points_and_kind(capsys):
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ALL
    assert [(row["chapter"], row["points"], row["kind"]) for row in rows[2:]] == [
        ("multi_head", 3, "function"),
        ("multi_head", 10, "class"),
    ]


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
    assert capsys.readouterr().out.count("wrote") == 2
    for path in work.iterdir():
        cells = nbformat.read(path, as_version=4).cells
        assert not any(BEGIN in cell.source for cell in cells)
        assert any("raise NotImplementedError" in cell.source for cell in cells)
        assert not any("](multi_head.ipynb)" in cell.source or "](notation.md)" in cell.source for cell in cells)
        assert all(cell.outputs == [] and cell.execution_count is None for cell in cells if cell.cell_type == "code")
    mine = work / "multi_head_exercises.ipynb"
    mine.write_text("my work", "utf-8")
    assert main(["start", str(work)]) == 0
    told = capsys.readouterr().out
    assert (told.count("wrote"), told.count("kept")) == (0, 2)
    assert mine.read_text("utf-8") == "my work"


def test_start_where_nothing_can_be_written_says_so(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["start", str(tmp_path / "file")]) == 2
    assert "can't write to" in capsys.readouterr().err


def test_check_of_fresh_notebooks_says_not_attempted_and_ends_with_1(tmp_path, capsys):
    main(["start", str(tmp_path / "work")])
    capsys.readouterr()
    assert main(["check", str(tmp_path / "work")]) == 1
    told = capsys.readouterr().out
    assert told.count("not attempted") == len(ALL)
    assert "0 of 4 exercises passed, 0 of 24 points." in told


def test_check_of_right_answers_ends_with_0_and_names_protections_and_seed(solutions, capsys):
    assert main(["check", str(solutions), "--seed", "5"]) == 0
    told = capsys.readouterr().out
    assert "4 of 4 exercises passed, 24 of 24 points." in told
    assert "seed 5" in told
    assert "own process group" in told


def test_check_of_one_file_leaves_out_what_it_does_not_hold(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(f"{IMPORTS}\n{solution_cells()['split_heads']}", "utf-8")
    assert main(["check", str(path)]) == 0
    assert "1 of 1 exercises passed" in capsys.readouterr().out


def test_grade_writes_a_result_for_each_submission_and_the_table(tmp_path, solutions, capsys):
    folder, out = tmp_path / "class", tmp_path / "results"
    folder.mkdir()
    solutions.rename(folder / "ann.ipynb")
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
    assert [(row["submission"], row["total"]) for row in rows] == [("ann", "24"), ("bob", "0")]
    capsys.readouterr()
    assert main(["grade", str(folder), "--out", str(out), "--seed", "3"]) == 0
    assert "2 submissions" in (told := capsys.readouterr().out)
    assert "0 of them graded now" in told


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

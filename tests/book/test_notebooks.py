"""The stored notebooks: each was run, without an error, and shows what it shows to everybody."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "book").glob("*.ipynb"))
FIGURES = ("image/png", "image/jpeg", "image/svg+xml")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def cells(request):
    """All cells of one notebook."""
    return nbformat.read(request.param, as_version=4).cells


def code(cells):
    return [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]


def names(cell):
    """The first line of a cell, to find it by."""
    return cell.source.strip().splitlines()[0]


def test_there_are_notebooks():
    assert NOTEBOOKS


def test_every_code_cell_was_run_in_order(cells):
    assert [cell.execution_count for cell in code(cells)] == list(range(1, len(code(cells)) + 1))


def test_no_cell_ended_in_an_error_or_a_warning(cells):
    outputs = [(names(cell), output) for cell in code(cells) for output in cell.outputs]
    assert [name for name, output in outputs if output.output_type == "error"] == []
    assert [name for name, output in outputs if output.get("name") == "stderr"] == []


def test_every_figure_is_described_in_words(cells):
    for cell in code(cells):
        if any(kind in output.get("data", {}) for output in cell.outputs for kind in FIGURES):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            assert len(alt.split()) > 3, f"the cell {names(cell)!r} needs mystnb.image.alt in its metadata"


def test_every_picture_in_the_text_is_described_in_words(cells):
    for cell in cells:
        if cell.cell_type == "markdown":
            assert "![](" not in cell.source
            assert all("alt=" in tag for tag in re.findall(r"<img [^>]*>", cell.source))


def test_a_cell_has_an_id_of_its_own(cells):
    ids = [cell.id for cell in cells]
    assert len(ids) == len(set(ids))


def test_nothing_is_stored_that_differs_from_run_to_run(cells):
    for cell in cells:
        assert not {"execution", "ExecuteTime"} & set(cell.metadata)
        for output in cell.get("outputs", []):
            assert not re.search(
                r"\b0x[0-9a-f]+\b", str(output.get("text", "")) + str(output.get("data", {}).get("text/plain"))
            )


def test_running_a_notebook_twice_stores_the_same(tmp_path):
    source = "import sys\nprint('one', flush=True); print('two', flush=True)\nobject()"
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["kept"], "mystnb": {"image": {"alt": "kept too"}}})
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title"), cell]), path)
    stored = []
    for _ in range(2):
        subprocess.run([sys.executable, ROOT / "tools" / "notebooks.py", path], check=True, capture_output=True)
        stored.append(path.read_text("utf-8"))
    assert stored[0] == stored[1]
    after = nbformat.read(path, as_version=4).cells[1]
    assert (after.id, after.metadata, after.execution_count) == (cell.id, cell.metadata, 1)
    assert [output.get("text") for output in after.outputs] == ["one\ntwo\n", None]
    assert after.outputs[1].data["text/plain"] == "<object at 0x>"


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if not path.stem.endswith("_exercises")], ids=lambda p: p.stem
)
def test_of_each_questions_choices_one_is_right_and_every_one_is_explained(path):
    """As the answer key was swapped in https://github.com/datacamp-content/courses-introduction-to-shell/issues/111."""
    cells = nbformat.read(path, as_version=4).cells
    questions = [cell.source for cell in cells if cell.cell_type == "markdown" and cell.id.startswith("check-")]
    assert len(questions) >= 5
    for question in questions:
        choices = re.findall(r"<details><summary>(.+?)</summary>\s*<p>(\w+)\W(.*?)</p></details>", question, re.DOTALL)
        assert len(choices) == question.count("<details>") >= 3
        assert [word for _, word, _ in choices].count("Yes") == 1
        assert all(len(explanation) > 15 for _, _, explanation in choices)

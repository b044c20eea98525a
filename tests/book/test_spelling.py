"""The text's spelling: words of the dictionary or of words.txt, spelt the British way."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from markdown_it import MarkdownIt
from spellchecker import SpellChecker

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("words.txt")
NOT_PROSE = re.compile(
    r"""
    ^\ *(?:>>>|\.\.\.)(?:.*\S.*\n?)+   # a doctest with what it prints
    | ^\ +\w+:\                          # an argument's name
    | ^\ *Source:(?:.*\S.*\n?)+          # titles and names, spelt as their owners spell them
    | `+[^`]*`+ | \$\$[^$]*\$\$ | \$[^$]+\$ | <[^<>\n]+> | \w+://\S+
    | \b\w*(?:[_.]\w+)+ | \b\w*[a-z][A-Z]\w*   # names from code
    """,
    re.MULTILINE | re.VERBOSE,
)
WORD = re.compile(r"[^\W\d_]{3,}(?:['\u2019][^\W\d_]+)?")
# "tokenizer" and "optimizer" are names from libraries, which the text takes over.
AMERICAN = re.compile(
    r"(?!re?siz|siz|priz|seiz|tokenizer|optimizer)\w*(?:"
    r"iz(?:e[ds]?|ers?|ing|ations?)|yz(?:e[ds]?|ing)|(?:behavi|col|fav|flav|hon|neighb)or\w*|cent(?:er\w*|ered)"
    r"|defense|gray|(?:label|model|travel|cancel)(?:ed|ing)|learnt)",
)


def prose(markdown: str) -> Iterator[str]:
    """What is to be read in a page: no code, but what stands in a directive."""
    for token in MarkdownIt().parse(markdown):
        if token.type == "fence" and token.info.startswith("{"):
            yield from prose(token.content)
        for part in token.children or ():
            yield part.content if part.type == "text" else " "
        yield "\n"


def comments(source: str) -> Iterator[str]:
    """Docstrings and comments, which are prose."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            yield token.string


def texts() -> Iterator[tuple[str, str]]:
    """Each file's name and its prose."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("book/*.md")]):
        yield path.name, "".join(prose(path.read_text("utf-8")))
    for path in sorted(ROOT.glob("book/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield path.name, "".join(text for cell in cells if cell.cell_type == "markdown" for text in prose(cell.source))
    for folder in ("mha_course", "tests", "tools", "book/_ext"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.name, "\n\n".join(comments(path.read_text("utf-8")))


@pytest.fixture(scope="module")
def words() -> dict[str, set[str]]:
    """Each word in small letters, without an 's, and the files in which it stands."""
    found = defaultdict(set)
    for name, text in texts():
        for word in WORD.findall(NOT_PROSE.sub(" ", text)):
            found[re.sub(r"'s?$", "", word.lower().replace("\u2019", "'"))].add(name)
    return found


@pytest.fixture(scope="module")
def unknown(words) -> set[str]:
    return SpellChecker().unknown(words)


@pytest.fixture(scope="module")
def listed() -> list[str]:
    return LIST.read_text("utf-8").split()


def test_every_word_is_in_the_dictionary_or_on_the_list(words, unknown, listed):
    new = {word: sorted(words[word]) for word in sorted(unknown - set(listed))}
    assert new == {}, f"misspelt, or missing in {LIST.name}"


def test_the_list_is_sorted_and_holds_only_what_is_needed(unknown, listed):
    assert listed == sorted(set(listed))
    assert set(listed) - unknown == set()


def test_words_are_spelt_the_british_way(words):
    ours = {word: sorted(names - {"glossary.md"}) for word, names in words.items()}  # it says what others call things
    assert {word: names for word, names in ours.items() if names and AMERICAN.fullmatch(word)} == {}

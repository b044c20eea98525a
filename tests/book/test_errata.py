"""The tables of chapter 9 that one looks things up in: every entry, and every exercise of its kind, stands in them once."""

import re
from pathlib import Path

import nbformat
import pytest
from mdit_py_plugins.anchors.index import slugify

from mha_course.exercises import load_all

CELLS = {
    cell.id: cell
    for cell in nbformat.read(Path(__file__).parents[2] / "book" / "errata.ipynb", as_version=4).cells
    if cell.cell_type == "markdown"
}
NAMED = {"BERT": "BERT text", "Keras": "Keras text", "both": "Both texts"}
ROW = re.compile(r"^\| \[.+?\]\(#(?P<anchor>[^)]+)\) \| (?P<text>\w+) \| [^|]+ \|$", re.MULTILINE)


def entries():
    """The headings of the third level with the section that each stands in and the words below it."""
    cut = re.split(r"^(#{2,3}) (.+)$", "\n".join(cell.source for cell in CELLS.values()), flags=re.MULTILINE)
    section, found = "", []
    for level, heading, body in zip(cut[1::3], cut[2::3], cut[3::3], strict=True):
        if level == "##":
            section = heading
        else:
            found.append((section, slugify(heading), body))
    return found


def test_every_entry_stands_in_the_table_in_its_order_and_below_its_section():
    section, listed = "", []
    for line in CELLS["all-entries"].source.splitlines():
        if row := ROW.match(line):
            listed.append((section, row["anchor"]))
        elif heading := re.match(r"\| \*\*(.+?)\*\*", line):
            section = heading[1]
    assert listed == [(section, link) for section, link, _ in entries()]


def test_an_entry_begins_with_the_text_that_the_table_gives():
    texts = {row["anchor"]: row["text"] for row in ROW.finditer(CELLS["all-entries"].source)}
    for _, link, body in entries():
        first = re.match(r"\s*\*\*(.+?):?\*\*", body)
        assert first, f"the entry {link} does not begin with the name of a text"
        assert first[1] == NAMED[texts[link]], link


@pytest.mark.parametrize(("task", "lead"), [("repair", "to be repaired"), ("catch", "write the test")])
def test_every_exercise_of_this_kind_is_listed(task, lead):
    after = CELLS["practice"].source.partition(f"**{lead}**")[2]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)[0]
    assert set(re.findall(r"^\| \d \| \[`(\w+)`\]", table, re.MULTILINE)) == {
        name for name, exercise in load_all().items() if exercise.task == task
    }

"""No number in the prose can go stale: what a chapter says was measured stands in an output of the same section.

A summary speaks of the whole chapter. Numbers below 20 without a decimal point are counted by readers, not measured.
"""

import html
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from mha_course import exercises

BOOK = Path(__file__).parents[2] / "book"
CHAPTERS = [path for path in sorted(BOOK.glob("*.ipynb")) if not path.stem.endswith("_exercises")]
# Numbers that no cell of their section can show, such as a fact from elsewhere. A line is page, number and, behind two spaces, why.
FACTS = {line.split("  ")[0] for line in (Path(__file__).parent / "numbers.txt").read_text("utf-8").splitlines()}

NUMBER = re.compile(r"(?<![\w.])(?:\d[\d,]*\d|\d)?(?:\.\d+)?(?:e-?\d+)?(?![\w])")
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|\{[a-z:]+\}|^#[^\n]*$|^\*\*Time\.\*\*[^\n]*$|[Ss]ections? [\d., and]+",
    re.DOTALL | re.MULTILINE,
)
TIME = re.compile(r"(\d+) minutes for the \[[^]]*\]\((\w+)_exercises\.ipynb\)")
SHOWN = ("text/plain", "text/html", "text/markdown", "text/latex")


def sections(path: Path) -> list[list]:
    """Cut a chapter's cells where a heading of the second level begins."""
    cut: list[list] = [[]]
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown" and re.match(r"## ", cell.source):
            cut.append([])
        cut[-1].append(cell)
    return [cells for cells in cut if cells]


def evidence(cells: list) -> list[float]:
    """Return every number that a section's code, outputs and formulas show."""
    shown = []
    for cell in cells:
        if cell.cell_type == "markdown":
            shown += re.findall(r"```.*?```|`[^`]*`|\$[^$]*\$", cell.source, re.DOTALL)
            continue
        shown.append(cell.source.replace("_", ""))
        for output in cell.outputs:
            shown.append(output.get("text", ""))
            shown += [text for kind, text in output.get("data", {}).items() if kind in SHOWN]
    return [abs(value) for text in shown for value, _ in numbers(text)]


def numbers(text: str) -> list[tuple[float, int]]:
    """Return the numbers of a text, each with how many places it has behind the point."""
    found = [match for match in NUMBER.findall(text) if re.search(r"\d", match)]
    return [(float(number.replace(",", "")), len(number.partition("e")[0].partition(".")[2])) for number in found]


def unsupported(path: Path) -> list[str]:
    """Return what the prose of a chapter says without an output that rounds to it."""
    missing = []
    cut = sections(path)
    everything = evidence([cell for cells in cut for cell in cells])
    for cells in cut:
        shown = everything if cells[0].source.startswith("## Summary") else evidence(cells)
        for cell in cells:
            if cell.cell_type != "markdown" or cell.id.startswith("check-"):  # a question sets its own numbers
                continue
            prose = html.unescape(NOT_PROSE.sub(" ", cell.source))
            for value, places in numbers(prose):
                said = f"{value:.{places}f}"
                small_or_year = places == 0 and (value < 20 or 1900 <= value <= 2030)
                near = 0.5 * 10.0**-places + 1e-9
                if not (
                    small_or_year
                    or any(abs(found - value) <= near or abs(100 * found - value) <= near for found in shown)
                ):
                    missing.append(f"{path.stem} {said}")
    return missing


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_number_in_the_prose_stands_in_an_output_of_its_section(path):
    assert [said for said in unsupported(path) if said not in FACTS] == []


def test_the_time_that_a_chapter_gives_for_its_exercises_is_the_sum_of_theirs():
    minutes = Counter()
    for exercise in exercises.load_all().values():
        minutes[exercise.chapter] += exercise.minutes
    said = {}
    for path in CHAPTERS:
        (line,) = re.findall(r"^\*\*Time\.\*\* (.*)$", nbformat.read(path, as_version=4).cells[0].source, re.MULTILINE)
        said |= {notebook: int(number) for number, notebook in TIME.findall(line)}
    assert said == minutes


def test_every_fact_in_the_list_is_needed():
    assert set().union(*map(unsupported, CHAPTERS)) == FACTS


def test_a_stale_number_is_seen(tmp_path):
    cells = [
        nbformat.v4.new_markdown_cell("## One\n\nIt takes 3.14 times as long, or 250%; see section 7.7."),
        nbformat.v4.new_code_cell("x", outputs=[nbformat.v4.new_output("stream", text="3.1416 and 2.5")]),
        nbformat.v4.new_markdown_cell("## Two\n\nHere 3.14 and 1,234 are shown by nothing, nor is .25."),
        nbformat.v4.new_markdown_cell("## Summary\n\nIt took 3.14, not 3.15."),
    ]
    path = tmp_path / "chapter.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    missing = ["chapter 3.14", "chapter 1234", "chapter 0.25", "chapter 3.15"]
    assert unsupported(path) == missing

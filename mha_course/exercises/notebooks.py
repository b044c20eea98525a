"""The exercise notebooks: found where the book keeps them, and handed to the learner without their solutions."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import nbformat

from mha_course.exercises import CATALOGUE
from mha_course.exercises.stubs import is_solution, stub

PACKAGE = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\((\w+)\.(?:ipynb|md)(?:#[\w-]+)?\)")


def exercise_notebooks() -> list[Path]:
    """Return the solution notebooks in the order of the course: in a checkout the book's own, else those in the wheel.

    Raises:
        FileNotFoundError: if there are none in either place.
    """
    for folder in (PACKAGE.parent / "book", PACKAGE / "_notebooks"):
        found = [folder / f"{chapter}_exercises.ipynb" for chapter in CATALOGUE]
        if all(path.exists() for path in found):
            return found
    raise FileNotFoundError("the exercise notebooks are missing from this installation; install mha-course again")


@cache
def solution_cells() -> dict[str, str]:
    """Return the source of each exercise's solution cell, by the name that it defines."""
    cells: dict[str, str] = {}
    for path in exercise_notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and is_solution(cell.source):
                for statement in ast.parse(cell.source).body:
                    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                        cells[statement.name] = cell.source
    return cells


def learners(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as a learner gets it: stubs in place of solutions, and nothing run yet."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if is_solution(cell.source):
                cell.source = stub(cell.source)
        else:
            cell.source = LINK.sub(_without_the_book, cell.source)
    return notebook


def _without_the_book(link: re.Match[str]) -> str:
    """Name a page of the book, which does not lie in the learner's folder; the exercise notebooks do."""
    text, page = link.groups()
    return link[0] if page.endswith("_exercises") else f"{text} (in the book: {page})"


def start(folder: Path) -> list[tuple[Path, bool]]:
    """Write the learner's notebooks into a folder; what is there already stays as it is.

    Args:
        folder: made if it is missing.

    Returns:
        Each notebook's path, and whether it was written now.

    Raises:
        OSError: if the folder can't be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done: list[tuple[Path, bool]] = []
    for source in exercise_notebooks():
        target = folder / source.name
        try:
            with target.open("x", encoding="utf-8") as file:
                nbformat.write(learners(source), file)
            done.append((target, True))
        except FileExistsError:
            done.append((target, False))
    return done

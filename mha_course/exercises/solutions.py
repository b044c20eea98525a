"""What a learner may read once an exercise is solved: the course's own answer, and right ones in other styles."""

from __future__ import annotations

import ast
from pathlib import Path

from mha_course.exercises.exercise import Exercise
from mha_course.exercises.notebooks import solution_cells
from mha_course.exercises.stubs import solution

STYLES = "styles.py"  # beside the exercises of a chapter


def solutions(exercise: Exercise) -> list[tuple[str, str]]:
    """Return right answers, each as its title and its source, the course's own first."""
    others = [(f"Another way, {number}", source) for number, source in enumerate(other_styles(exercise), start=1)]
    return [("The course's own", solution(solution_cells()[exercise.name])), *others]


def other_styles(exercise: Exercise) -> list[str]:
    """Cut the answers in other styles out of the file that keeps them, each with what it uses of that file."""
    source = (Path(__file__).with_name(exercise.chapter) / STYLES).read_text("utf-8")
    tree = ast.parse(source)
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    listed = next(node.value for node in tree.body if isinstance(node, ast.Assign) and _named(node) == "STYLES")
    assert isinstance(listed, ast.Dict)
    found = []
    for key, value in zip(listed.keys, listed.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == exercise.name:
            for name in (node.id for node in ast.walk(value) if isinstance(node, ast.Name)):
                parts = _with_helpers(name, defined)
                found.append("\n\n\n".join(ast.get_source_segment(source, defined[part]) or "" for part in parts))
    return found


def _named(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


def _with_helpers(name: str, defined: dict[str, ast.FunctionDef | ast.ClassDef]) -> list[str]:
    """List a definition and all of the file's own that it uses, helpers first."""
    found: list[str] = []
    seen: set[str] = set()

    def visit(one: str) -> None:
        seen.add(one)
        for node in ast.walk(defined[one]):
            if isinstance(node, ast.Name) and node.id in defined and node.id not in seen:
                visit(node.id)
        found.append(one)

    visit(name)
    return found

"""Choose what has to run of a submission so that one name can be graded, and nothing more."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mha_course.grader.names import Binding, bindings, is_stub, leftovers, uses
from mha_course.grader.source import imported_modules
from mha_course.grader.submission import Cell, Module, Submission

# Names that are there without being set: Python's own, and a notebook's.
_ALWAYS = {*dir(builtins), "__name__", "__file__", "__doc__", "__class__", "display", "get_ipython", "In", "Out", "_"}
FOLDER = "/submission"  # where learner code believes that it lies


@dataclass(frozen=True)
class CourseImport:
    """An import of the course's own package by code that the answer needs."""

    module: str
    name: str  # what is taken from it; empty for `import module`
    where: str


@dataclass(frozen=True)
class Plan:
    """What runs for one name."""

    name: str
    cells: tuple[Cell, ...]
    modules: dict[str, Module]
    notes: tuple[str, ...] = ()
    is_stub: bool = False  # nothing was written yet
    unreadable: str = ""  # why the definition can't be run
    course_imports: tuple[CourseImport, ...] = ()
    futures: tuple[tuple[str, ...], ...] = ()  # for each cell, what cells before it took from `__future__`

    def program(self, course: dict[str, str]) -> dict[str, Any]:
        """Write the plan as the message that a child runs.

        Args:
            course: the modules of the course that the answer may import, dotted name to source.

        Returns:
            A plain value, all text.
        """
        return {
            "name": self.name,
            "cells": [
                {"label": cell.label, "source": cell.source, "futures": list(futures)}
                for cell, futures in zip(self.cells, self.futures, strict=True)
            ],
            "path": f"{FOLDER}/{self.cells[0].file}" if self.cells[0].file.endswith(".py") else "",
            "modules": {
                name: {
                    "label": module.cell.label,
                    "source": module.cell.source,
                    "path": f"{FOLDER}/{module.cell.file}",
                    "is_package": module.is_package,
                }
                for name, module in self.modules.items()
            },
            "course": course,
        }


@dataclass(frozen=True, eq=False)
class _Statement:
    cell: Cell
    node: ast.stmt
    binds: tuple[Binding, ...]


def plan(submission: Submission, name: str) -> Plan | None:
    """Find a name's last definition and the cells that it needs.

    Args:
        submission: what was read.
        name: a function or class.

    Returns:
        The cells, in the order of the submission: the one of the last definition and, transitively, those which bind
        a name that it uses; None if the name is defined nowhere.
    """
    answers, helpers = _all_statements(submission)
    notes: list[str] = []
    outside = set() if submission.is_folder else set(submission.modules)
    theirs = {b.name for s in answers for b in s.binds if b.kind == "import" and b.module in outside}
    defined = _definitions(answers, name, "definition")
    foreign = [s for s, b in defined if _is_alias(b.node, theirs)]
    defined = [pair for pair in defined if pair[0] not in foreign]
    empty = [(s, b) for s, b in defined if is_stub(b.node) and not _changes(answers, s, name)]
    found = [pair for pair in defined if pair not in empty]
    if not found:
        imported = _definitions(answers, name, "import")
        foreign += [s for s, b in imported if b.module in outside]
        found = [pair for pair in imported if pair[0] not in foreign] or empty
    if not found and not foreign and (found := _definitions(helpers, name, "definition")):
        notes.append(f"{name} is taken from {found[-1][0].cell.label}, which another file imports")
    broken = [cell for cell in submission.cells if cell.tree is None and _seems_to_define(cell, name)]
    if foreign and not found and not broken:
        cell = foreign[-1].cell
        text = f"{cell.label} takes {name} from a file beside it, which is no part of what was handed in"
        return Plan(name, (cell,), {}, unreadable=text)
    if not found:
        if not broken:
            return None
        return Plan(name, (broken[-1],), {}, unreadable=f"{broken[-1].label} can't be read: {broken[-1].error}")
    notes += [f"{cell.label} seems to define {name} too, but can't be read" for cell in broken]
    last, binding = found[-1]
    every = sorted(dict.fromkeys((*found, *empty)), key=lambda pair: answers.index(pair[0])) if empty else found
    if len(every) > 1:
        places = ", ".join(f"{s.cell.label}, line {getattr(b.node, 'lineno', 1)}" for s, b in every)
        which = "the last one" if every[-1] == found[-1] else "the last one that is not empty"
        notes.append(f"{name} is defined {len(every)} times ({places}); {which} counts")
    notes += [
        f"{last.cell.label}, line {line}: `raise NotImplementedError` stands above code and keeps it from running"
        for line in leftovers(binding.node)
    ]
    passed_over = [s for s, b in empty if s is not last and b.node is s.node]
    same_file = [s for s in (*answers, *helpers) if s.cell.file == last.cell.file and s not in passed_over]
    reached, used = _reach(same_file, last, name)
    notes += _missing(same_file, reached, last)
    labels = {statement.cell.label for statement in reached}
    cells = tuple(dict.fromkeys(s.cell for s in same_file if s.cell.label in labels))
    modules = _imported(submission, cells)
    imports = [*_course_imports(reached, used), *_course_imports(_statements(m.cell for m in modules.values()), None)]
    return Plan(
        name,
        tuple(_without(cell, passed_over) for cell in cells),
        modules,
        tuple(notes),
        found[-1] in empty or (is_stub(binding.node) and not _changes(same_file, last, name)),
        course_imports=tuple(imports),
        futures=tuple(_futures(same_file, cell) for cell in cells),
    )


@lru_cache(maxsize=4)
def _all_statements(submission: Submission) -> tuple[list[_Statement], list[_Statement]]:
    """List the statements of a submission: those of its answers, and those of the files that these import.

    What only lies beside a single file is no part of the submission.
    """
    helpers = [module.cell for module in submission.modules.values() if submission.is_folder]
    return list(_statements(submission.cells)), list(_statements(helpers))


def _statements(cells: Iterable[Cell]) -> Iterator[_Statement]:
    for cell in cells:
        for node in cell.tree.body if cell.tree else ():
            yield _Statement(cell, node, tuple(bindings(node)))


def _definitions(statements: list[_Statement], name: str, kind: str) -> list[tuple[_Statement, Binding]]:
    """Find where a name is defined, in order; what is imported from the course is its answer, not the learner's."""
    return [
        (statement, binding)
        for statement in statements
        for binding in statement.binds
        if binding.name == name and binding.kind == kind and not _is_course(binding.module)
    ]


def _changes(statements: list[_Statement], definition: _Statement, name: str) -> list[_Statement]:
    """Find what changes a definition after it was made."""
    later = statements[statements.index(definition) + 1 :]
    return [
        s
        for s in later
        if s.cell.file == definition.cell.file and any(b.name == name and b.kind == "change" for b in s.binds)
    ]


def _is_alias(node: ast.AST, names: set[str]) -> bool:
    """Whether a definition is only another name for something that one of these names holds."""
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id in names


def _without(cell: Cell, statements: list[_Statement]) -> Cell:
    """Blank out empty definitions, which would take the place of a finished one that comes before them."""
    lines = cell.source.split("\n")
    for node in (s.node for s in statements if s.cell is cell):
        last = node.end_lineno or node.lineno
        beside = lines[node.lineno - 1][: node.col_offset] + lines[last - 1].encode()[node.end_col_offset :].decode()
        if not beside.partition("#")[0].strip() and not (isinstance(node, ast.Assign) and len(node.targets) > 1):
            lines[node.lineno - 1 : last] = ["pass", *[""] * (last - node.lineno)]
    return replace(cell, source="\n".join(lines))


def _futures(statements: list[_Statement], cell: Cell) -> tuple[str, ...]:
    """List what the cells before one took from `__future__`, which a notebook keeps to its end."""
    found: list[str] = []
    for statement in statements:
        if statement.cell is cell:
            break
        if isinstance(statement.node, ast.ImportFrom) and statement.node.module == "__future__":
            found += [alias.name for alias in statement.node.names]
    return tuple(dict.fromkeys(found))


def _seems_to_define(cell: Cell, name: str) -> bool:
    return re.search(rf"^\s*(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*=", cell.source, re.MULTILINE) is not None


def _reach(statements: list[_Statement], last: _Statement, name: str) -> tuple[list[_Statement], set[str]]:
    """Follow the names that the last definition uses to whatever binds them, and so on."""
    binders: dict[str, list[_Statement]] = {}
    for statement in statements:
        for binding in statement.binds:
            binders.setdefault(binding.name, []).append(statement)
    reached: list[_Statement] = []
    used = {"*"}
    todo = [last, *_changes(statements, last, name), *binders.get("*", ())]
    while todo:
        statement = todo.pop()
        if statement in reached:
            continue
        reached.append(statement)
        for needed in uses(statement.node) - used:
            used.add(needed)
            todo += binders.get(needed, ())
    return reached, used | {name}


def _missing(statements: list[_Statement], reached: list[_Statement], last: _Statement) -> Iterator[str]:
    """Say which names a fresh run from top to bottom would not find, or not in time."""
    binders: dict[str, list[Cell]] = {}
    for statement in statements:
        for binding in statement.binds:
            binders.setdefault(binding.name, []).append(statement.cell)
    order = list(dict.fromkeys(statement.cell for statement in statements))
    if "*" in binders:  # an import that brings names which can't be seen here
        return
    for statement in reached:
        for name in sorted(uses(statement.node)):
            if name not in binders and name not in _ALWAYS:
                yield f"{statement.cell.label} uses `{name}`, which no cell sets: perhaps one that was changed or deleted"
            elif name in binders and statement is last and statement.cell not in binders[name]:
                first = min(binders[name], key=order.index)
                if order.index(first) > order.index(statement.cell):
                    yield f"{statement.cell.label} uses `{name}`, which only {first.label}, below it, sets"


def _imported(submission: Submission, cells: Iterable[Cell]) -> dict[str, Module]:
    """Keep the modules that these cells import, and those that these import in turn."""
    found: dict[str, Module] = {}
    todo = [(cell, "") for cell in cells if submission.modules]
    while todo:
        cell, package = todo.pop()
        for name in imported_modules(cell.tree, package):
            if name in submission.modules and name not in found:
                module = found[name] = submission.modules[name]
                todo.append((module.cell, module.package))
    return found


def _is_course(module: str) -> bool:
    return module.partition(".")[0] == "mha_course"


def _course_imports(statements: Iterable[_Statement], used: set[str] | None) -> Iterator[CourseImport]:
    """List the imports of the course; of those at the top only what binds a used name counts, None being every name."""
    for statement in statements:
        for node in ast.walk(statement.node):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            where = f"{statement.cell.label}, line {node.lineno}"
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if node is statement.node and used is not None and bound not in used:
                    continue
                if isinstance(node, ast.Import) and _is_course(alias.name):
                    yield CourseImport(alias.name, "", where)
                elif isinstance(node, ast.ImportFrom) and not node.level and _is_course(node.module or ""):
                    yield CourseImport(node.module or "", alias.name, where)

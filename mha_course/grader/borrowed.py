"""Find what an answer in a notebook takes from other cells, and a fresh run may lack."""

from __future__ import annotations

import ast
import dis
import linecache
import types
from collections.abc import Iterator
from typing import Any

from mha_course.grader.names import bindings


def borrowed(answer: Any) -> tuple[str, ...]:
    """Name the values that an answer, or what it calls, takes from cells other than its own.

    Functions, classes and modules are not meant: to build on those of earlier cells is how a notebook is written. Nor are
    names in capitals, which say of themselves that they are constants.

    Args:
        answer: a function or class.

    Returns:
        The names, in the order in which they are met.
    """
    found: dict[str, None] = {}
    seen: set[types.CodeType] = set()
    todo = list(_functions(answer))
    while todo:
        function = todo.pop(0)
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        own = _bound_beside(function)
        for name in _globals(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, (types.FunctionType, type)):
                if getattr(value, "__module__", None) == function.__module__:
                    todo += _functions(value)
            elif (
                name in function.__globals__
                and name not in own
                and not name.isupper()
                and not callable(value)
                and not isinstance(value, types.ModuleType)
            ):
                found[name] = None
    return tuple(found)


def _functions(target: Any) -> Iterator[types.FunctionType]:
    for member in vars(target).values() if isinstance(target, type) else (target,):
        inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(inner, types.FunctionType):
            yield inner


def _globals(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _bound_beside(function: types.FunctionType) -> set[str]:
    """Name what the cell or file binds in which a function was written."""
    try:
        tree = ast.parse("".join(linecache.getlines(function.__code__.co_filename)))
    except (SyntaxError, ValueError):  # a cell with a command of the notebook's own
        return set(function.__globals__)
    return {binding.name for statement in tree.body for binding in bindings(statement)}

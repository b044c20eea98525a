"""What statements bind and use, and whether a definition was written at all: read from the syntax tree."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Binding:
    """A place at which code gives a name a value, or changes the value that it has."""

    name: str
    node: ast.AST
    kind: Literal["definition", "import", "other", "change"]
    module: str = ""  # the module that an import names


def bindings(statement: ast.stmt) -> Iterator[Binding]:
    """Find every name that a top-level statement binds, also inside `if`, `try`, `for` and `with`.

    >>> [found.name for found in bindings(ast.parse("if True: heads, f.cache = 8, {}").body[0])]
    ['heads', 'f']
    """
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop(0)
        inner = list(ast.iter_child_nodes(node))
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Binding(node.name, node, "definition")
                yield from (Binding(name, node, "change") for name in _patched(node))
                inner = []
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = []
            case ast.Import():
                for alias in node.names:
                    yield Binding(alias.asname or alias.name.partition(".")[0], node, "import", alias.name)
            case ast.ImportFrom():
                for alias in node.names:
                    yield Binding(alias.asname or alias.name, node, "import", "." * node.level + (node.module or ""))
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        yield Binding(target.id, node, "definition")
                        inner.remove(target)
            case ast.Call(func=ast.Name(id="setattr"), args=[target, *_]):
                yield from (Binding(name, node, "change") for name in _root(target))
            case ast.Name(ctx=ast.Store()):
                yield Binding(node.id, node, "other")
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield from (Binding(name, node, "change") for name in _root(node))
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield Binding(name, node, "other")
        todo[:0] = inner


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _patched(node: _Function | ast.ClassDef) -> Iterator[str]:
    """Name what a decorator may give the definition to: `@add_to_class(Layer)`, or `@patch` and `self: Layer`."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        for argument in decorator.args if isinstance(decorator, ast.Call) else ():
            yield from _root(argument)
        if not isinstance(node, ast.ClassDef) and ast.unparse(called).rpartition(".")[2].startswith("patch"):
            first = next(iter((*node.args.posonlyargs, *node.args.args)), None)
            match first and first.annotation:
                case ast.Name(id=str(name)) | ast.Constant(value=str(name)):
                    yield name


def uses(statement: ast.stmt) -> set[str]:
    """Name the globals that a top-level statement needs, now or when a function that it defines is called.

    >>> sorted(uses(ast.parse("def f(x): return g(x) + h").body[0]))
    ['g', 'h']
    """
    try:
        top = symtable.symtable(ast.unparse(statement), "answer", "exec")
    except (SyntaxError, RecursionError):  # too deep to be written out again: take every name for a global
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    found = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = top.get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        # In the body of a class, `helper = staticmethod(helper)` reads the global before it binds its own name.
        falls_back = table.get_type() == "class"
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_global() or (falls_back and symbol.is_local() and symbol.is_referenced())
        }
    return found


def is_stub(node: ast.AST) -> bool:
    """Tell whether a definition is still as the exercise gave it: nothing in it was written.

    Where that is in doubt it is none: an empty task that runs says so itself, by NotImplementedError.
    """
    match node:
        case ast.Assign() | ast.AnnAssign():
            return isinstance(node.value, ast.Constant) and node.value.value in (None, ...)
        case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]):
            written = [statement for statement in node.body if not _says_nothing(statement)]
            if not written:
                return True
            # What stands above may be given by the exercise; with a `return` in it, it is an answer of its own.
            answers = (ast.Return, ast.Yield, ast.YieldFrom)
            return _is_not_implemented(written[-1]) and not any(isinstance(n, answers) for n in ast.walk(node))
        case ast.ClassDef(decorator_list=[], keywords=[]):
            bases = {ast.unparse(base) for base in node.bases}  # any other may hold the whole answer
            return bases <= {"nn.Module", "torch.nn.Module", "object"} and all(
                is_stub(statement) if isinstance(statement, _Function) else _says_nothing(statement)
                for statement in node.body
            )
    return False


def _says_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"))):
            return True
    return False


def _is_not_implemented(statement: ast.stmt) -> bool:
    match statement:
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False


def leftovers(node: ast.AST) -> Iterator[int]:
    """Give the line of every `raise NotImplementedError` that was left above code, which it keeps from running."""
    for function in ast.walk(node):
        if isinstance(function, _Function):
            yield from (raised.lineno for raised in function.body[:-1] if _is_not_implemented(raised))

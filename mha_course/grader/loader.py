"""Run a submission's cells and answer its cases; this is what a child does until it is ended.

Nothing here is a defence: learner code shares the process and can change all of it. What it can't change is the process
that reads the answers.
"""

from __future__ import annotations
import __future__

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mha_course.grader.channel import Channel
from mha_course.grader.wire import WireError, decode, encode
from mha_course.grader.worker import PrintedTooMuch, _Counter, _undisturbed, describe_error, run_case

COURSE = "mha_course"
MODULE = "__graded__"  # a name that none of the learner's own files has
ERRORS_LIMIT = 20
# What a learner's notebook takes from the course to practise with does nothing while it is graded.
_FACE = "def check(*args, **kwargs): pass\nhint = solution = status = check\n"


def serve(channel: Channel) -> None:
    """Load the program that comes first, then run the cases that follow, for ever."""
    program = decode(channel.receive())
    module, reply = load(program)
    channel.send(encode(reply))
    labels = {part["label"] for part in (*program["cells"], *program["modules"].values())}
    target: Any = vars(module).get(program["name"])
    while True:
        case = decode(channel.receive())
        try:
            reply = run_case(target, case, labels.__contains__)
            if reply["error"] and "can't allocate memory" in reply["error"]["message"]:
                reply["error"]["type"] = "MemoryError"  # PyTorch raises a RuntimeError of its own
            message = encode(reply)
        except BaseException as caught:  # a result too large to be sent, or our own tools broken by learner code
            error = {"stage": "call", **describe_error(caught, labels.__contains__)}
            if isinstance(caught, WireError):
                error["type"] = "TooLarge"
            message = encode({"results": [], "error": error, "printed": 0, "kept": []})
        channel.send(message)


def forget_course() -> None:
    """Take the course out of the modules that learner code would get without looking for them."""
    for name in [name for name in sys.modules if name.partition(".")[0] == COURSE]:
        del sys.modules[name]


def load(program: Mapping[str, Any]) -> tuple[types.ModuleType, dict[str, Any]]:
    """Run the cells of a program, one top-level statement at a time.

    Args:
        program: what `Plan.program` wrote.

    Returns:
        The module in which the cells ran, and the reply: `loaded`, whether the name is defined; its `kind`
        ("function", "class" or "other"); and `errors`, what statements raised, each as `describe_error` says it.
    """
    modules, course = program["modules"], program["course"]
    sys.meta_path.insert(0, _Finder(modules, course))
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    namespace = vars(module)
    if program["path"]:
        namespace["__file__"] = program["path"]
    else:
        namespace["display"] = lambda *args, **kwargs: None  # a notebook has it without an import
    labels = {part["label"] for part in (*program["cells"], *modules.values())}
    errors: list[dict[str, str]] = []
    counter = _Counter()
    with _undisturbed(0, counter):
        try:
            for cell in program["cells"]:
                remember_source(cell["label"], cell["source"])
                _run_cell(cell, namespace, labels, errors)
        except PrintedTooMuch as caught:
            errors.append(describe_error(caught, labels.__contains__))
    target = namespace.get(program["name"])
    kind = "class" if issubclass(type(target), type) else "function" if callable(target) else "other"
    return module, {"loaded": program["name"] in namespace, "kind": kind, "errors": errors}


def _run_cell(
    cell: Mapping[str, Any], namespace: dict[str, Any], labels: set[str], errors: list[dict[str, str]]
) -> None:
    flags = _flags(cell.get("futures", ()))
    tree: Any = compile(cell["source"], cell["label"], "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    for statement in tree.body:
        try:
            code = compile(ast.Module([statement], []), cell["label"], "exec", flags, dont_inherit=True)
            exec(code, namespace)  # noqa: S102 (this is the process in which learner code runs)
        except PrintedTooMuch:
            raise
        except BaseException as caught:
            if len(errors) < ERRORS_LIMIT:
                errors.append(describe_error(caught, labels.__contains__))
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            flags |= _flags(alias.name for alias in statement.names)


def _flags(futures: Iterable[str]) -> int:
    """Say to the compiler what was taken from `__future__`."""
    flags = 0
    for name in futures:
        flags |= getattr(getattr(__future__, name, None), "compiler_flag", 0)
    return flags


def remember_source(label: str, source: str) -> None:
    """Let tracebacks quote code that lies in no file."""
    linecache.cache[label] = (len(source), None, source.splitlines(keepends=True), label)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Serves the submission's own files and what it may import of the course; refuses the rest of the course."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]], course: Mapping[str, str]) -> None:
        self.modules: dict[str, Mapping[str, Any]] = dict(modules)
        self.modules[COURSE] = {"label": COURSE, "source": _FACE, "path": "", "is_package": True}
        for name, source in {f"{COURSE}.notebook": _FACE, **course}.items():
            self.modules[name] = {"label": name, "source": source, "path": "", "is_package": False}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.modules:
            if fullname.partition(".")[0] == COURSE:
                raise ImportError(f"{fullname} can't be used in this answer: write that part yourself", name=fullname)
            return None
        found = self.modules[fullname]
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=found["path"] or None, is_package=found["is_package"]
        )
        spec.has_location = bool(found["path"])
        return spec

    def get_source(self, fullname: str) -> str:
        return str(self.modules[fullname]["source"])

    def get_code(self, fullname: str) -> types.CodeType:
        found = self.modules[fullname]
        remember_source(found["label"], found["source"])
        code: types.CodeType = compile(found["source"], found["label"], "exec", dont_inherit=True)
        return code

    def is_package(self, fullname: str) -> bool:
        return bool(self.modules[fullname]["is_package"])

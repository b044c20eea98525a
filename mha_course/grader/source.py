"""Make Python of the text of a cell or a file, and say which modules it imports; nothing is run."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import io
import re
import symtable
import sys
import textwrap
import tokenize
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Notebook commands whose cell is Python all the same; after any other (%%bash, %%html) it is not.
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit")
_COMMAND = re.compile(r"(?P<indent>\s*)(?:[%!]|\?{1,2}\w|[\w.]+\?{1,2}\s*$)|(?P<target>\s*[\w., ]+=\s*)[%!]")
_PIECE = re.compile(r"""'{3}|"{3}|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#.*|[\[({]|[\])}]""")


class Unreadable(Exception):
    """A file that holds no code which could be read; the text says why, as the end of "answer.py …"."""


@cache
def library_folders() -> tuple[str, ...]:
    """The folders from which learner code may import libraries: those that hold the packages of this Python."""
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    for name in ("torch", "numpy", "einops", "jaxtyping"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            folders.append(str(Path(spec.origin).parents[1]))
    return tuple(dict.fromkeys(folders))


@cache
def is_installed(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package, so that no file of a learner's replaces it."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "mha_course":
        return True
    return importlib.machinery.PathFinder.find_spec(top, list(library_folders())) is not None


def decode_python(data: bytes) -> str:
    """Read the text of a Python file.

    Args:
        data: its bytes, in UTF-8 or in the encoding that its first lines declare.

    Returns:
        The text, its lines ended as Python ends them.

    Raises:
        Unreadable: if the bytes are no text in that encoding.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not valid {error.encoding.upper()} (byte {error.start})") from error
    except (SyntaxError, LookupError) as error:  # Python's own finder of declarations does not say where
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as place:
            raise Unreadable(f"is not valid UTF-8 (byte {place.start})") from error
        raise Unreadable(f"is not text: {error}") from error


def parse(text: str, *, magics: bool) -> tuple[str, ast.Module | None, str]:
    """Read the syntax tree of a piece of code.

    Args:
        text: the code.
        magics: whether a notebook's commands (`%timeit`, `!ls`, `name?`) may stand in it; they are taken out, and
            every other line keeps its number.

    Returns:
        The code without commands, its tree (None where it is not valid Python) and what is wrong with it.
    """
    source = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        return source, _tree(source), ""
    except SyntaxError as error:
        problem = error
    if magics:
        source = textwrap.dedent(_without_commands(source))
        try:
            return source, _tree(source), ""
        except SyntaxError as error:
            problem = error
    shown = f": {problem.text.strip()[:200]}" if problem.text else ""
    return source, None, f"line {problem.lineno or 1}: {problem.msg}{shown}"


def _tree(source: str) -> ast.Module:
    """Parse, with one kind of error for all that can be wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape in a string is the learner's business
            tree = ast.parse(source)
            symtable.symtable(source, "answer", "exec")  # finds what only shows beyond the grammar
    except (ValueError, RecursionError, MemoryError) as error:  # a null character; code nested without end
        raise SyntaxError(str(error) or "the code is nested too deeply") from error
    return tree


def _without_commands(source: str) -> str:
    """Put `pass` in the place of every line that is a command to the notebook and not Python."""
    lines = source.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        if lines[first].split()[0] not in _PYTHON_CELLS:
            return ""
        lines[first] = ""
    quote, depth, continued, in_command = "", 0, False, False
    for i, line in enumerate(lines):
        command = None if quote or depth or continued else _COMMAND.match(line)
        if command or in_command:
            in_command = line.endswith("\\")
            lines[i] = "" if command is None else _python_for(command)
            continue
        quote, depth = _scan(line, quote, depth)
        continued = line.endswith("\\")
    return "\n".join(lines)


def _python_for(command: re.Match[str]) -> str:
    return f"{command['indent']}pass" if command["target"] is None else f"{command['target']}None"


def _scan(line: str, quote: str, depth: int) -> tuple[str, int]:
    """Follow long strings and brackets to the end of a line, in neither of which a command can begin."""
    position = 0
    while True:
        if quote:
            end = line.find(quote, position)
            if end < 0:
                return quote, depth
            quote, position = "", end + 3
        piece = _PIECE.search(line, position)
        if piece is None:
            return "", depth
        position = piece.end()
        if piece[0] in ("'''", '"""'):
            quote = piece[0]
        elif piece[0] in "[({":
            depth += 1
        elif piece[0] in "])}":
            depth = max(0, depth - 1)


def imported_modules(tree: ast.Module | None, package: str = "") -> Iterator[str]:
    """Name every module that code may import, packages before what lies in them.

    Args:
        tree: the code; None gives nothing.
        package: where relative imports start from; without one they are passed over, as Python refuses them.

    Yields:
        Dotted names; of `from a import b` both `a` and `a.b`, as `b` may be a module.
    """
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # more dots than there are packages
                continue
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))

"""Read what a learner handed in (a notebook, a Python file, or a folder of them) without running any of it."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mha_course.grader.source import Unreadable, decode_python, imported_modules, is_installed, parse

FILE_LIMIT = 20 * 2**20  # bytes; a notebook holds its outputs too
CODE_LIMIT = 500_000  # characters; a syntax tree takes hundreds of bytes for each
FILES_LIMIT = 200
DEPTH_LIMIT = 6  # folders
SUFFIXES = (".ipynb", ".py")


@dataclass(frozen=True)
class Cell:
    """One piece of code that runs as a whole: a notebook's cell or a Python file."""

    label: str  # as a learner reads it
    file: str  # the file within the submission; cells of one file share their names
    source: str
    tree: ast.Module | None  # None where the code can't be read
    error: str = ""  # why not


@dataclass(frozen=True)
class Module:
    """A Python file that other files of the submission import."""

    name: str  # dotted
    cell: Cell
    is_package: bool = False

    @property
    def package(self) -> str:
        """Where its relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class Submission:
    """What was found in a submission."""

    name: str
    is_folder: bool
    cells: tuple[Cell, ...]
    modules: dict[str, Module]  # by dotted name
    problems: tuple[str, ...]  # what a learner has to mend
    notes: tuple[str, ...]  # what an instructor may want to know
    is_complete: bool  # every file could be read
    digest: str  # changes with every byte that was read


@dataclass
class _Reading:
    """What is collected while a submission is read."""

    root: Path  # nothing outside is read
    cells: dict[str, list[Cell]] = field(default_factory=dict)  # by file
    modules: dict[str, Module] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hash: hashlib._Hash = field(default_factory=hashlib.sha256)


def read(path: Path) -> Submission:
    """Read a submission.

    Args:
        path: a notebook, a Python file or a folder. Python files beside a single file are read where it imports them.

    Returns:
        Its code and its problems; whatever the files hold, nothing is raised.
    """
    is_folder = path.is_dir()
    reading = _Reading(_real(path if is_folder else path.parent))
    files = [path.name]
    if not _real(path).is_relative_to(_real(path.parent)):
        reading.problems.append(f"{path.name} is a link that leads elsewhere; hand in the file itself")
        files = []
    elif is_folder:
        files = list(_files(reading, Path()))
    if len(files) > FILES_LIMIT:
        reading.problems.append(f"there are {len(files)} files; only the first {FILES_LIMIT} were read")
    for file in files[:FILES_LIMIT]:
        _read_file(reading, file, prefix=len(files) > 1)
    _read_modules(reading, siblings=not is_folder)
    imported = {module.cell.file for module in reading.modules.values()} if is_folder else set()
    answers = [file for file in files if file in reading.cells and file not in imported]
    cells = tuple(cell for file in answers or files for cell in reading.cells.get(file, ()))
    if not cells and not reading.problems:
        reading.problems.append("there is no code in it: hand in a notebook (.ipynb) or a Python file (.py)")
    is_complete = not reading.problems
    reading.problems += [f"{cell.label} can't be read: {cell.error}" for cell in cells if cell.error]
    return Submission(
        path.name,
        is_folder,
        cells,
        reading.modules,
        tuple(dict.fromkeys(reading.problems)),
        tuple(reading.notes),
        is_complete,
        reading.hash.hexdigest(),
    )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve would raise where links go round in a circle


def _files(reading: _Reading, folder: Path) -> Iterator[str]:
    """Find the notebooks and Python files of a folder, by name; what tools leave behind is passed over."""
    try:
        entries = sorted(os.scandir(reading.root / folder), key=lambda entry: entry.name)
    except OSError as error:
        reading.problems.append(f"{folder} can't be opened: {error.strerror}")
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith((".", "__pycache__", "node_modules")):
            continue
        if entry.is_dir(follow_symlinks=False) and entry.name == "mha_course":
            reading.notes.append(f"{folder / entry.name} is passed over: it is named like the course itself")
        elif entry.is_dir(follow_symlinks=False):
            if len(folder.parts) < DEPTH_LIMIT:
                yield from _files(reading, folder / entry.name)
        elif entry.is_symlink() and entry.is_dir():
            reading.problems.append(f"{folder / entry.name} is a link to a folder; hand in the folder itself")
        elif entry.name.endswith(SUFFIXES):
            yield str(folder / entry.name)


def _read_bytes(reading: _Reading, file: str) -> bytes:
    path = reading.root / file
    if not _real(path).is_relative_to(reading.root):
        raise Unreadable("is a link that leads elsewhere; hand in the file itself")
    try:
        # A pipe or a device would block or never end, and must not even be opened.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("is not an ordinary file")
        with path.open("rb") as handle:
            data = handle.read(FILE_LIMIT + 1)
    except OSError as error:
        raise Unreadable(f"can't be opened: {error.strerror}") from error
    reading.hash.update(f"{file}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    if len(data) > FILE_LIMIT:
        raise Unreadable(f"is larger than {FILE_LIMIT // 2**20} MB")
    return data


def _read_file(reading: _Reading, file: str, *, prefix: bool) -> None:
    try:
        sources = _sources(file, _read_bytes(reading, file), f"{file} " if prefix else "")
    except Unreadable as error:
        reading.problems.append(f"{file} {error}")
        return
    magics = file.endswith(".ipynb")
    reading.cells[file] = [Cell(label, file, *parse(text, magics=magics)) for label, text in sources]


def _sources(file: str, data: bytes, prefix: str) -> list[tuple[str, str]]:
    """Give the label and the text of every piece of code that is not blank."""
    if file.endswith(".ipynb"):
        sources = [(f"{prefix}cell {number}", text) for number, text in _notebook_cells(data)]
    elif file.endswith(".py"):
        sources = [(file, decode_python(data))]
    else:
        raise Unreadable("is neither a notebook (.ipynb) nor a Python file (.py)")
    sources = [(label, text) for label, text in sources if text.strip()]
    if not sources:
        raise Unreadable("holds no code")
    if sum(len(text) for _, text in sources) > CODE_LIMIT:
        raise Unreadable(f"holds more than {CODE_LIMIT:,} characters of code")
    return sources


def _notebook_cells(data: bytes) -> Iterator[tuple[int, str]]:
    """Give each code cell's number, counted like Jupyter's own after "Run All", and its text."""
    try:
        notebook = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not valid UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not a notebook: {error}") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("is not a notebook of the format in use since 2015: it has no list of cells")
    code = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    for number, cell in enumerate(code, start=1):
        source = cell.get("source", "")
        lines = source if isinstance(source, list) else [source]
        if not all(isinstance(line, str) for line in lines):
            raise Unreadable(f"has a cell (number {number}) whose source is not text")
        yield number, "".join(lines)


def _read_modules(reading: _Reading, *, siblings: bool) -> None:
    """Find the submission's own files that it imports by name, and what those import."""
    todo = [(cell, "") for cells in reading.cells.values() for cell in cells]
    while todo:
        cell, package = todo.pop(0)
        for name in imported_modules(cell.tree, package):
            if name in reading.modules or is_installed(name):
                continue
            file = _module_file(reading, cell, name)
            if file is None:
                continue
            if file not in reading.cells:
                _read_file(reading, file, prefix=True)
                if siblings:
                    reading.notes.append(f"{cell.file} imports {file}, which lies beside it")
            for found in reading.cells.get(file, ())[:1]:
                module = reading.modules[name] = Module(name, found, file.endswith("__init__.py"))
                todo.append((found, module.package))
    # A folder without `__init__.py` is a package all the same once one of its files is imported.
    for name in list(reading.modules):
        for end in (i for i, letter in enumerate(name) if letter == "."):
            empty = Cell(name[:end], "", "", ast.Module([], []))
            reading.modules.setdefault(name[:end], Module(name[:end], empty, is_package=True))


def _module_file(reading: _Reading, importer: Cell, name: str) -> str | None:
    """Look where Python would: beside the file that imports, and at the top of the submission."""
    for base in dict.fromkeys((Path(importer.file).parent, Path())):
        stem = base.joinpath(*name.split("."))
        for file in (f"{stem}.py", str(stem / "__init__.py")):
            if (reading.root / file).is_file():
                return file
    return None

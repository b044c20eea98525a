"""Keep results on disk: one file a submission and one table, each written whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mha_course import __version__

TABLE = "grades.csv"
Record = dict[str, Any]  # what a result file holds


def write(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # a file's name may hold what is no text
    try:
        Path(file.name).replace(path)
    except OSError:  # a name too long, or a folder in that place
        Path(file.name).unlink()
        raise


def save(out: Path, name: str, record: Record) -> None:
    """Write the result of one submission."""
    write(out / f"{name}.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def finished(out: Path, name: str, key: str) -> Record | None:
    """Return the result of an earlier run, if nothing that it depends on has changed and it holds no error of ours."""
    try:
        record = json.loads((out / f"{name}.json").read_text("utf-8"))
        same = record["key"] == key
        erred = any(entry["verdict"] == "grader_error" for entry in record["exercises"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if same and not erred else None


def key(digest: str, settings: Sequence[object]) -> str:
    """Return a text that changes with the submission, the settings, the package and the version of PyTorch."""
    return hashlib.sha256(repr((digest, *settings, _package())).encode()).hexdigest()


@cache
def _package() -> str:
    found = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return f"{__version__} {importlib.metadata.version('torch')} {found.hexdigest()}"


def names(paths: Iterable[Path]) -> dict[str, Path]:
    """Name each submission by its file without the ending, or in full where two would share a name.

    >>> list(names([Path("ann.py"), Path("bob.ipynb"), Path("bob.py")]))
    ['ann', 'bob.ipynb', 'bob.py']
    """
    chosen = {path: path.name if path.is_dir() else path.stem for path in paths}
    while doubled := {name for name, n in Counter(name.casefold() for name in chosen.values()).items() if n > 1}:
        clashing = {path: path.name for path, name in chosen.items() if name.casefold() in doubled}
        if all(chosen[path] == name for path, name in clashing.items()):
            break  # they differ in upper and lower case alone
        chosen |= clashing
    return dict(sorted((name, path) for path, name in chosen.items()))


def table(records: Mapping[str, Record]) -> str:
    """Write all results as CSV, a line a submission.

    A mark that could not be given is an empty field, and so is the total that lacks it: no error counts as zero.
    """
    exercises = list(dict.fromkeys(name for record in records.values() for name in record["exercises"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["submission", *exercises, "total", "problems"])
    for name, record in sorted(records.items()):
        entries = {exercise: record["exercises"][exercise] for exercise in exercises if exercise in record["exercises"]}
        points: list[Any] = [entries[exercise]["points"] if exercise in entries else None for exercise in exercises]
        total = None if None in points else sum(points)
        problems = [
            f"{exercise}: {entry['verdict'].replace('_', ' ')}"
            for exercise, entry in entries.items()
            if entry["verdict"] in ("timed_out", "crashed", "not_gradable", "grader_error")
        ]
        notes = "; ".join((*problems, *record["notes"]))
        writer.writerow([_disarmed(name), *map(_mark, points), _mark(total), _disarmed(notes)])
    return text.getvalue()


def _disarmed(text: str) -> str:
    """Keep a spreadsheet from taking text for a formula, or a carriage return in it for the end of a line."""
    shown = text.replace("\r", " ")
    return f"'{shown}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else shown


def _mark(points: float | None) -> str:
    return "" if points is None else f"{points:g}"

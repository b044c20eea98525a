"""What a learner has done so far, kept in one small file beside their notebooks."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock, Timeout

from mha_course.grader.results import write
from mha_course.grader.verdicts import Verdict, Word

FILE = "progress.json"
VERSION = 1
HINTS = 3  # after which the solution may be seen
LOCK_SECONDS = 5.0


class Damaged(Exception):
    """The file is not what was written; the text says how it is seen."""


class Unreadable(Exception):
    """The file can't be used and must be left as it is; the text says why."""


@dataclass(frozen=True)
class Entry:
    """How far one exercise is."""

    verdict: Word = "not_attempted"  # of the last check, or of the one that passed
    points: float = 0.0  # in that check
    solved: bool = False  # passed once, whatever came after
    hints: int = 0  # the highest that was shown

    @property
    def may_see_solution(self) -> bool:
        """True once it was solved, or every hint was read."""
        return self.solved or self.hints >= HINTS


Entries = dict[str, Entry]  # by the exercise's name; what is missing was not begun


def create(folder: Path) -> None:
    """Begin a file in a learner's folder, unless there is one."""
    with _locked(folder):
        if not (folder / FILE).exists():
            _save(folder, {})


def load(folder: Path) -> Entries | None:
    """Read a folder's file.

    Returns:
        Its entries; None if there is no file.

    Raises:
        Damaged: if it isn't what was written.
        Unreadable: if a newer version of the course wrote it, or the system refuses it.
    """
    try:
        text = (folder / FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Damaged("it holds bytes that are no text") from None
    except OSError as error:
        raise Unreadable(f"{folder / FILE} can't be read: {error.strerror}") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Damaged(f"it is no longer JSON: {error}") from None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is int and version > VERSION:
        raise Unreadable(f"{folder / FILE} was written by a newer version of the course; install that one")
    if version != VERSION or found.get("sum") != _sum(found.get("exercises")):
        raise Damaged("it was changed by something other than the course")
    try:
        return {str(name): _entry(values) for name, values in found["exercises"].items()}
    except (AttributeError, TypeError, ValueError):
        raise Damaged("its entries are not of the form that the course writes") from None


def note(folder: Path, verdict: Verdict) -> None:
    """Write down how a check ended; without a file in the folder nothing is kept.

    Raises:
        Damaged, Unreadable: if the file can't be brought up to date; it is left as it is.
    """
    if verdict.points is None:  # no mark could be given
        return

    def changed(entry: Entry) -> Entry:
        passed = verdict.verdict == "passed"
        if entry.solved and not passed:  # another try takes nothing away
            return entry
        return replace(entry, verdict=verdict.verdict, points=verdict.points or 0.0, solved=passed)

    _change(folder, verdict.exercise, changed)


def note_hint(folder: Path, name: str, number: int) -> None:
    """Write down that the first `number` hints were shown, as `note` does."""
    _change(folder, name, lambda entry: replace(entry, hints=max(entry.hints, number)))


def rebuild(folder: Path, verdicts: list[Verdict]) -> Path | None:
    """Write the file anew from what the notebooks hold.

    Returns:
        Where the damaged file was put, or None if there was none.
    """
    with _locked(folder):
        path, aside = folder / FILE, None
        if path.exists():
            aside = next(name for n in range(1, 10_000) if not (name := folder / f"progress.damaged-{n}.json").exists())
            path.replace(aside)
        graded = [verdict for verdict in verdicts if verdict.points is not None]
        _save(folder, {v.exercise: Entry(v.verdict, v.points or 0.0, v.verdict == "passed") for v in graded})
    return aside


def _change(folder: Path, name: str, changed: Callable[[Entry], Entry]) -> None:
    if not (folder / FILE).exists():
        return
    with _locked(folder):
        entries = load(folder)
        if entries is not None:
            _save(folder, {**entries, name: changed(entries.get(name, Entry()))})


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep two notebooks that check at the same time from losing what the other wrote."""
    try:
        with FileLock(folder / f".{FILE}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise Unreadable(f"{folder / FILE} is in use by another program") from None
    except OSError as error:
        raise Unreadable(f"{folder / FILE} can't be written: {error.strerror or error}") from None


def _save(folder: Path, entries: Entries) -> None:
    exercises = {name: asdict(entry) for name, entry in sorted(entries.items())}
    found = {"version": VERSION, "exercises": exercises, "sum": _sum(exercises)}
    write(folder / FILE, json.dumps(found, indent=1) + "\n")


def _sum(exercises: Any) -> str:
    return hashlib.sha256(json.dumps(exercises, sort_keys=True).encode()).hexdigest()[:16]


def _entry(values: Any) -> Entry:
    if set(values) != {field.name for field in fields(Entry)} or values["verdict"] not in get_args(Word):
        raise ValueError
    return Entry(str(values["verdict"]), float(values["points"]), bool(values["solved"]), int(values["hints"]))  # type: ignore[arg-type]

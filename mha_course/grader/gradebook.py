"""Grade a folder of submissions, each on its own, and keep the results."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mha_course.grader import results
from mha_course.grader.sandbox import Sandbox, SandboxError
from mha_course.grader.submission import SUFFIXES, Submission, read
from mha_course.grader.verdicts import Verdict

if TYPE_CHECKING:
    from mha_course.exercises.exercise import Exercise
    from mha_course.grader.attempt import Judge

SECONDS = 20.0  # for one exercise of one submission
JOBS = min(2, os.cpu_count() or 1)
PAYS_AT = 10  # submissions for each sandbox, below which importing PyTorch once more costs more than it saves


class UsageError(Exception):
    """The command can't be carried out as given; the text says why in one sentence."""


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    out: Path
    records: dict[str, results.Record]  # by submission: what its result file holds
    graded: int  # in this run; the others were finished before
    passed_over: tuple[str, ...]  # entries of the folder that are no submissions

    @property
    def errors(self) -> int:
        """The number of exercises on which the grader itself failed."""
        entries = (entry for record in self.records.values() for entry in record["exercises"].values())
        return sum(entry["verdict"] == "grader_error" for entry in entries)


def grade(
    submissions: Path,
    out: Path,
    *,
    seed: int = 0,
    seconds: float = SECONDS,
    only: Sequence[str] | None = None,
    jobs: int = JOBS,
    report: Callable[[str], None] | None = None,
    exercises: Callable[[], dict[str, Exercise]] | None = None,
    judge: Judge | None = None,
) -> Summary:
    """Grade submissions and write `out/<submission>.json` for each, and `out/grades.csv`.

    Args:
        submissions: one file, or a folder in which every notebook, Python file and folder is one submission.
        out: a folder for the results, made if need be. A submission that it holds a result for is not graded again
            unless the submission, the course, the seed or the limit has changed.
        seed: of the inputs.
        seconds: for all that an answer to one exercise does.
        only: names of exercises; None is all.
        jobs: sandboxes at work at once, at most.
        report: is given a line for each submission; None prints it to standard error.
        exercises: what to grade in place of the course's own.
        judge: what to decide with in place of the course's own.

    Returns:
        What was done.

    Raises:
        UsageError: if there is nothing to grade, nowhere to put the results, or no such exercise.
    """
    paths, passed_over = _entries(submissions, out)
    _prepare(out)
    settings = (seed, seconds, None if only is None else sorted(only))
    records: dict[str, results.Record] = {}
    todo: list[tuple[str, Path, str]] = []
    hidden = [submissions if submissions.is_dir() else submissions.parent, out]
    with ExitStack() as stack:
        sandboxes: list[Sandbox] = []
        for name, path in results.names(paths).items():
            key = results.key(read(path).digest, settings)
            record = results.finished(out, name, key)
            if record is not None:
                records[name] = record
                continue
            todo.append((name, path, key))
            if not sandboxes:  # it imports PyTorch while this process reads on and then imports it too
                sandboxes.append(stack.enter_context(Sandbox(hidden)))
        if todo:
            from mha_course.exercises import load_all  # noqa: PLC0415
            from mha_course.grader.attempt import attempt  # noqa: PLC0415
            from mha_course.grader.judging import judge as own_judge  # noqa: PLC0415

            chosen = _choose((exercises or load_all)(), only)
            while len(sandboxes) < min(jobs, len(todo) // PAYS_AT):  # these come in while the first is at work
                sandboxes.append(stack.enter_context(Sandbox(hidden)))
            grader = partial(attempt, judge=judge or own_judge, seed=seed, seconds=seconds)
            work = _Work(out, chosen, grader, seed, report or _print)
            records |= work.do(todo, sandboxes)
    try:
        results.write(out / results.TABLE, results.table(records))
    except OSError as error:
        raise UsageError(f"{out / results.TABLE} can't be written: {error.strerror}") from error
    return Summary(out, dict(sorted(records.items())), len(todo), passed_over)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _entries(submissions: Path, out: Path) -> tuple[list[Path], tuple[str, ...]]:
    """List what is to be graded, and what of a folder is not; earlier results are no submissions."""
    if not submissions.exists():
        raise UsageError(f"{submissions} does not exist")
    if not submissions.is_dir():
        return [submissions], ()
    if out.exists() and out.samefile(submissions):
        raise UsageError(f"{out} holds the submissions; choose another folder for the results")
    found: list[Path] = []
    passed_over: list[str] = []
    try:
        entries = sorted(submissions.iterdir())
    except OSError as error:
        raise UsageError(f"{submissions} can't be opened: {error.strerror}") from error
    for path in entries:
        is_out = out.exists() and path.exists() and path.samefile(out)
        if path.name.startswith((".", "__pycache__")) or is_out:
            continue
        is_result = (path / results.TABLE).exists() and not any(p.suffix in SUFFIXES for p in path.rglob("*"))
        if (path.is_dir() and not is_result) or path.suffix in SUFFIXES:
            found.append(path)
        else:
            passed_over.append(path.name)
    if not found:
        raise UsageError(f"{submissions} holds no submission: no notebook (.ipynb), no Python file (.py), no folder")
    return found, tuple(passed_over)


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for left in out.glob(".*.tmp"):  # of a run that was killed
            left.unlink()
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(f"no results can be written to {out}: {error.strerror}") from error


def _choose(exercises: dict[str, Exercise], only: Sequence[str] | None) -> list[Exercise]:
    unknown = [name for name in only or () if name not in exercises]
    if unknown:
        raise UsageError(f"there is no exercise {unknown[0]}; there are {', '.join(exercises)}")
    return [exercise for name, exercise in exercises.items() if only is None or name in only]


@dataclass
class _Work:
    """The submissions that are still to be graded, and what grades them."""

    out: Path
    exercises: Sequence[Exercise]
    attempt: Callable[[Exercise, Submission, Sandbox, threading.Lock], Verdict]
    seed: int
    report: Callable[[str], None]
    records: dict[str, results.Record] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def do(self, todo: Sequence[tuple[str, Path, str]], sandboxes: Sequence[Sandbox]) -> dict[str, results.Record]:
        """Share the submissions out among the sandboxes, a thread for each, and wait for all."""
        queue = deque(todo)
        with ThreadPoolExecutor(len(sandboxes)) as pool:
            try:
                for thread in [pool.submit(self.work, sandbox, queue, len(todo)) for sandbox in sandboxes]:
                    thread.result()
            except BaseException as error:
                queue.clear()  # the others finish what they are at
                if isinstance(error, SandboxError):
                    raise UsageError(str(error)) from error
                raise
        return self.records

    def work(self, sandbox: Sandbox, queue: deque[tuple[str, Path, str]], total: int) -> None:
        """Grade one submission after the other."""
        protections = sandbox.protections
        while True:
            with self.turn:
                if not queue:
                    return
                name, path, key = queue.popleft()
                submission = read(path)
                verdicts = [self.attempt(exercise, submission, sandbox, self.turn) for exercise in self.exercises]
                record = _record(name, submission, verdicts, seed=self.seed, protections=protections, key=key)
                try:
                    results.save(self.out, name, record)
                except OSError as error:  # one name that the disk refuses must not cost all others their marks
                    record["notes"].append(f"its result file could not be written: {error.strerror}")
                    self.report(f"{name}: its result file could not be written: {error.strerror}")
                self.records[name] = record
                words = ", ".join(f"{verdict.exercise} {verdict.verdict.replace('_', ' ')}" for verdict in verdicts)
                self.report(f"[{len(self.records)}/{total}] {name}: {words}")


def _record(
    name: str, submission: Submission, verdicts: Iterable[Verdict], *, seed: int, protections: Sequence[str], key: str
) -> results.Record:
    verdicts = list(verdicts)
    notes = [*submission.problems, *submission.notes, *(note for verdict in verdicts for note in verdict.notes)]
    return {
        "submission": name,
        "seed": seed,
        "protections": list(protections),
        "key": key,
        "notes": list(dict.fromkeys(notes)),
        "exercises": {
            verdict.exercise: {
                "verdict": verdict.verdict,
                "points": verdict.points,
                "max_points": verdict.max_points,
                "misconception": verdict.misconception,
                "message": verdict.message,
            }
            for verdict in verdicts
        },
    }

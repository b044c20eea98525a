"""Check a learner's own notebooks and files: once, or again whenever one is saved."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import sleep

from mha_course.exercises.exercise import Exercise
from mha_course.grader.attempt import attempt
from mha_course.grader.judging import judge
from mha_course.grader.plan import plan
from mha_course.grader.sandbox import Sandbox
from mha_course.grader.submission import SUFFIXES, Submission, read
from mha_course.grader.verdicts import Verdict

PAUSE = 0.3  # seconds between two looks at a folder


def check(
    submission: Submission,
    exercises: Mapping[str, Exercise],
    sandbox: Sandbox,
    *,
    seed: int,
    seconds: float,
) -> Iterator[Verdict]:
    """Check every exercise that a submission holds; of a folder, also those that it lacks."""
    turn = threading.Lock()
    with turn:
        for exercise in exercises.values():
            if not submission.is_folder and plan(submission, exercise.name) is None and submission.is_complete:
                continue  # one file need not hold every exercise
            yield attempt(exercise, submission, sandbox, turn, judge, seed=seed, seconds=seconds)


class Watch:
    """Remembers a folder's files and answers, and finds what was changed since it last looked."""

    def __init__(self, folder: Path, exercises: Mapping[str, Exercise]) -> None:
        """Take what is there now as known."""
        self._folder = folder
        self._exercises = exercises
        self._files: dict[Path, tuple[int, int]] = {}
        self._answers: dict[tuple[Path, str], str] = {}
        for path in self._saved():
            self._changed(read(path), path)

    def changes(self) -> Iterator[tuple[Path, Submission, list[Exercise]]]:
        """Look once; give each file that was saved, and the exercises whose answers are others now."""
        for path in self._saved():
            submission = read(path)
            yield path, submission, self._changed(submission, path)

    def __iter__(self) -> Iterator[tuple[Path, Submission, list[Exercise]]]:
        """Look again and again, for ever."""
        while True:
            yield from self.changes()
            sleep(PAUSE)

    def _saved(self) -> list[Path]:
        """List the files that are new or were written since the last look."""
        found: dict[Path, tuple[int, int]] = {}
        for path in sorted(self._folder.iterdir()):
            if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file():
                try:
                    state = path.stat()
                except OSError:  # gone in the meantime: editors write a new file and rename it
                    continue
                found[path] = (state.st_mtime_ns, state.st_size)
        saved = [path for path, state in found.items() if self._files.get(path) != state]
        self._files = found
        return saved

    def _changed(self, submission: Submission, path: Path) -> list[Exercise]:
        changed = []
        for exercise in self._exercises.values():
            found = plan(submission, exercise.name)
            if found is None:
                continue
            used = (*found.cells, *(module.cell for module in found.modules.values()))
            answer = "\0".join(cell.source for cell in used)
            if self._answers.get((path, exercise.name)) != answer:
                changed.append(exercise)
            self._answers[path, exercise.name] = answer
        return changed

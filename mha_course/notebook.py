"""The grader's face in a notebook: `check(what_you_wrote)`, `hint("its_name")`, `solution("its_name")`, `status()`."""

from __future__ import annotations

import difflib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from mha_course.exercises import NAMES, load, load_all
from mha_course.exercises.solutions import solutions
from mha_course.grader import progress
from mha_course.grader.borrowed import borrowed
from mha_course.grader.judging import judge
from mha_course.grader.overview import Overview
from mha_course.grader.reports import as_html, as_text
from mha_course.grader.verdicts import TimedOut, Verdict
from mha_course.grader.worker import run_case

SECONDS = 30  # that one check may take
_shown: dict[str, int] = {}  # how many hints of an exercise have been asked for
_solved: set[str] = set()  # what has passed since the kernel was started


class Report:
    """What a check found: shows itself as HTML or, where there is none, as text."""

    def __init__(self, html: str, text: str, verdict: Verdict | None = None) -> None:
        """Keep both forms, and the verdict where there is one."""
        self.verdict = verdict
        self._html, self._text = html, text

    def __repr__(self) -> str:
        """Return the report as text."""
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def check(answer: Any, seed: int = 0) -> Report:
    """Check what you wrote, at once; for practice, it gives no marks.

    Args:
        answer: the function or class itself, under the name that the exercise asks for.
        seed: of the inputs; another seed tries other numbers.

    Returns:
        A report that shows itself.

    >>> check(print)
    'print' is not the name of an exercise. `mha-course list` names them all.
    """
    if isinstance(answer, str):
        return _plain(f"check takes what you wrote itself, without quotes, as in check(split_heads), not {answer!r}.")
    if isinstance(answer, Tensor):
        return _plain("check takes the function itself, as in check(softmax), and not what it returned.")
    if type(answer).__name__ in NAMES:
        name = type(answer).__name__
        return _plain(f"check takes the class itself, as in check({name}), not an object made with it.")
    name = str(getattr(answer, "__name__", f"an object of type {type(answer).__name__}"))
    if name not in NAMES:
        return _plain(_no_such_exercise(name))
    exercise = load(name)
    with _time_limit(SECONDS):
        verdict = judge(exercise, _run_here(answer), seed)
    verdict = _with_notes(verdict, answer)
    footer = f"Practice, not a mark. It ran in this notebook, for at most {SECONDS} s; seed of the inputs: {seed}."
    if verdict.verdict == "passed":
        _solved.add(name)
        footer += f" Other right ways: solution({name!r})."
    footer += _kept(lambda: progress.note(Path(), verdict))
    return Report(as_html(verdict, footer), as_text(verdict, footer), verdict)


def hint(name: Any) -> Report:
    """Show a hint; each further call for the same exercise shows one more, up to the third.

    Args:
        name: the exercise's name, or what you wrote.
    """
    text = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    if text not in NAMES:
        return _plain(_no_such_exercise(text))
    exercise = load(text)
    _shown[text] = _shown.get(text, 0) + 1
    lines = exercise.numbered_hints(_shown[text])
    if _shown[text] >= len(exercise.hints):
        lines.append(f"There are no more hints. If that was not enough: solution({text!r}).")
    lines.append(_kept(lambda: progress.note_hint(Path(), text, min(_shown[text], len(exercise.hints)))))
    return _plain("\n".join(filter(None, lines)))


def solution(name: Any) -> Report:
    """Show the course's own answer and right ones in other styles, once yours is right or every hint was read.

    Args:
        name: the exercise's name, or what you wrote.
    """
    text = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    if text not in NAMES:
        return _plain(_no_such_exercise(text))
    exercise = load(text)
    try:
        entry = (progress.load(Path()) or {}).get(text, progress.Entry())
    except (progress.Damaged, progress.Unreadable):
        entry = progress.Entry()
    if not (entry.may_see_solution or text in _solved or _shown.get(text, 0) >= len(exercise.hints)):
        return _plain(
            f"{text} is not solved yet, and not all of its hints are read: hint({text!r}) shows the next one."
        )
    parts = solutions(exercise)
    return Report(
        "".join(f"<p><strong>{title}</strong></p><pre><code>{escape(source)}</code></pre>" for title, source in parts),
        "\n\n".join(f"# {title}\n{source}" for title, source in parts),
    )


def status() -> Report:
    """Show how far you are in this folder, and what comes next."""
    try:
        entries = progress.load(Path())
    except (progress.Damaged, progress.Unreadable) as error:
        return _plain(f"progress.json can't be used ({error}). In a terminal, `mha-course status` mends it.")
    if entries is None:
        return _plain("This folder keeps no progress. In a terminal, `mha-course status` makes it from your notebooks.")
    overview = Overview.of(load_all(), entries)
    return Report(overview.as_html(), overview.as_text())


def _kept(keep: Callable[[], None]) -> str:
    """Write something down; return an empty text, or one that says why it can't be."""
    try:
        keep()
    except (progress.Damaged, progress.Unreadable) as error:
        return f" Your progress was not written down: {error}. In a terminal, `mha-course status` mends that."
    return ""


def _with_notes(verdict: Verdict, answer: Any) -> Verdict:
    """Say what this notebook holds, and one that is run afresh may not."""
    names = borrowed(answer)
    if not names:
        return verdict
    listed = ", ".join(f"`{name}`" for name in names)
    note = (
        f"It uses {listed} of another cell. That is found here because that cell was run; a fresh run may not have it, or "
        "have another value. Pass it as an argument, or set it where it is used."
    )
    return replace(verdict, message=f"{verdict.message}\n{note}", notes=(*verdict.notes, note))


def _run_here(answer: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def run(case: Mapping[str, Any]) -> Mapping[str, Any]:
        result = run_case(answer, case, _is_learners)
        if result["error"] is not None:
            result["error"]["where"] = re.sub(r"\S*ipykernel_\d+\S*\.py", "your cell", result["error"]["where"])
        return result

    return run


def _is_learners(filename: str) -> bool:
    """Cells of a notebook, and the learner's own files; not the course, nor what is installed."""
    return "ipykernel_" in filename or not re.search(r"site-packages|mha_course|[\\/]lib[\\/]python|^<", filename)


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise TimedOut inside code that runs longer, where the system can; a notebook's stop button works everywhere."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _no_such_exercise(name: str) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"{name!r} is not the name of an exercise.{guess} `mha-course list` names them all."


def _plain(text: str) -> Report:
    return Report("".join(f"<p>{escape(line)}</p>" for line in text.splitlines()), text)

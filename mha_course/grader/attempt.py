"""Grade one exercise of one submission, from its text to its verdict."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from mha_course.exercises import allowed_modules, supplied_modules
from mha_course.exercises.exercise import Exercise
from mha_course.grader.plan import CourseImport, Plan, plan
from mha_course.grader.sandbox import Sandbox
from mha_course.grader.submission import Submission
from mha_course.grader.verdicts import Crashed, TimedOut, Verdict, Word
from mha_course.grader.worker import KEPT_LIMIT, MESSAGE_LIMIT, OUTPUT_LIMIT

Judge = Callable[[Exercise, Callable[[Mapping[str, Any]], Mapping[str, Any]], int], Verdict]
_PACKAGE = Path(__file__).resolve().parents[1]
_FREE = (
    "",
    "check",
    "hint",
    "solution",
    "status",
)  # what a learner's notebook may take from the course besides chapters
_ERRORS_SHOWN = 3
_FORGED = "sent back something that is not a result"  # as the end of "your code …"


def attempt(
    exercise: Exercise,
    submission: Submission,
    sandbox: Sandbox,
    turn: threading.Lock,
    judge: Judge,
    *,
    seed: int,
    seconds: float,
) -> Verdict:
    """Grade one exercise.

    Args:
        exercise: what was asked.
        submission: what was handed in.
        sandbox: where learner code runs.
        turn: held by the caller, and given up while learner code runs; judging changes global state (the random
            generator, standard output), and so is done by one thread at a time.
        judge: decides from what the learner's code returns.
        seed: of the inputs.
        seconds: for all that the learner's code does, on the clock on the wall.

    Returns:
        The verdict; an error of our own is one too.
    """
    notes: tuple[str, ...] = ()
    try:
        found = plan(submission, exercise.name)
        if found is None:
            return _undefined(exercise, submission)
        notes = found.notes
        verdict = _unrunnable(exercise, found) or _run(
            exercise, found, sandbox, turn, judge, seed=seed, seconds=seconds
        )
    except Exception:
        verdict = _verdict(exercise, "grader_error", f"The grader itself failed:\n{traceback.format_exc(limit=-4)}")
    return replace(verdict, message="\n".join((verdict.message, *notes)), notes=(*notes, *verdict.notes))


def _verdict(exercise: Exercise, word: Word, message: str) -> Verdict:
    points = None if word in ("not_gradable", "grader_error") else 0.0
    return Verdict(exercise.name, word, points, exercise.points, message)


def _undefined(exercise: Exercise, submission: Submission) -> Verdict:
    if not submission.is_complete:
        return _verdict(exercise, "not_gradable", f"It could not be read: {'; '.join(submission.problems)}.")
    unread = "".join(f"\n{problem}" for problem in submission.problems)
    return _verdict(exercise, "not_attempted", f"Nothing of the name {exercise.name} is defined in it.{unread}")


def _unrunnable(exercise: Exercise, found: Plan) -> Verdict | None:
    """Give the verdict on what need not run, or must not."""
    if found.unreadable:
        return _verdict(exercise, "not_gradable", f"It can't run: {found.unreadable}.")
    if found.is_stub:
        return _verdict(exercise, "not_attempted", f"{found.cells[-1].label} still holds the empty task.")
    allowed = allowed_modules(exercise)
    for used in found.course_imports:
        if not _may_import(used, allowed):
            taken = f"{used.module}.{used.name}" if used.name else used.module
            return _verdict(exercise, "not_gradable", f"{used.where} takes {taken} from the course; write your own.")
    return None


def _may_import(used: CourseImport, allowed: tuple[str, ...]) -> bool:
    _, _, module = used.module.partition(".")
    if module in ("", "notebook"):
        return used.name in _FREE or (not module and used.name in allowed)
    return module in allowed


def _run(
    exercise: Exercise,
    found: Plan,
    sandbox: Sandbox,
    turn: threading.Lock,
    judge: Judge,
    *,
    seed: int,
    seconds: float,
) -> Verdict:
    course = {f"mha_course.{name}": (_PACKAGE / f"{name}.py").read_text("utf-8") for name in supplied_modules(exercise)}
    program = found.program(course)
    try:
        with _released(turn):
            child = sandbox.open(program, seconds)
    except TimedOut:
        text = f"The cells of {exercise.name} did not finish in {seconds:g} seconds, before it was even called."
        return _verdict(exercise, "timed_out", text)
    except Crashed as crash:
        return _verdict(exercise, "crashed", f"While the cells of {exercise.name} ran, your code {crash}.")
    with child:
        loaded = _Loaded.parse(child.loaded)
        if loaded is None:
            return _verdict(exercise, "crashed", f"While the cells of {exercise.name} ran, your code {_FORGED}.")
        shown = "".join(f"\nWhile its cells ran, {line}" for line in loaded.raised[:_ERRORS_SHOWN])
        if not loaded.is_defined:
            text = f"{exercise.name} was not defined when its cells had run.{shown}"
            return _verdict(exercise, "failed", text)
        if loaded.kind == "other" or (exercise.kind, loaded.kind) == ("function", "class"):
            is_wrong = "is a class" if loaded.kind == "class" else "can't be called"
            return _verdict(exercise, "failed", f"{exercise.name} should be a {exercise.kind}, but {is_wrong}.{shown}")

        def run(case: Mapping[str, Any]) -> Mapping[str, Any]:
            with _released(turn):
                reply = child.request(case)
            return _checked(reply, case["calls"])

        verdict = judge(exercise, run, seed)
    return verdict if verdict.verdict == "passed" else replace(verdict, message=verdict.message + shown)


@dataclass(frozen=True)
class _Loaded:
    """What a child says of the program that it loaded, as `loader.load` writes it."""

    is_defined: bool
    kind: str
    raised: list[str]

    @classmethod
    def parse(cls, reply: Mapping[str, Any]) -> _Loaded | None:
        """Read it; None if it is of another form, which only learner code can have sent."""
        errors, kind, loaded = reply.get("errors"), reply.get("kind"), reply.get("loaded")
        if type(errors) is not list or type(kind) is not str or type(loaded) is not bool:
            return None
        told = [_told(error) for error in errors]
        raised = [f"{error['where']} raised {error['type']}: {error['message']}" for error in told if error is not None]
        return cls(loaded, kind, raised) if len(raised) == len(errors) else None


def _checked(reply: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Read the reply to a case.

    Raises:
        Crashed: if it is not exactly what `run_case` returns; then learner code has sent it.
    """
    results, error, printed, kept = (reply.get(name) for name in ("results", "error", "printed", "kept"))
    told = None if error is None else _told(error, stages=("build", "state", "call"))
    if (
        type(results) is not list
        or type(printed) is not int
        or printed < 0
        or type(kept) is not list
        or not all(type(name) is str for name in kept)
        or (error is None) != (told is None)
        or len(results) > len(calls)
        or (error is None and len(results) != len(calls))
        or not all(map(_is_result, results, calls))
    ):
        raise Crashed(_FORGED)
    return {
        "results": results,
        "error": told,
        "printed": min(printed, OUTPUT_LIMIT),
        "kept": [name[:99] for name in kept[:KEPT_LIMIT]],
    }


def _is_result(result: object, call: Mapping[str, Any]) -> bool:
    if type(result) is not dict or set(result) != {"output", "changed", "gradients"}:
        return False
    changed, gradients = result["changed"], result["gradients"]
    arguments = {*map(str, range(len(call["args"]))), *call["kwargs"]}
    return (
        type(changed) is list
        and all(type(name) is str and name in arguments for name in changed)
        and type(gradients) is dict
        and all(type(name) is str for name in gradients)
        and all(value is None or isinstance(value, Tensor) for value in gradients.values())
    )


def _told(error: object, stages: tuple[str, ...] = ()) -> dict[str, str] | None:
    """Read what `describe_error` wrote, no text longer than a reader wants; None if it is of another form."""
    fields = {"type", "message", "where", "code", *["stage"] * bool(stages)}
    if type(error) is not dict or set(error) != fields or not all(type(text) is str for text in error.values()):
        return None
    if stages and error["stage"] not in stages:
        return None
    return {name: text[:MESSAGE_LIMIT] for name, text in error.items()}


@contextlib.contextmanager
def _released(lock: threading.Lock) -> Iterator[None]:
    """Give up a lock for a while, the other way round from `with lock`."""
    lock.release()
    try:
        yield
    finally:
        lock.acquire()

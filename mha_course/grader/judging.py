"""Decide how good an answer is from what it gave back; learner code is never called here."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mha_course.exercises.exercise import Case, Exercise, Run, Unavailable
from mha_course.grader.diagnosis import diagnose, experiments
from mha_course.grader.outcomes import (
    Outcome,
    Raised,
    as_number,
    describe,
    is_number,
    is_sequence,
    same_values,
    wrong_gradients,
)
from mha_course.grader.verdicts import Crashed, Feedback, Part, TimedOut, Verdict, Word
from mha_course.grader.worker import KEPT_LIMIT, OUTPUT_LIMIT

# Errors after which the answer is not asked again, with the verdict and the end of "Your code …".
FATAL: dict[str, tuple[Word, str]] = {
    "SystemExit": ("crashed", "ended the program (sys.exit, exit or quit)"),
    "MemoryError": ("crashed", "needed more memory than there is"),
    "TimedOut": ("timed_out", "did not finish in time"),
    "KeyboardInterrupt": ("failed", "was interrupted (KeyboardInterrupt)"),
    "PrintedTooMuch": ("failed", f"printed more than {OUTPUT_LIMIT:,} characters and was stopped; remove its prints"),
}


KIND = 1  # the rank of a result of the wrong kind: up to here no section of the book helps


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong in one case."""

    rank: float  # the more general, the lower: what is told first
    rule: str
    evidence: str


def judge(exercise: Exercise, run: Run, seed: int) -> Verdict:
    """Run an exercise's cases and decide.

    Args:
        exercise: what was asked.
        run: runs one case (`Case.message`) on the learner's code and returns what `run_case` returns; may raise
            TimedOut or Crashed.
        seed: of the inputs.

    Returns:
        The verdict, with feedback on the most general failure, shown on the smallest input. A mistake of the
        grader's own ends in `grader_error`, which is not the learner's fault and no zero.
    """
    try:
        return _judge(exercise, run, seed)
    except TimedOut:  # the clock of a notebook may strike while nothing of the learner's runs
        message = f"{FATAL['TimedOut'][1].capitalize()}; nothing else was found out."
        return Verdict(exercise.name, "timed_out", 0.0, exercise.points, message)
    except Unavailable as error:
        return Verdict(exercise.name, "not_gradable", None, exercise.points, str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"The grader itself failed, which is not your code's fault: {type(error).__name__}: {error} "
            f"({Path(last.filename).name}, line {last.lineno}). Please report this with your code; no mark was given."
        )
        return Verdict(exercise.name, "grader_error", None, exercise.points, message)


def _judge(exercise: Exercise, run: Run, seed: int) -> Verdict:
    outcomes: list[Outcome] = []
    failures: dict[int, Failure] = {}
    advised: list[Case] = []
    stopped: tuple[Word, str] | None = None
    plan = experiments(exercise, seed)
    for number, (case, expected) in enumerate(plan):
        try:
            outcome = Outcome.parse(run(case.message()))
        except TimedOut:
            stopped = FATAL["TimedOut"]
        except Crashed as crash:
            stopped = ("crashed", str(crash))
        else:
            if outcome.error is not None and outcome.error.type in FATAL:
                stopped = FATAL[outcome.error.type]
            outcomes.append(outcome)
            failure = find_failure(exercise, case, outcome, expected)
            if failure is not None and case.advice:
                advised.append(case)
            elif failure is not None:
                failures[number] = failure
        if stopped is not None:
            evidence = (
                f"on {case.label} your code {stopped[1]}{_place(outcomes[number] if len(outcomes) > number else None)}"
            )
            return _stopped(exercise, plan, failures, number, stopped[0], evidence)
    notes = _notes(exercise, outcomes, [] if failures else advised)
    at_work = _at_work(exercise, run, outcomes)
    if not failures:
        parts = tuple(Part(part.name, part.points, part.points) for part in exercise.parts)
        message = " ".join(filter(None, ("Right, in every case that was tried.", at_work, *notes)))
        return Verdict(exercise.name, "passed", exercise.points, exercise.points, message, parts=parts, notes=notes)
    if all(outcome.error is not None and outcome.error.type == "NotImplementedError" for outcome in outcomes):
        message = f"Not attempted yet: it still raises NotImplementedError{_place(outcomes[0])}."
        return Verdict(
            exercise.name, "not_attempted", 0.0, exercise.points, message, parts=_parts(exercise, plan, failures)
        )
    return _fell_short(exercise, seed, plan, outcomes, failures, at_work, notes)


def _at_work(exercise: Exercise, run: Run, outcomes: Sequence[Outcome]) -> str:
    """Try the answer at work, if it has run at all."""
    if exercise.aftermath is None or any(outcome.error is not None for outcome in outcomes):
        return ""
    try:
        return exercise.aftermath(run)
    except (TimedOut, Crashed):  # what it was worth is known by now
        return ""


def _fell_short(
    exercise: Exercise,
    seed: int,
    plan: Sequence[tuple[Case, Outcome]],
    outcomes: Sequence[Outcome],
    failures: Mapping[int, Failure],
    at_work: str,
    notes: tuple[str, ...],
) -> Verdict:
    failed = {plan[number][0].part for number in failures}
    first_part, section = next((part.name, part.section) for part in exercise.parts if part.name in failed)
    numbers = [number for number in failures if plan[number][0].part == first_part]
    shown = min(numbers, key=lambda number: (failures[number].rank, plan[number][0].size))
    known = diagnose(exercise, seed, outcomes, numbers, shown)
    failure = failures[shown]
    # What an exercise to be repaired was handed out with is for the learner to find.
    named = None if exercise.task == "repair" and known is exercise.misconceptions[0] else known
    feedback = Feedback(
        rule=failure.rule,
        evidence=f"On {plan[shown][0].label}: {failure.evidence.rstrip('.')}{_place(outcomes[shown])}.",
        misconception=known.name if known else None,
        explanation=named.explanation if named else "",
        section=named.section if named else section if failure.rank > KIND else "",
        at_work=at_work,
        introduction=(
            "So does a test behave that has this gap (yours may have another)"
            if exercise.task == "catch"
            else "This is how a known slip behaves"
        ),
    )
    parts = _parts(exercise, plan, failures)
    points = sum(part.points for part in parts)
    return Verdict(
        exercise.name,
        "partly" if points else "failed",
        points,
        exercise.points,
        explain(exercise.name, feedback, notes),
        feedback.misconception,
        parts,
        feedback,
        notes,
    )


def _stopped(
    exercise: Exercise,
    plan: Sequence[tuple[Case, Outcome]],
    failures: Mapping[int, Failure],
    number: int,
    word: Word,
    evidence: str,
) -> Verdict:
    """Give what was earned before the answer ended, and say how it ended."""
    unseen = {later: Failure(0, "", "") for later in range(number, len(plan))}
    parts = _parts(exercise, plan, {**failures, **unseen})
    points = sum(part.points for part in parts)
    feedback = Feedback("The code ends by itself and returns a result.", f"{evidence[0].upper()}{evidence[1:]}.")
    return Verdict(
        exercise.name,
        word,
        points,
        exercise.points,
        explain(exercise.name, feedback, ()),
        parts=parts,
        feedback=feedback,
    )


def _parts(
    exercise: Exercise, plan: Sequence[tuple[Case, Outcome]], failures: Mapping[int, Failure]
) -> tuple[Part, ...]:
    failed = {plan[number][0].part for number in failures}
    core = exercise.parts[0].name
    return tuple(
        Part(part.name, 0.0, part.points, waits=part.name != core)
        if core in failed
        else Part(part.name, 0.0 if part.name in failed else part.points, part.points)
        for part in exercise.parts
    )


def explain(name: str, feedback: Feedback, notes: Sequence[str]) -> str:
    """Return feedback as plain text: what should hold, what shows that it does not, the cause, how to go on."""
    lines = [feedback.rule, feedback.evidence, *filter(None, [feedback.at_work])]
    if feedback.explanation:
        lines.append(f"{feedback.introduction}, “{feedback.title}”: {feedback.explanation}")
    if feedback.section:
        lines.append(f"Read {place(feedback.section)} of the book.")
    return "\n".join((*lines, f"For a hint: hint({name!r}), or mha-course hint {name}.", *notes))


def place(section: str) -> str:
    """Name a section of the book, given as page#anchor, in words.

    >>> place("multi_head#masks-and-heads")
    'the section “masks and heads” on the page multi_head'
    """
    page, _, anchor = section.partition("#")
    return f"the section “{anchor.replace('-', ' ')}” on the page {page}"


def find_failure(exercise: Exercise, case: Case, outcome: Outcome, expected: Outcome) -> Failure | None:
    """Return the most general thing that is wrong, or None."""
    return next(_failures(exercise, case, outcome, expected), None)


def _failures(exercise: Exercise, case: Case, outcome: Outcome, expected: Outcome) -> Iterator[Failure]:
    rule = next(part.rule for part in exercise.parts if part.name == case.part)
    should = f"{exercise.name} should {rule}."
    if case.accepts is not None:
        yield from _wrong_opinions(case, outcome, should)
        return
    if case.expects_error or outcome.error is not None:
        yield from _wrong_endings(case, outcome, should)
        return
    for number, (output, right) in enumerate(zip(outcome.outputs, expected.outputs, strict=True)):
        for failure in _wrong_kind(output, right, should, _types(case), exercise.results):
            yield replace(failure, evidence=f"{_which(case, number)}{failure.evidence}")
        if outcome.changed[number]:
            changed = [_argument(exercise, name) for name in outcome.changed[number]]
            what = f"{', '.join(changed)} {'were' if len(changed) > 1 else 'was'} changed in place"
            yield Failure(4, "The input stays as it was: the caller may still need it.", what)
    for number, property_ in enumerate(case.holds):
        evidence = property_.evidence(outcome.outputs)
        if evidence is not None:
            yield Failure(6 + number / 100, property_.rule, evidence)
    if case.compare:
        for number, (output, right) in enumerate(zip(outcome.outputs, expected.outputs, strict=True)):
            if not same_values(output, right, case.tolerance):
                difference = _first_difference(output, right, case.tolerance, exercise.results)
                yield Failure(7, should, f"{_which(case, number)}{difference}")
    mode = f" in {'training' if case.train else 'evaluation'} mode" if case.build is not None else ""
    for name, what in wrong_gradients(case, outcome, expected).items():
        yield Failure(8, should, f"the gradient of {_argument(exercise, name)} is {what}{mode}")


def _wrong_endings(case: Case, outcome: Outcome, should: str) -> Iterator[Failure]:
    """Say where an error was raised that should not be, or none that should."""
    if case.expects_error:
        if outcome.error is None:
            results = f" and returned {describe(outcome.outputs[-1])}" if outcome.outputs else ""
            yield Failure(KIND + 1, should, f"your code raised no error{results}")
        elif outcome.error.type not in case.expects_error:
            yield Failure(
                KIND + 1, should, f"it should raise a ValueError that says so, but raised {_raised(outcome.error)}"
            )
    elif (error := outcome.error) is not None:
        text = _raised(error)
        if error.stage == "state":
            rule = "It has the parts that the task names, as attributes of these names and shapes."
            yield Failure(0, rule, f"setting its parameters raised {text}")
        else:
            doing = "making it" if error.stage == "build" else "your code"
            yield Failure(0, should, f"{doing} raised {text}")


def _which(case: Case, number: int) -> str:
    """Say which of several calls is meant."""
    return "" if len(case.calls) == 1 else f"in call {number + 1} of {len(case.calls)}, "


def _wrong_opinions(case: Case, outcome: Outcome, should: str) -> Iterator[Failure]:
    """Say where a test that the learner wrote lets a wrong implementation pass, or refuses a right one."""
    if case.accepts and outcome.error is not None:
        raised = _raised(outcome.error).splitlines()[0]  # a library's comparison says much more than which number
        yield Failure(KIND + 1, should, f"your test refused it, though it is right: it raised {raised}")
    if not case.accepts and outcome.error is None:
        told = outcome.outputs[-1] if outcome.outputs else None
        hint = "" if told is None else f" (it returned {describe(told)}; a test says no by raising, as `assert` does)"
        yield Failure(KIND + 1, should, f"your test let it pass, though it is wrong{hint}")


def _types(case: Case) -> set[torch.dtype]:
    return {arg.dtype for call in case.calls for arg in call.args if isinstance(arg, Tensor)}


def _wrong_kind(
    output: Any, right: Any, should: str, types: Collection[torch.dtype], names: Sequence[str] = ()
) -> Iterator[Failure]:
    if is_number(right):
        if as_number(output) is None:
            yield Failure(1, "The result is a number.", f"your code returned {describe(output)}")
        return
    if isinstance(right, (tuple, list)):
        if not is_sequence(output, right) or (type(right) is tuple and len(output) != len(right)):
            yield Failure(1, f"The result is {describe(right)}.", f"your code returned {describe(output)}")
        elif len(output) != len(right):
            yield Failure(2, should, f"the list should have {len(right)} entries, but has {len(output)}")
        else:
            whole = Failure(KIND, f"The result is {describe(right)}.", f"your code returned {describe(output)}")
            for name, one, other in zip_longest(names, output, right):
                for failure in _wrong_kind(one, other, should, types):
                    where = f"in the {name}, " if name else ""
                    yield whole if failure.rank == KIND else replace(failure, evidence=f"{where}{failure.evidence}")
        return
    if type(output) is not type(right):
        yield Failure(1, f"The result is {describe(right)}.", f"your code returned {describe(output)}")
    elif isinstance(right, Tensor):
        if output.shape != right.shape:
            yield Failure(2, should, f"the shape should be {tuple(right.shape)}, but is {tuple(output.shape)}")
        elif output.dtype != right.dtype:
            asked = "of the input" if right.dtype in types else "that was asked for"
            rule = f"The result has the type {asked}."
            yield Failure(3, rule, f"it should be {right.dtype}, but is {output.dtype}")
        elif right.isfinite().all() and not output.isfinite().all():
            what = "NaN" if output.isnan().any() else "infinite"
            many = f"{int((~output.isfinite()).sum())} of {output.numel()} numbers are {what}"
            yield Failure(5, should, many if output.dim() else f"the result is {what}")


def _first_difference(output: Any, right: Any, tolerance: float, names: Sequence[str]) -> str:
    if isinstance(right, (tuple, list)):
        for number, (one, other) in enumerate(zip(output, right, strict=True)):
            if not same_values(one, other, tolerance):
                where = f"the {names[number]}" if names else f"entry {number} of the {type(right).__name__}"
                return f"in {where}, {_first_difference(one, other, tolerance, ())}"
    if is_number(right):
        return f"the number should be {right:.5g}, but is {as_number(output):.5g}"
    if not isinstance(right, Tensor):
        return f"your code returned {output!r}"
    off = (output.double() - right.double()).abs()
    finite = right[right.isfinite()].double()
    slack = tolerance * ((float(finite.abs().max()) if len(finite) else 0.0) + 1e-6)
    wrong = ~((off <= slack) | (output == right) | (output.isnan() & right.isnan()))
    index = tuple(wrong.nonzero()[0].tolist())
    got, wanted = (_shown(x[index]) for x in (output, right))
    if got == wanted:
        got, wanted = (_shown(x[index], digits=12) for x in (output, right))
    if not right.dim():
        return f"the result is {got} and should be {wanted}"
    kind = "entries" if right.dtype == torch.bool else "numbers"
    return (
        f"{int(wrong.sum())} of {right.numel()} {kind} are wrong; the first, at {list(index)}, "
        f"is {got} and should be {wanted}"
    )


def _shown(value: Tensor, digits: int = 5) -> str:
    return f"{value.item():.{digits}g}" if value.is_floating_point() else str(value.item())


def _place(outcome: Outcome | None) -> str:
    if outcome is None or outcome.error is None or not outcome.error.where:
        return ""
    code = f": {outcome.error.code}" if outcome.error.code else ""
    return f" ({outcome.error.where}{code})"


def _raised(error: Raised) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _argument(exercise: Exercise, name: str) -> str:
    """Name an argument that was given by position as the exercise names it."""
    return exercise.arguments[int(name)] if name.isdigit() else name


def _notes(exercise: Exercise, outcomes: Sequence[Outcome], advised: Sequence[Case]) -> tuple[str, ...]:
    """Say what costs nothing here and would be in the way later."""
    notes = list(dict.fromkeys(case.advice for case in advised))
    printed = max((outcome.printed for outcome in outcomes), default=0)
    if printed:
        notes.append(f"It prints while it runs ({printed:,} characters); remove the prints before you hand it in.")
    kept = list(dict.fromkeys(name for outcome in outcomes for name in outcome.kept))
    if kept and not exercise.keeps_state:
        names = ", ".join(kept[:KEPT_LIMIT])
        notes.append(
            f"It remembers something from one call to the next ({names}). The next call may bring another batch, length "
            "or mask: return what is wanted instead, and keep on self only what `__init__` makes."
        )
    return tuple(notes)

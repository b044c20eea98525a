"""Recognise which known wrong answer behaves as the learner's does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from mha_course.exercises.exercise import Case, Exercise, Misconception
from mha_course.grader.outcomes import Outcome, alike
from mha_course.grader.worker import run_case


@cache
def experiments(exercise: Exercise, seed: int) -> tuple[tuple[Case, Outcome], ...]:
    """Return the cases of an exercise for a seed, each with what the reference gives."""
    return tuple(
        (case, Outcome.parse(run_case(exercise.reference, case.message(), _nobodys)))
        for case in exercise.cases(torch.Generator().manual_seed(seed))
    )


@cache
def _outcome(exercise: Exercise, wrong: Callable[..., Any], seed: int, number: int) -> Outcome:
    case, _ = experiments(exercise, seed)[number]
    return Outcome.parse(run_case(wrong, case.message(), _nobodys))


def diagnose(
    exercise: Exercise, seed: int, outcomes: Sequence[Outcome], to_explain: Sequence[int], shown: int
) -> Misconception | None:
    """Find the misconception that behaves as the learner's code does.

    Args:
        exercise: the exercise.
        seed: of its cases.
        outcomes: what the learner's code gave, in the order of the cases.
        to_explain: the numbers of the cases that it failed and that are to be explained.
        shown: the one of these that the learner is shown.

    Returns:
        Among those that agree with the learner on every case to be explained, the one that agrees on most cases overall.
        If there is none: the one that agrees on most of the cases to be explained, if these are more than half and the
        one that is shown is among them; two wrong results don't agree by chance, so that slip is there, beside another.
        Else None. Errors of one type do agree by chance: where one is shown, everything has to be explained, and half
        of all else to agree.
    """
    plan = experiments(exercise, seed)
    others = set(range(len(outcomes))).difference(to_explain)

    def agrees(wrong: Callable[..., Any], number: int) -> bool:
        return alike(plan[number][0], outcomes[number], _outcome(exercise, wrong, seed, number))

    best, most = None, (len(to_explain) // 2, len(plan))
    for misconception in exercise.misconceptions:
        for wrong in misconception.wrong:
            if not agrees(wrong, shown):
                continue
            explained = sum(agrees(wrong, number) for number in to_explain)
            by_chance = outcomes[shown].error is not None or plan[shown][0].accepts is not None
            if explained < len(to_explain) and by_chance:
                continue
            besides = sum(agrees(wrong, number) for number in others)
            if outcomes[shown].error is not None and 2 * besides < len(others):
                continue  # and it goes wrong where the learner does not
            if (explained, besides) > most:
                best, most = misconception, (explained, besides)
    return best


def _nobodys(filename: str) -> bool:
    return False

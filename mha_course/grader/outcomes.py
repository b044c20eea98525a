"""What came back from a case, checked to be of the form that was asked for, and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_course.exercises.exercise import Case
from mha_course.exercises.properties import close
from mha_course.grader.verdicts import Crashed
from mha_course.grader.worker import Foreign


@dataclass(frozen=True)
class Raised:
    """An exception in learner code."""

    stage: str  # "build", "state" or "call"
    type: str
    message: str
    where: str
    code: str


@dataclass(frozen=True)
class Outcome:
    """The results of a case's calls, as far as it came, and what ended it early."""

    outputs: tuple[Any, ...]
    changed: tuple[tuple[str, ...], ...]
    gradients: tuple[Mapping[str, Tensor | None], ...]
    error: Raised | None
    printed: int
    kept: tuple[str, ...] = ()  # what the learner's own objects remember of a call

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> Outcome:
        """Read what a worker sent.

        Raises:
            Crashed: if it is not of the form that `run_case` returns; learner code may have sent it.
        """
        try:
            results = message["results"]
            error = message["error"]
            outcome = cls(
                outputs=tuple(result["output"] for result in results),
                changed=tuple(tuple(str(name) for name in result["changed"]) for result in results),
                gradients=tuple(dict(result["gradients"]) for result in results),
                error=None if error is None else Raised(**{name: str(text) for name, text in error.items()}),
                printed=int(message["printed"]),
                kept=tuple(str(name) for name in message["kept"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            outcome = None
        if outcome is None or not all(
            value is None or isinstance(value, Tensor) for found in outcome.gradients for value in found.values()
        ):
            raise Crashed("sent back something that is not a result")
        return outcome


def describe(value: Any, alone: bool = True) -> str:
    """Say what kind of thing a result is, for a learner."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: ({', '.join(describe(item, alone=False) for item in value)})"
    if value is None:
        return "None (is there a return?)" if alone else "None"
    if type(value) in (bool, int, float):
        return f"the number {value:.5g}" if type(value) is float else f"{'the number ' * (type(value) is int)}{value}"
    if isinstance(value, Foreign):
        return f"an object of type {value.type_name}"
    return f"a {type(value).__name__}"


def same_values(one: Any, other: Any, tolerance: float) -> bool:
    """Say whether two results agree in structure, shape, type and value (NaN agrees with NaN).

    A number may be an int, a float or a tensor without axes; a list may be a tuple.
    """
    if is_number(other) and (number := as_number(one)) is not None:
        return close(torch.tensor(number, dtype=torch.float64), torch.tensor(other, dtype=torch.float64), tolerance)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and close(one, other, tolerance)
    if is_sequence(one, other):
        return len(one) == len(other) and all(same_values(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def is_number(value: Any) -> bool:
    """Say whether a value is a plain number; a truth value is none."""
    return type(value) in (int, float)


def as_number(value: Any) -> float | None:
    """Read a number, or a tensor without axes that holds one; None for everything else."""
    if isinstance(value, Tensor) and value.dim() == 0 and value.dtype != torch.bool:
        return float(value)
    return float(value) if is_number(value) else None


def is_sequence(one: Any, right: Any) -> bool:
    """Say whether a result is of the sequence type that was asked for; where a list was, a tuple will do."""
    return type(right) in (list, tuple) and (type(one) is type(right) or (type(right) is list and type(one) is tuple))


def wrong_gradients(case: Case, outcome: Outcome, expected: Outcome) -> dict[str, str]:
    """Return the names whose gradient is wrong, each with "missing", "not finite" or "wrong"."""
    wrong: dict[str, str] = {}
    for found, right in zip(outcome.gradients, expected.gradients, strict=True):
        largest = max((float(value.abs().max()) for value in right.values() if value is not None), default=0.0)
        for name, wanted in right.items():
            if wanted is None:
                continue
            got = found.get(name)
            slack = 10 * case.tolerance * largest
            if got is None:
                if wanted.abs().max() > slack:
                    wrong[name] = "missing"
            elif not got.isfinite().all():
                wrong[name] = "not finite"
            elif got.shape != wanted.shape or (got.double() - wanted.double()).abs().max() > slack:
                wrong[name] = "wrong"
    return wrong


def alike(case: Case, one: Outcome, other: Outcome) -> bool:
    """Say whether two outcomes of a case tell of the same behaviour."""
    if case.accepts is not None:
        # A right implementation may be refused for a reason, or because the test itself is broken.
        broken = [case.accepts and o.error is not None and o.error.type != "AssertionError" for o in (one, other)]
        return broken[0] == broken[1] and (one.error is None, _answers(one)) == (other.error is None, _answers(other))
    if one.error is not None or other.error is not None:
        return (
            one.error is not None
            and other.error is not None
            and (one.error.type, one.error.stage) == (other.error.type, other.error.stage)
            and len(one.outputs) == len(other.outputs)
        )
    if one.changed != other.changed or not same_values(_known(one), _known(other), 10 * case.tolerance):
        return False
    if case.compare:
        return same_values(one.outputs, other.outputs, case.tolerance)
    return _broken(case, one) == _broken(case, other)


def _answers(outcome: Outcome) -> bool:
    """Whether a test gave back a truth value, which nobody reads."""
    return any(type(output) is bool or isinstance(output, Tensor) for output in outcome.outputs)


def _known(outcome: Outcome) -> tuple[tuple[Tensor | None, ...], ...]:
    return tuple(tuple(found[name] for name in sorted(found)) for found in outcome.gradients)


def _broken(case: Case, outcome: Outcome) -> list[str]:
    """Return how the case's own properties are broken, leaving out the numbers, which chance decides."""
    try:
        found = [rule.evidence(outcome.outputs) for rule in case.holds]
    except (AttributeError, IndexError, RuntimeError, TypeError):  # outputs of another type or shape
        return ["other outputs"]
    return [re.sub(r"[-\d.]+", "", evidence) for evidence in found if evidence is not None]

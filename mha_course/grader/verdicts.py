"""What a check can end in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Word = Literal["passed", "partly", "failed", "not_attempted", "timed_out", "crashed", "not_gradable", "grader_error"]


class TimedOut(Exception):
    """Learner code did not finish in time."""


class Crashed(Exception):
    """The process that ran learner code ended; the text says how, as the end of "your code …"."""


@dataclass(frozen=True)
class Part:
    """How one part of an exercise went; points are earned whole or not at all."""

    name: str
    points: float
    max_points: float
    waits: bool = False  # it is not looked at before the first part is right


@dataclass(frozen=True)
class Feedback:
    """What a learner is told of a failed check, in the order in which it is told."""

    rule: str  # what should hold and does not
    evidence: str  # the smallest input that shows it, and what came
    misconception: str | None = None  # its name
    explanation: str = ""  # what the slip is
    section: str = ""  # where to read on, a page and an anchor of the book
    at_work: str = ""  # what comes of it where it is put to work
    introduction: str = ""  # of the explanation

    @property
    def title(self) -> str:
        """The misconception's name in words."""
        return (self.misconception or "").replace("_", " ")


@dataclass(frozen=True)
class Verdict:
    """The result of one exercise.

    `points` is None where no mark can be given (`not_gradable`, `grader_error`): no error is ever a zero.
    """

    exercise: str
    verdict: Word
    points: float | None
    max_points: float
    message: str
    misconception: str | None = None
    parts: tuple[Part, ...] = ()
    feedback: Feedback | None = None
    notes: tuple[str, ...] = field(default=())

"""What an exercise is made of: parts worth points, cases to run, properties that must hold, known misconceptions."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Generator, Tensor


class Unavailable(Exception):
    """An exercise needs what is not installed; the text says what, and how to get it, in one sentence."""


@dataclass(frozen=True)
class Given:
    """A function, or an object, that the learner's code is given: a model, say, or an implementation to be tested.

    It crosses to the other process as source text and is made there. Within one case equal ones are one object.
    """

    source: str
    name: str
    args: tuple[Any, ...] | None = None  # what it is called with once, to make the object; None: it is given as it is
    tag: str = ""  # tells apart two objects that are made alike

    def message(self) -> dict[str, Any]:
        """Return it as plain values."""
        args = None if self.args is None else tuple(map(_plain, self.args))
        return {"given": self.name, "source": self.source, "args": args, "tag": self.tag}


def given(
    target: Callable[..., Any], *using: Callable[..., Any], args: tuple[Any, ...] | None = None, tag: str = ""
) -> Given:
    """Make a `Given` out of a function or class of the exercise's file.

    Args:
        target: what is given. Its source is sent, so it may use only its arguments, `math`, `torch`, `nn`, `F`
            (torch.nn.functional), `Tensor`, and what `using` names.
        using: functions and classes that it uses, in an order in which they can be defined.
        args: what it is called with once, to make the object that is given.
        tag: tells apart two objects that are made alike.
    """
    source = "\n\n".join(textwrap.dedent(inspect.getsource(part)) for part in (*using, target))
    return Given(source, target.__name__, args, tag)


def _plain(value: Any) -> Any:
    return value.message() if isinstance(value, Given) else value


@dataclass(frozen=True)
class Property:
    """Something that every right answer has, whatever its style.

    `evidence` gets the outputs of a case's calls, all of the right type and shape, and returns None where the
    property holds, or one sentence that shows where it does not.
    """

    rule: str
    evidence: Callable[[Sequence[Any]], str | None]


@dataclass(frozen=True)
class Call:
    """One call of the learner's function, class or method."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    backward: bool = False  # also ask for the gradients of a fixed weighted sum of the outputs
    train: bool | None = None  # switch the instance's mode first; None leaves it

    def message(self) -> dict[str, Any]:
        """Return the call as plain values; `aliases` says which arguments are one and the same tensor."""
        first = {id(arg): str(i) for i, arg in reversed(list(enumerate(self.args))) if isinstance(arg, Tensor)}
        aliases = {str(i): first[id(arg)] for i, arg in enumerate(self.args) if id(arg) in first}
        return {
            "args": tuple(map(_plain, self.args)),
            "kwargs": {name: _plain(value) for name, value in self.kwargs.items()},
            "aliases": {name: earlier for name, earlier in aliases.items() if name != earlier},
            "method": self.method,
            "backward": self.backward,
            "train": self.train,
        }


@dataclass(frozen=True)
class Case:
    """One experiment, described by data alone, so that it can be sent to a process that is not trusted."""

    part: str  # the part of the exercise it belongs to
    label: str  # the input, as a learner would describe it
    calls: tuple[Call, ...]
    build: Call | None = None  # for a class: how an instance is made
    state: Mapping[str, Tensor] = field(default_factory=dict)  # parameters to copy into the instance
    train: bool = False  # the instance's mode
    through: Given | None = None  # takes the learner's object and returns what is called in its place
    expects_error: tuple[str, ...] = ()  # the input is not allowed: exceptions by which it may be refused
    accepts: bool | None = None  # for a test that the learner wrote: whether it should let what it is given pass
    advice: str = ""  # said where the case fails, which then costs nothing
    compare: bool = True  # the values must be the reference's; False where chance is at work
    holds: tuple[Property, ...] = ()
    tolerance: float = 1e-4  # relative to the largest number in the right output

    @property
    def size(self) -> int:
        """Numbers that go in: the smallest failing case is the one that is shown."""
        return sum(arg.numel() for call in self.calls for arg in call.args if isinstance(arg, Tensor))

    def message(self) -> dict[str, Any]:
        """Return the case as plain values, as `run_case` takes it."""
        return {
            "build": None if self.build is None else self.build.message(),
            "state": dict(self.state),
            "train": self.train,
            "through": None if self.through is None else self.through.message(),
            "seed": 0,
            "calls": [call.message() for call in self.calls],
        }


@dataclass(frozen=True)
class Part:
    """A part of an exercise. The first is the core: without it the others earn nothing."""

    name: str
    points: float
    rule: str  # what a right answer does here, as the end of "… should "
    section: str  # where to read on: page#anchor


@dataclass(frozen=True, eq=False)
class Misconception:
    """A wrong answer that people really give, and what to tell them."""

    name: str
    explanation: str  # what the slip is and why it matters, without the solution
    section: str  # where to read on: page#anchor
    wrong: tuple[Callable[..., Any], ...]  # the wrong answer itself, once for each way in which it behaves
    sources: tuple[str, ...] = ()  # where it was made in public


Run = Callable[
    [Mapping[str, Any]], Mapping[str, Any]
]  # runs a case's message on the learner's code, as `run_case` does


@dataclass(frozen=True, eq=False)
class Exercise:
    """Everything there is to say about one exercise; its name is the name of the object that the learner writes."""

    name: str
    chapter: str
    kind: Literal["function", "class"]
    minutes: int  # what a learner who has read the chapter needs
    parts: tuple[Part, ...]
    hints: tuple[str, str, str]  # a question, a pointer, nearly the answer
    cases: Callable[[Generator], Iterable[Case]]
    reference: Callable[..., Any]
    misconceptions: tuple[Misconception, ...]
    results: tuple[str, ...] = ()  # the names of several results
    task: Literal["write", "repair", "catch", "plug"] = "write"
    imports: tuple[str, ...] | None = None  # modules of the course that an answer may use; None: see `allowed_modules`
    keeps_state: bool = False  # objects of the class are meant to remember earlier calls
    aftermath: Callable[[Run], str] | None = None  # tries the answer at work and says, in sentences, what comes of it

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what the function, or the class's call, is given."""
        called: Any = self.reference if self.kind == "function" else self.reference.forward  # type: ignore[attr-defined]
        names = inspect.signature(called).parameters
        return tuple(name for name in names if name != "self")

    @property
    def points(self) -> float:
        """Points for a full answer."""
        return sum(part.points for part in self.parts)

    def numbered_hints(self, number: int) -> list[str]:
        """The first `number` hints, a line each."""
        return [
            f"Hint {position} of {len(self.hints)}: {text}"
            for position, text in enumerate(self.hints[:number], start=1)
        ]

"""What every figure that computes has in Python: its state as traits, and its place in a page."""

from __future__ import annotations

import math
from typing import Any

import anywidget
import traitlets

from mha_course.figures.live import bundle


class LiveFigure(anywidget.AnyWidget):
    """A figure that a reader can change; state that the reader changes is there in Python, and the other way round.

    A subclass names its module (`name`) and has a trait, tagged `sync=True`, for each part of its state.
    """

    name = ""
    parts: tuple[str, ...] = ()  # of the state, in the order of definition

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "name" in vars(cls):  # traitlets makes subclasses of its own, which have a trait there
            cls._esm = bundle.for_notebook(cls.name)
            cls._css = bundle.STYLE.read_text("utf-8") + bundle.style(cls.name)
            traits = {name: value for name, value in vars(cls).items() if isinstance(value, traitlets.TraitType)}
            cls.parts = tuple(name for name, trait in traits.items() if trait.metadata.get("sync"))
        super().__init_subclass__(**kwargs)

    def __init__(self, **state: Any) -> None:
        unknown = [name for name in state if name not in self.parts]
        if unknown:
            raise ValueError(f"{type(self).__name__} has no {unknown[0]!r}; what can be set is {', '.join(self.parts)}")
        super().__init__(**state)
        self.on_msg(self._send_piece)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Add what a page without a kernel shows: the same figure as an element, with the state of now."""
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is None:
            return None
        data, metadata = shown
        state = {name: getattr(self, name) for name in self.parts}
        data["text/html"] = bundle.element(self.name, state)
        data["text/plain"] = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in state.items())})"
        return data, metadata

    def _send_piece(self, _widget: Any, message: Any, _buffers: Any) -> None:
        found = bundle.pieces(self.name)
        index = message.get("piece")
        if isinstance(index, int) and 0 <= index < len(found):
            self.send({"piece": index}, buffers=[found[index]])


class Number(traitlets.Float[float, float]):
    """A number between two limits; one in an array or a tensor is taken over."""

    def validate(self, obj: Any, value: Any) -> float:
        """Take over a number between the limits, and refuse all else in one sentence."""
        value = plain(value)
        if not (is_number(value) and self.min <= value <= self.max):
            raise ValueError(f"{self.name} must be a number from {self.min} to {self.max}, but it is {value!r}")
        return float(value)


class Vector(traitlets.List[float]):
    """A list of numbers, of one length; arrays and tensors are taken over as lists."""

    def __init__(self, default: list[float], info: str, *, largest: float = math.inf, **kwargs: Any) -> None:
        self.size, self.largest, self.meant = len(default), largest, info
        self.kind = "numbers" if math.isinf(largest) else f"numbers from {-largest:g} to {largest:g}"
        super().__init__(trait=traitlets.Float(), default_value=default, **kwargs)

    def validate(self, obj: Any, value: Any) -> list[float]:
        """Take over what is a row of so many numbers, and refuse all else in one sentence."""
        value = plain(value)
        if not self.fits(value):
            raise ValueError(
                f"{self.name} must be {self.meant}, a list of {self.size} {self.kind}, but it is {value!r}"
            )
        return [float(number) for number in value]

    def fits(self, value: Any) -> bool:
        """Tell whether a value is a row of so many numbers, none too large."""
        return (
            isinstance(value, list)
            and len(value) == self.size
            and all(is_number(number) and abs(number) <= self.largest for number in value)
        )


class Matrix(traitlets.List[list[float]]):
    """A list of rows of numbers, all of one length; arrays and tensors are taken over as lists."""

    def __init__(self, default: list[list[float]], info: str, *, largest: float = math.inf, **kwargs: Any) -> None:
        self.row = Vector(default[0], info, largest=largest)
        self.rows, self.meant = len(default), info
        super().__init__(default_value=default, **kwargs)

    def validate(self, obj: Any, value: Any) -> list[list[float]]:
        """Take over what has so many rows and columns, and refuse all else in one sentence."""
        value = plain(value)
        if not (isinstance(value, list) and len(value) == self.rows and all(map(self.row.fits, value))):
            raise ValueError(
                f"{self.name} must be {self.meant}, {self.rows} rows of {self.row.size} {self.row.kind}, but it is {value!r}"
            )
        return [[float(number) for number in row] for row in value]


def plain(value: Any) -> Any:
    """Make lists of an array, a tensor or a tuple."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")

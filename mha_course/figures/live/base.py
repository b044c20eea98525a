"""What every figure that computes has in Python: its state as traits, and its place in a page."""

from __future__ import annotations

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


class Vector(traitlets.List[float]):
    """A list of numbers, of one length; arrays and tensors are taken over as lists."""

    def __init__(self, default: list[float], info: str, **kwargs: Any) -> None:
        self.size = len(default)
        self.meant = info
        super().__init__(trait=traitlets.Float(), default_value=default, **kwargs)

    def validate(self, obj: Any, value: Any) -> list[float]:
        """Take over what is a row of so many numbers, and refuse all else in one sentence."""
        value = plain(value)
        if not (isinstance(value, list) and len(value) == self.size and all(map(is_number, value))):
            raise ValueError(f"{self.name} must be {self.meant}, a list of {self.size} numbers, but it is {value!r}")
        return [float(number) for number in value]


class Matrix(traitlets.List[list[float]]):
    """A list of rows of numbers, all of one length; arrays and tensors are taken over as lists."""

    def __init__(self, default: list[list[float]], info: str, **kwargs: Any) -> None:
        self.rows, self.columns = len(default), len(default[0])
        self.meant = info
        super().__init__(default_value=default, **kwargs)

    def validate(self, obj: Any, value: Any) -> list[list[float]]:
        """Take over what has so many rows and columns, and refuse all else in one sentence."""
        value = plain(value)
        rows = value if isinstance(value, list) else []
        good = len(rows) == self.rows and all(isinstance(row, list) and len(row) == self.columns for row in rows)
        if not (good and all(is_number(number) for row in rows for number in row)):
            raise ValueError(
                f"{self.name} must be {self.meant}, {self.rows} rows of {self.columns} numbers, but it is {value!r}"
            )
        return [[float(number) for number in row] for row in rows]


def plain(value: Any) -> Any:
    """Make lists of an array, a tensor or a tuple."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")

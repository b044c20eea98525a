"""Chapter 1: where a trained model looks in a cluttered picture, and what it reads there."""

from __future__ import annotations

from typing import Any

import traitlets

from mha_course.attention_intuition import PATCH, SIDE, STEP
from mha_course.figures.live.base import LiveFigure, plain

PLACES = (SIDE - PATCH) // STEP + 1  # rows and columns of places


class Place(traitlets.List[int]):
    """The row and the column of a place, counted from 0."""

    def validate(self, obj: Any, value: Any) -> list[int]:
        """Take over what is a place, and refuse all else in one sentence."""
        value = plain(value)
        if not (isinstance(value, list) and len(value) == 2 and all(type(x) is int and 0 <= x < PLACES for x in value)):
            raise ValueError(
                f"{self.name} must be a place, a row and a column from 0 to {PLACES - 1}, but it is {value!r}"
            )
        return value


class WhereItLooks(LiveFigure):
    """A dozen pictures in which a digit lies in clutter, and a `DigitFinder` that never learned from them.

    The weights come from the model (`look="model"`), or all places weigh the same (`"everywhere"`), or the reader's window alone
    counts (`"window"`). The digit lies where it has always lain (`digit_place=None`) or where it has been put, or it has been
    taken out (`without_digit`).

    >>> figure = WhereItLooks(picture=11)
    >>> figure.look, figure.window = "window", [0, 4]
    >>> figure.window = [0, 6]
    Traceback (most recent call last):
    ...
    ValueError: window must be a place, a row and a column from 0 to 5, but it is [0, 6]
    """

    name = "attention_intuition"

    picture = traitlets.Int(0, min=0, max=11).tag(sync=True)
    look = traitlets.Enum(["model", "everywhere", "window"], "model").tag(sync=True)
    window = Place(default_value=[1, 1]).tag(sync=True)
    digit_place = Place(default_value=None, allow_none=True).tag(sync=True)
    without_digit = traitlets.Bool(default_value=False).tag(sync=True)

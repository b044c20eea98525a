"""Chapter 3: self-attention step by step, with every number of every step."""

from __future__ import annotations

from typing import Any

import traitlets

from mha_course.figures.live.base import LiveFigure, Matrix, plain

MOST = 99.0
FIRST_TWO = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]  # of the four features


class _Numbers(Matrix):
    """A matrix whose numbers are small enough for a table."""

    def validate(self, obj: Any, value: Any) -> list[list[float]]:
        rows = super().validate(obj, value)
        largest = max((number for row in rows for number in row), key=abs)
        if abs(largest) > MOST:
            raise ValueError(f"{self.name} must hold numbers from {-MOST:.0f} to {MOST:.0f}, but one is {largest:g}")
        return rows


class _Flags(traitlets.List[bool]):
    """One true or false for each word; a boolean tensor is taken over as a list."""

    def validate(self, obj: Any, value: Any) -> list[bool]:
        value = plain(value)
        if not (isinstance(value, list) and len(value) == 6 and all(isinstance(flag, bool) for flag in value)):
            raise ValueError(f"{self.name} must be a list of 6 booleans, True for a real word, but it is {value!r}")
        return value


class AttentionSteps(LiveFigure):
    """The six words of the running sentence in one head of self-attention, four features in and two numbers out.

    Set an attribute and the figure follows; change a number in it and the attribute has changed. Give a whole new matrix: a
    change inside the old one is not noticed. `step` counts from 0, and 4 is the mask. What is explained is `row`, the word that asks, with
    `column`, the word that is asked, or with `entry`, one of the two numbers of a vector. `real` is True for a word and False for padding.

    >>> figure = AttentionSteps(step=4, causal=True)
    >>> figure.real = [True, True, True, False, False, False]
    >>> figure.real = [1, 1, 1, 0, 0, 0]
    Traceback (most recent call last):
    ...
    ValueError: real must be a list of 6 booleans, True for a real word, but it is [1, 1, 1, 0, 0, 0]
    """

    name = "self_attention"

    step = traitlets.Int(0, min=0, max=6).tag(sync=True)
    tokens = _Numbers(
        [[0, 0, 0, 1], [2, 0, 0, 0], [0, 0, 2, 0], [0, 1, 0, 1], [0, 0, 0, 1], [0, 2, 0, 0]], "the vectors of the words"
    ).tag(sync=True)
    query_matrix = _Numbers([[0, 0], [0, 0], [2, 0], [0, 0]], "the matrix that makes the queries").tag(sync=True)
    key_matrix = _Numbers(FIRST_TWO, "the matrix that makes the keys").tag(sync=True)
    value_matrix = _Numbers(FIRST_TWO, "the matrix that makes the values").tag(sync=True)
    causal = traitlets.Bool(default_value=False).tag(sync=True)
    real = _Flags(default_value=[True] * 6).tag(sync=True)
    projection = traitlets.Enum(["query", "key", "value"], "query").tag(sync=True)
    row = traitlets.Int(2, min=0, max=5).tag(sync=True)
    column = traitlets.Int(1, min=0, max=5).tag(sync=True)
    entry = traitlets.Int(0, min=0, max=1).tag(sync=True)

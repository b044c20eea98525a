"""Chapter 7: one encoder layer, whose boxes can be looked into, and a stack of layers; in both orders of the norms."""

from __future__ import annotations

from typing import Any

import traitlets

from mha_course.figures import tiny_vectors
from mha_course.figures.live.base import LiveFigure, Matrix

LARGEST = 10.0


class EncoderFlow(LiveFigure):
    """The six words on their way through an encoder layer of four features, and what a stack of layers makes of size and gradient.

    Set an attribute and the figure follows. `place` is the box that is looked into; `num_layers`, 1 to 24, and `seed` belong to
    the stack, whose layers are 16 features wide and have random weights.

    >>> figure = EncoderFlow(order="pre_norm", place="norm_1")
    >>> figure.residual = False
    >>> figure.x = [[11.0] * 4] * 6
    Traceback (most recent call last):
    ...
    ValueError: x must lie between -10 and 10, as layers without norms make large numbers larger still, but it holds 11.0
    """

    name = "encoder"

    x = Matrix(tiny_vectors().tolist(), "the words' vectors that come in").tag(sync=True)
    order = traitlets.Enum(["post_norm", "pre_norm"], "post_norm").tag(sync=True)
    residual = traitlets.Bool(default_value=True).tag(sync=True)
    norms = traitlets.Bool(default_value=True).tag(sync=True)
    place = traitlets.Enum(["input", "attention", "add_1", "norm_1", "feed_forward", "add_2", "norm_2"], "add_1").tag(
        sync=True
    )
    num_layers = traitlets.Int(24, min=1, max=24).tag(sync=True)
    seed = traitlets.Int(4, min=0).tag(sync=True)

    @traitlets.validate("x")
    def _keep_small(self, proposal: Any) -> list[list[float]]:
        found: list[list[float]] = proposal["value"]
        largest = max((number for row in found for number in row), key=abs)
        if abs(largest) > LARGEST:
            raise ValueError(
                f"x must lie between -10 and 10, as layers without norms make large numbers larger still, but it holds {largest}"
            )
        return found

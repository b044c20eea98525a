"""Chapter 6: how a layer is told where a token stands, in four views."""

from __future__ import annotations

from typing import Any

import traitlets

from mha_course.figures.live.base import LiveFigure, Number, Vector


class PositionExplorer(LiveFigure):
    """The table of sinusoids, dot products of positions, learned beside computed ones, and a query and a key that are turned.

    Set an attribute and the figure follows; move a slider and the attribute has changed. A pair that `width` doesn't have is
    shown as the last one.

    >>> explorer = PositionExplorer(view="rotary", query_place=3, key_place=2)
    >>> explorer.shift = 1000
    >>> explorer.width = 7
    Traceback (most recent call last):
    ...
    ValueError: width must be an even number from 2 to 32, a sine and a cosine for each pair, but it is 7
    """

    name = "positions"

    view = traitlets.Enum(["table", "distance", "learned", "rotary"], "table").tag(sync=True)
    position = traitlets.Int(6, min=0, max=63).tag(sync=True)
    pair = traitlets.Int(0, min=0, max=15).tag(sync=True)
    width = traitlets.Int(8).tag(sync=True)
    base = Number(10_000.0, min=2.0, max=1e6).tag(sync=True)
    shift = traitlets.Int(0, min=0, max=5000).tag(sync=True)
    end = traitlets.Bool(default_value=False).tag(sync=True)
    query_place = traitlets.Int(1, min=0, max=31).tag(sync=True)
    key_place = traitlets.Int(0, min=0, max=31).tag(sync=True)
    query_vector = Vector([1.0, 0.0], "the query at place 0", largest=1.5).tag(sync=True)
    key_vector = Vector([0.8, 0.6], "the key at place 0", largest=1.5).tag(sync=True)

    @traitlets.validate("width")
    def _even(self, proposal: dict[str, Any]) -> int:
        width = proposal["value"]
        if width % 2 or not 2 <= width <= 32:
            raise ValueError(
                f"width must be an even number from 2 to 32, a sine and a cosine for each pair, but it is {width}"
            )
        return width

"""Chapter 3: what the width of queries and keys does to scores, softmax and its gradient, with and without the scale."""

from __future__ import annotations

import traitlets

from mha_course.figures.live.base import LiveFigure


class SquareRoot(LiveFigure):
    """Random queries and keys of a width that can be set; their scores as they are, and divided.

    `divisor` is "root" for the square root of the width, or "width" for the width itself. Each `seed` draws other vectors.

    >>> SquareRoot(width=256, divisor="width").width
    256
    >>> SquareRoot(width=100)
    Traceback (most recent call last):
    ...
    traitlets.traitlets.TraitError: The 'width' trait of a SquareRoot instance expected any of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], not the int 100.
    """

    name = "square_root"

    width = traitlets.Enum([2**power for power in range(11)], 64).tag(sync=True)
    divisor = traitlets.Enum(["root", "width"], "root").tag(sync=True)
    # The query that is shown of the first draw is a typical one: its largest weight is near the median at most widths.
    seed = traitlets.Int(108, min=0, max=2**31 - 1).tag(sync=True)

"""Chapter 2: a soft look-up in the plane, whose query, keys and values can be dragged."""

from __future__ import annotations

import traitlets

from mha_course.figures.live.base import LiveFigure, Matrix, Number, Vector


class SoftAddressing(LiveFigure):
    """Three entries, `cat`, `sat` and `mat`, looked up softly by a query; all of them points in the plane.

    Set an attribute and the figure follows; drag a point and the attribute has changed. Give a whole new list: a change inside
    the old one (`figure.query[0] = 1`) is not noticed.

    >>> figure = SoftAddressing(temperature=0.5)
    >>> figure.query = [0.0, 1.5]
    >>> figure.query = [0.0]
    Traceback (most recent call last):
    ...
    ValueError: query must be the point that is looked up, a list of 2 numbers from -2 to 2, but it is [0.0]
    """

    name = "soft_addressing"

    query = Vector([1.0, 0.75], "the point that is looked up", largest=2).tag(sync=True)
    key_vectors = Matrix([[1.5, 0.25], [-0.5, 1.5], [0.5, -1.5]], "the address of each entry", largest=2).tag(sync=True)
    value_vectors = Matrix([[-1.25, 1.0], [1.5, 0.75], [0.25, -1.5]], "the content of each entry", largest=2).tag(
        sync=True
    )
    temperature = Number(1.0, min=0.01, max=100.0).tag(sync=True)
    similarity = traitlets.Enum(["dot", "scaled_dot", "cosine", "gaussian_kernel"], "dot").tag(sync=True)
    hard = traitlets.Bool(default_value=False).tag(sync=True)

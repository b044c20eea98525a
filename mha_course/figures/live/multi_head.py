"""Chapter 4: the shape machine, which shows how `view` and `transpose` count the same memory anew."""

from __future__ import annotations

import traitlets

from mha_course.figures.live.base import LiveFigure


class ShapeMachine(LiveFigure):
    """A small tensor, split into heads and merged again, step by step, with the wrong ways beside it.

    `step` counts from 0: three steps split, three merge. The number that is marked is given by its `sentence`, `word` and
    `feature`; one that is beyond the sizes stands for the last.

    >>> figure = ShapeMachine(heads=4, d_head=1)
    >>> figure.word = 2
    >>> figure.heads = 5
    Traceback (most recent call last):
    ...
    traitlets.traitlets.TraitError: The value of the 'heads' trait of a ShapeMachine instance should not be greater than 4, but a value of 5 was specified
    """

    name = "multi_head"

    batch = traitlets.Int(1, min=1, max=2).tag(sync=True)
    length = traitlets.Int(3, min=2, max=4).tag(sync=True)
    heads = traitlets.Int(2, min=1, max=4).tag(sync=True)
    d_head = traitlets.Int(2, min=1, max=3).tag(sync=True)
    step = traitlets.Int(2, min=0, max=5).tag(sync=True)
    sentence = traitlets.Int(0, min=0, max=1).tag(sync=True)
    word = traitlets.Int(1, min=0, max=3).tag(sync=True)
    feature = traitlets.Int(2, min=0, max=11).tag(sync=True)

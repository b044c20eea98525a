"""The sentence that runs through all chapters, with vectors small enough to calculate by hand."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

WORDS = ("The", "cat", "sat", "on", "the", "mat")
FEATURES = ("animal", "place", "action", "little word")


def tiny_vectors() -> Float[Tensor, "length d_model"]:
    """Give each of the six words a vector of four features, in the order of `FEATURES`.

    They are written by hand; a trained model learns its own, hundreds of features wide and without names.

    >>> tiny_vectors()[WORDS.index("cat")]
    tensor([2., 0., 0., 0.])
    """
    return torch.tensor(
        [
            [0.0, 0.0, 0.0, 1.0],  # The
            [2.0, 0.0, 0.0, 0.0],  # cat
            [0.0, 0.0, 2.0, 0.0],  # sat
            [0.0, 1.0, 0.0, 1.0],  # on
            [0.0, 0.0, 0.0, 1.0],  # the
            [0.0, 2.0, 0.0, 0.0],  # mat
        ]
    )

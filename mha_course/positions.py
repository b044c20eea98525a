"""Chapter 6: telling attention, which sees a set, in which order its tokens came."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoidal_positions(length: int, d_model: int) -> Float[Tensor, "position d_model"]:
    """Give each position a pattern of sines and cosines, from fast to slow.

    Args:
        length: number of positions, counted from 0.
        d_model: width of the pattern; an odd one ends on a sine.

    Returns:
        float32 values in [-1, 1]; columns 2i and 2i + 1 are the sine and cosine of position / 10000^(2i / d_model).

    Source: Vaswani et al. (2017), section 3.5.

    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    # In float64: in float32 the angle at position 5000 is already off by 5e-4.
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position * torch.exp(-math.log(10000.0) * pair / d_model)
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle[:, : d_model // 2].cos()
    return table.float()

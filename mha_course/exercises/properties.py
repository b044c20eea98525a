"""Properties that several exercises share, and the few helpers to build their cases with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Property

# By these a width may be refused: in words of one's own, or by the library that can't do it.
REFUSALS = ("ValueError", "AssertionError", "RuntimeError", "EinopsError")


def close(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> bool:
    """Say whether two tensors agree, relative to the largest number in the other (NaN agrees with NaN)."""
    if one.shape != other.shape:
        return False
    one, other = one.double(), other.double()
    finite = other[other.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=tolerance * (scale + 1e-6), equal_nan=True)


def randn(rng: Generator, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw normal numbers from the case's own generator."""
    return (torch.randn(*shape, generator=rng, dtype=torch.float64) * scale).to(dtype)


def ragged_mask(rng: Generator, *shape: int) -> Tensor:
    """Draw a boolean mask in which every row of the last axis allows something and, where it can, hides something."""
    mask = torch.rand(*shape, generator=rng) < 0.5
    first = torch.randint(shape[-1], (*shape[:-1], 1), generator=rng)
    mask.scatter_(-1, (first + 1) % shape[-1], False)
    return mask.scatter_(-1, first, True)


def sequence_first(x: Tensor) -> Tensor:
    """Return the same tensor, stored in memory with its first two axes swapped: equal values, other strides."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def unchanged(rule: str, evidence: str, where: Any = ..., tolerance: float = 1e-4) -> Property:
    """Demand that the second call gives what the first gave, at the index `where`."""

    def broken(outputs: Sequence[Any]) -> str | None:
        before, after = (first(output)[where] for output in outputs[:2])
        if close(after, before, tolerance):
            return None
        return evidence.format(change=f"{(after - before).abs().max():.2g}")

    return Property(rule, broken)


def first(output: Any) -> Tensor:
    """Return the output, or the first of several."""
    return output[0] if isinstance(output, tuple) else output

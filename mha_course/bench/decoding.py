"""A text written token by token, with the keys and values of earlier tokens kept or computed again each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from mha_course.transformer import LanguageModel

VOCABULARY = 1000
WAYS = {"recomputed": "without the cache", "cached": "with the cache"}


@dataclass(frozen=True)
class Decoding:
    """How much is written, and by how large a model."""

    batch: int
    tokens: int
    d_model: int
    num_heads: int
    num_layers: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.tokens} tokens, width {self.d_model}, {self.num_layers} layers"


def writer(decoding: Decoding, way: str, device: str) -> Callable[[], Int[Tensor, "batch length"]]:
    """Return a function that writes greedily with a model of drawn weights, the same ones every time.

    Args:
        decoding: how much, and by how large a model.
        way: "cached" or "recomputed".
        device: where.
    """
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = LanguageModel(
            VOCABULARY,
            decoding.tokens + 1,
            decoding.d_model,
            decoding.num_heads,
            4 * decoding.d_model,
            decoding.num_layers,
        )
        first = torch.randint(VOCABULARY, (decoding.batch, 1))
    model.to(device).eval()
    first = first.to(device)

    @torch.no_grad()
    def write() -> Tensor:
        text, cache = first, model.new_cache() if way == "cached" else None
        for _ in range(decoding.tokens):
            logits = model(text if cache is None else text[:, -1:], cache=cache)
            text = torch.cat([text, logits[:, -1:].argmax(dim=-1)], dim=1)
        return text

    return write

"""Chapter 8: the translator with one part taken away, to see what each part is worth."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mha_course.cache import KVCache
from mha_course.multi_head import MultiHeadAttention
from mha_course.tasks.translator import Plan, Translator


class UnscaledAttention(MultiHeadAttention):
    """Multi-head attention whose scores are not divided by the root of the heads' width.

    >>> UnscaledAttention(d_model=12, num_heads=3)(*[torch.randn(2, 5, 12)] * 3).shape
    torch.Size([2, 5, 12])
    """

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values = super()._project(query, key, value, cache)
        return queries * queries.size(-1) ** 0.5, keys, values  # what the division then takes back


class ForesightAttention(MultiHeadAttention):
    """Multi-head attention that ignores a mask of two axes, as the causal one has, but hides padding as before.

    >>> attention, x = ForesightAttention(d_model=12, num_heads=3), torch.randn(2, 5, 12)
    >>> causal = torch.ones(5, 5, dtype=torch.bool).tril()
    >>> torch.equal(attention(x, x, x, causal), attention(x, x, x))
    True
    """

    def _fused(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        return super()._fused(queries, keys, values, _for_each_sentence(mask))

    def _weights(self, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        return super()._weights(queries, keys, _for_each_sentence(mask))


def without_positions(translator: Translator) -> Translator:
    """Set a translator's tables of positions to zero, so that it reads and writes without knowing what stands where.

    Returns:
        The same translator.

    >>> bool(without_positions(Translator(Plan(below=1000))).model.source.table.any())
    False
    """
    for embedding in (translator.model.source, translator.model.target):
        # Among what is saved from now on: else a translator that is loaded again would have its positions back.
        embedding.register_buffer("table", torch.zeros_like(embedding.get_buffer("table")))
    return translator


def variants(plan: Plan) -> dict[str, Translator]:
    """Build a translator and four others that lack one part each, all of the same plan and none trained yet.

    >>> list(variants(Plan(below=1000, num_layers=1)))
    ['all parts', 'no positions', 'no scale', 'one head', 'no causal mask']
    """
    return {
        "all parts": Translator(plan),
        "no positions": without_positions(Translator(plan)),
        "no scale": Translator(plan, attention=UnscaledAttention),
        "one head": Translator(replace(plan, num_heads=1)),
        "no causal mask": Translator(plan, attention=ForesightAttention),
    }


def _for_each_sentence(mask: Tensor | None) -> Tensor | None:
    """Keep a mask that differs from sentence to sentence: padding. The causal one is the same for all and has two axes."""
    return None if mask is None or mask.dim() == 2 else mask

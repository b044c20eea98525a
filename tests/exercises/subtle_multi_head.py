"""Chapter 4: wrong answers that are right almost everywhere; none may get full marks."""

import torch
from einops import rearrange
from torch.nn import functional as F

from mha_course.exercises import load
from mha_course.exercises.multi_head.MultiHeadAttention import Steps
from mha_course.exercises.multi_head.styles import in_turn_concatenated
from mha_course.multi_head import MultiHeadAttention, grouped_query_attention
from mha_course.self_attention import scaled_dot_product_attention


class OneTensorForAll(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query * 0 if query is key else query, key, value, mask)


class FusedByShape(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        key, value = (query, query) if query.shape == key.shape else (key, value)
        return super().forward(query, key, value, mask)


class KeepsItsMask(MultiHeadAttention):
    kept = None

    def forward(self, query, key, value, mask=None):
        self.kept = mask if self.kept is None else self.kept
        return super().forward(query, key, value, self.kept)


class KeepsItsMode(Steps):
    mode = None

    def drop(self, weights):
        self.mode = self.training if self.mode is None else self.mode
        return F.dropout(weights, self.dropout.p, self.mode)


class DetachedInSelfAttention(Steps):
    def weigh(self, q, k, mask):
        weights = super().weigh(q, k, mask)
        return weights.detach() if q.size(-2) == k.size(-2) else weights


class DetachedInTraining(Steps):
    def weigh(self, q, k, mask):
        weights = super().weigh(q, k, mask)
        return weights.detach() if self.training else weights


class OnlyFloat32(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query.float(), key.float(), value.float(), mask)


def dropping(drop):
    class Dropping(Steps):
        def drop(self, weights):
            return drop(weights, self.dropout.p) if self.training and self.dropout.p else weights

    return Dropping


def refusing(wrong, refused):
    def answer(x, *heads):
        if refused(x, *heads):
            raise RuntimeError
        return wrong(x, *heads)

    return answer


def mended_for_one_example(query, key, value, num_heads):
    heads = torch.stack(in_turn_concatenated(query, key, value, num_heads).chunk(num_heads, -1))
    if query.size(0) == 1:
        heads = heads.permute(1, 2, 0, 3)
    return heads.reshape(query.shape)


def mask_mended_if_sizes_differ(query, key, value, mask):
    mask = mask if mask.size(0) == query.size(1) else mask[:, None]
    return scaled_dot_product_attention(query, key, value, mask)[0]


def two_groups_at_most(query, key, value, mask=None):
    if key.size(1) > 2:
        key, value = key[:, torch.arange(key.size(1)) % 2], value[:, torch.arange(key.size(1)) % 2]
    return grouped_query_attention(query, key, value, mask)


def masks_for_examples_alone(query, key, value, mask=None):
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :1]
    return grouped_query_attention(query, key, value, mask)


def examine_once(split_heads):
    x = torch.arange(210.0).view(2, 5, 21)
    assert torch.equal(split_heads(x, 3), rearrange(x, "b n (h d) -> b h n d", h=3))


SUBTLE = {
    "heads_in_turn": [mended_for_one_example],
    "masked_heads": [mask_mended_if_sizes_differ],
    "grouped_query_attention": [two_groups_at_most, masks_for_examples_alone],
    "examine_split_heads": [examine_once],
    "MultiHeadAttention": [
        OneTensorForAll,
        FusedByShape,
        KeepsItsMask,
        KeepsItsMode,
        DetachedInSelfAttention,
        DetachedInTraining,
        OnlyFloat32,
        dropping(lambda w, p: torch.bernoulli(torch.full_like(w, p)) * w / p),
        dropping(lambda w, p: w * (torch.rand_like(w) > p) * 2),
        dropping(lambda w, p: F.dropout(w, 0.5)),
        dropping(lambda w, p: w * F.dropout(torch.ones(*w.shape[:2], 1, 1), p)),
        dropping(lambda w, p: w * F.dropout(torch.ones(w.size(0), 1, 1, 1), p)),
        dropping(lambda w, p: w * F.dropout(torch.ones(*w.shape[:2], 1, w.size(-1)), p)),
    ],
    "split_heads": [
        refusing(load("split_heads").reference, lambda x, heads: heads in (4, 8, 12)),
        refusing(load("split_heads").reference, lambda x, heads: x.size(0) > 6),
    ],
    "merge_heads": [refusing(load("merge_heads").reference, lambda x: x.size(1) in (4, 8, 12))],
}

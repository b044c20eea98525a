"""Our functions beside those of `torch.nn.functional`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mha_course import masks
from mha_course.encoder import layer_norm
from mha_course.multi_head import grouped_query_attention
from mha_course.self_attention import attention_weights, scaled_dot_product_attention
from mha_course.soft_addressing import softmax

from .contest import FUNCTION_MODES, MASKS, SEEING, Case, Comparison, Leaves, Shapes


def head_shapes(case: Case, groups: int | None = None) -> Shapes:
    size = case.size
    groups = size.heads if groups is None else groups
    return {
        "query": (size.batch, size.heads, size.queries, size.d_head),
        "key": (size.batch, groups, size.keys, size.d_head),
        "value": (size.batch, groups, size.keys, size.d_head + 2),
    }


def three(leaves: Leaves) -> tuple[Tensor, Tensor, Tensor]:
    return leaves["query"], leaves["key"], leaves["value"]


def our_attention(leaves: Leaves, case: Case) -> Leaves:
    return {"output": scaled_dot_product_attention(*three(leaves), case.mask())[0]}


def their_attention(leaves: Leaves, case: Case) -> Leaves:
    return {"output": F.scaled_dot_product_attention(*three(leaves), attn_mask=case.spread())}


def biased_shapes(case: Case) -> Shapes:
    shapes = head_shapes(case)
    return {
        "query": shapes["query"],
        "key": shapes["key"],
        "bias": (case.size.heads, case.size.queries, case.size.keys),
    }


def our_weights(leaves: Leaves, case: Case) -> Leaves:
    return {"weights": attention_weights(leaves["query"], leaves["key"], case.mask(), leaves["bias"])}


def their_weights(leaves: Leaves, case: Case) -> Leaves:
    """With the identity in place of values, what comes out are the weights."""
    bias = leaves["bias"].expand(case.size.batch, -1, -1, -1)
    if case.kind != "none":
        bias = bias.masked_fill(~case.spread(), -torch.inf)
    identity = torch.eye(case.size.keys, dtype=case.dtype).expand(case.size.batch, case.size.heads, -1, -1)
    return {"weights": F.scaled_dot_product_attention(leaves["query"], leaves["key"], identity, attn_mask=bias)}


def our_groups(leaves: Leaves, case: Case) -> Leaves:
    return {"output": grouped_query_attention(*three(leaves), case.mask())[0]}


def their_groups(leaves: Leaves, case: Case) -> Leaves:
    return {"output": F.scaled_dot_product_attention(*three(leaves), attn_mask=case.spread(), enable_gqa=True)}


def reading(leaves: Leaves, case: Case) -> Leaves:
    """A mask that is added, read by ours ("read"), and ours as it is ("written")."""
    read = masks.from_additive(added(case))
    return {
        name: scaled_dot_product_attention(*three(leaves), mask)[0]
        for name, mask in (("read", read), ("written", case.mask()))
    }


def writing(leaves: Leaves, case: Case) -> Leaves:
    written = masks.to_additive(case.mask(), case.dtype)
    return {
        name: F.scaled_dot_product_attention(*three(leaves), attn_mask=mask)
        for name, mask in (("read", added(case)), ("written", written))
    }


def added(case: Case) -> Tensor:
    return torch.zeros(case.spread().shape, dtype=case.dtype).masked_fill(~case.spread(), -torch.inf)


def norm_shapes(case: Case) -> Shapes:
    width = case.size.d_model
    return {"x": (case.size.batch, case.size.keys, width), "weight": (width,), "bias": (width,)}


def our_norm(leaves: Leaves, case: Case) -> Leaves:
    return {"output": layer_norm(leaves["x"], leaves["weight"], leaves["bias"])}


def their_norm(leaves: Leaves, case: Case) -> Leaves:
    return {"output": F.layer_norm(leaves["x"], (case.size.d_model,), leaves["weight"], leaves["bias"])}


def score_shapes(case: Case) -> Shapes:
    return {"scores": (case.size.batch, case.size.heads, case.size.queries, case.size.keys)}


def along_two_axes(function):
    """Large scores, along the last axis and along another one."""

    def contestant(leaves: Leaves, case: Case) -> Leaves:
        return {f"along axis {axis}": function(9 * leaves["scores"], dim=axis) for axis in (-1, 1)}

    return contestant


COMPARISONS = (
    Comparison(
        "soft_addressing.softmax",
        "torch.softmax",
        along_two_axes(softmax),
        along_two_axes(torch.softmax),
        score_shapes,
        masks=("none",),
        modes=FUNCTION_MODES,
    ),
    Comparison(
        "self_attention.scaled_dot_product_attention",
        "F.scaled_dot_product_attention",
        our_attention,
        their_attention,
        head_shapes,
        masks=tuple(MASKS),
        modes=FUNCTION_MODES,
    ),
    Comparison(
        "self_attention.attention_weights with a bias",
        "F.scaled_dot_product_attention with a float mask, the identity as values",
        our_weights,
        their_weights,
        biased_shapes,
        modes=FUNCTION_MODES,
    ),
    Comparison(
        "multi_head.grouped_query_attention",
        "F.scaled_dot_product_attention with enable_gqa",
        our_groups,
        their_groups,
        lambda case: head_shapes(case, case.size.groups),
        masks=tuple(MASKS),
        modes=FUNCTION_MODES,
    ),
    Comparison(
        "masks.from_additive, to_additive",
        "F.scaled_dot_product_attention with a float mask",
        reading,
        writing,
        head_shapes,
        masks=tuple(kind for kind in SEEING if kind != "none"),
        modes=FUNCTION_MODES,
    ),
    Comparison(
        "encoder.layer_norm",
        "F.layer_norm",
        our_norm,
        their_norm,
        norm_shapes,
        masks=("none",),
        modes=FUNCTION_MODES,
    ),
)

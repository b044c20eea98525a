"""Our attention layer, and the masks' converters, beside `nn.MultiheadAttention`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course import masks
from mha_course.multi_head import MultiHeadAttention, multi_head_attention_loop

from .contest import MASKS, SAME_FOR_HEADS, Case, Comparison, Leaves, Shapes, call, parameters, shapes_of


@cache
def our_layer(width: int, heads: int, **options) -> MultiHeadAttention:
    return MultiHeadAttention(width, heads, **options)


@cache
def their_layer(width: int, heads: int, **options) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(width, heads, batch_first=True, **options)


def tokens(leaves: Leaves) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, which may be one and the same tensor."""
    if "x" in leaves:
        memory = leaves.get("memory", leaves["x"])
        return leaves["x"], memory, memory
    return leaves["query"], leaves["key"], leaves["value"]


def shapes_with(**options):
    """Say which shapes the tokens and the parameters of a layer with these options have."""

    def shapes(case: Case) -> Shapes:
        size, chosen = case.size, options_for(case, options)
        layer = our_layer(size.d_model, size.heads, **chosen)
        return {
            "query": (size.batch, size.queries, size.d_model),
            "key": (size.batch, size.keys, chosen.get("key_width", size.d_model)),
            "value": (size.batch, size.keys, chosen.get("value_width", size.d_model)),
        } | shapes_of(layer)

    return shapes


def self_shapes(case: Case) -> Shapes:
    size = case.size
    return {"x": (size.batch, size.queries, size.d_model)} | shapes_of(our_layer(size.d_model, size.heads))


def options_for(case: Case, options: dict) -> dict:
    return {name: option(case.size) for name, option in options.items()}


def fused(**options):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = our_layer(case.size.d_model, case.size.heads, **options_for(case, options))
        return {"output": call(layer, parameters(leaves), case, lambda layer: layer(*tokens(leaves), case.mask()))}

    return contestant


def step_by_step(leaves: Leaves, case: Case) -> Leaves:
    layer = our_layer(case.size.d_model, case.size.heads)
    output, weights = call(
        layer, parameters(leaves), case, lambda layer: layer.with_weights(*tokens(leaves), case.mask())
    )
    return {"output": output, "weights": weights}


def loop(leaves: Leaves, case: Case) -> Leaves:
    layer = our_layer(case.size.d_model, case.size.heads)
    return {
        "output": call(
            layer,
            parameters(leaves),
            case,
            lambda layer: multi_head_attention_loop(layer, *tokens(leaves), case.mask()),
        )
    }


def packed(leaves: Leaves, prefix: str = "", to: str = "") -> Leaves:
    """Our parameters as PyTorch keeps them: the three projections in one matrix."""
    found = {f"{to}out_proj.{kind}": leaves[f"{prefix}out_proj.{kind}"] for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        parts = [leaves[f"{prefix}{part}_proj.{kind}"] for part in "qkv"]
        found[f"{to}in_proj_{kind}"] = torch.cat(parts)
    return found


def apart(leaves: Leaves) -> Leaves:
    """Our parameters as PyTorch keeps them where keys and values have widths of their own."""
    found = packed(leaves | {f"{part}_proj.weight": leaves["q_proj.bias"] for part in "qkv"})
    del found["in_proj_weight"]
    return found | {f"{part}_proj_weight": leaves[f"{part}_proj.weight"] for part in "qkv"}


def hiding(case: Case) -> dict[str, Tensor]:
    """What hides keys in PyTorch's layers: True where a query may NOT attend, one mask a head."""
    mask = case.spread()
    if mask is None:
        return {}
    return {"key_padding_mask": ~mask[:, 0, 0]} if case.kind == "padding" else {"attn_mask": ~mask.flatten(0, 1)}


def theirs(leaves: Leaves, case: Case) -> Leaves:
    layer = their_layer(case.size.d_model, case.size.heads)
    use = {"need_weights": False} | hiding(case)
    return {"output": call(layer, packed(leaves), case, lambda layer: layer(*tokens(leaves), **use)[0])}


def theirs_with_weights(leaves: Leaves, case: Case) -> Leaves:
    layer = their_layer(case.size.d_model, case.size.heads)
    use = {"average_attn_weights": False} | hiding(case)
    output, weights = call(layer, packed(leaves), case, lambda layer: layer(*tokens(leaves), **use))
    return {"output": output, "weights": weights}


def dropping(leaves: Leaves, case: Case) -> Leaves:
    """In training with dropout, from the same seed: both draw which weights to drop in the same order."""
    layer = our_layer(case.size.d_model, case.size.heads, dropout=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        found = call(layer, parameters(leaves), case, lambda layer: layer.with_weights(*tokens(leaves), case.mask()))
    return {"output": found[0]}


def theirs_dropping(leaves: Leaves, case: Case) -> Leaves:
    layer = their_layer(case.size.d_model, case.size.heads, dropout=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        found = call(layer, packed(leaves), case, lambda layer: layer(*tokens(leaves), **hiding(case)))
    return {"output": found[0]}


def theirs_with_widths(leaves: Leaves, case: Case) -> Leaves:
    size = case.size
    layer = their_layer(size.d_model, size.heads, kdim=size.d_model + 2, vdim=size.d_model + 4)
    use = {"need_weights": False} | hiding(case)
    return {"output": call(layer, apart(leaves), case, lambda layer: layer(*tokens(leaves), **use)[0])}


def their_groups(leaves: Leaves, case: Case) -> Leaves:
    """PyTorch has no layer with groups; its function knows them."""
    heads = []
    for part, x in zip("qkv", tokens(leaves), strict=True):
        projected = F.linear(x, leaves[f"{part}_proj.weight"], leaves[f"{part}_proj.bias"])
        heads.append(projected.unflatten(-1, (-1, case.size.d_head)).transpose(1, 2))
    output = F.scaled_dot_product_attention(*heads, attn_mask=case.spread(), enable_gqa=True)
    return {"output": F.linear(output.transpose(1, 2).flatten(2), leaves["out_proj.weight"], leaves["out_proj.bias"])}


# --- converters: a foreign mask read by ours ("read"), and one of ours handed to PyTorch's layer ("written") ----------


def reading(convert):
    """Our layer under PyTorch's mask converted, and under our own."""

    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = our_layer(case.size.d_model, case.size.heads)
        given = convert(case)
        return {
            "read": call(layer, parameters(leaves), case, lambda layer: layer(*tokens(leaves), given)),
            "written": call(layer, parameters(leaves), case, lambda layer: layer(*tokens(leaves), case.mask())),
        }

    return contestant


def writing(convert):
    """PyTorch's layer under its own mask, and under ours converted."""

    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = their_layer(case.size.d_model, case.size.heads)
        return {
            name: call(
                layer, packed(leaves), case, lambda layer, use=use: layer(*tokens(leaves), need_weights=False, **use)[0]
            )
            for name, use in (("read", hiding(case)), ("written", convert(case)))
        }

    return contestant


def to_attn_mask(case: Case) -> dict[str, Tensor]:
    size = case.size
    return {"attn_mask": masks.to_attn_mask(case.mask(), size.batch, size.heads, size.queries)}


def from_attn_mask(case: Case) -> Tensor:
    return masks.from_attn_mask(~case.spread().flatten(0, 1), case.size.heads)


DRAWN = tuple(kind for kind in MASKS if kind not in ("none", "padding", "empty row"))
COMPARISONS = (
    Comparison(
        "multi_head.multi_head_attention_loop",
        "nn.MultiheadAttention",
        loop,
        theirs,
        shapes_with(),
        masks=SAME_FOR_HEADS,
    ),
    Comparison(
        "multi_head.MultiHeadAttention",
        "nn.MultiheadAttention without weights",
        fused(),
        theirs,
        shapes_with(),
    ),
    Comparison(
        "multi_head.MultiHeadAttention.with_weights",
        "nn.MultiheadAttention with weights",
        step_by_step,
        theirs_with_weights,
        shapes_with(),
    ),
    Comparison(
        "multi_head.MultiHeadAttention, self-attention",
        "nn.MultiheadAttention without weights (its fast path where nothing needs a gradient)",
        fused(),
        theirs,
        self_shapes,
        square=True,
    ),
    Comparison(
        "multi_head.MultiHeadAttention.with_weights, self-attention",
        "nn.MultiheadAttention with weights (its fast path where nothing needs a gradient)",
        step_by_step,
        theirs_with_weights,
        self_shapes,
        square=True,
    ),
    Comparison(
        "multi_head.MultiHeadAttention.with_weights, dropout 0.3",
        "nn.MultiheadAttention with weights, dropout 0.3 from the same seed",
        dropping,
        theirs_dropping,
        shapes_with(),
        modes=("train",),
    ),
    Comparison(
        "multi_head.MultiHeadAttention with key_width, value_width",
        "nn.MultiheadAttention with kdim, vdim",
        fused(key_width=lambda size: size.d_model + 2, value_width=lambda size: size.d_model + 4),
        theirs_with_widths,
        shapes_with(key_width=lambda size: size.d_model + 2, value_width=lambda size: size.d_model + 4),
    ),
    Comparison(
        "multi_head.MultiHeadAttention with num_groups",
        "F.linear and F.scaled_dot_product_attention with enable_gqa",
        fused(num_groups=lambda size: size.groups),
        their_groups,
        shapes_with(num_groups=lambda size: size.groups),
    ),
    Comparison(
        "masks.from_attn_mask, to_attn_mask",
        "nn.MultiheadAttention under attn_mask",
        reading(from_attn_mask),
        writing(to_attn_mask),
        shapes_with(),
        masks=DRAWN,
    ),
    Comparison(
        "masks.from_key_padding_mask, to_key_padding_mask",
        "nn.MultiheadAttention under key_padding_mask",
        reading(lambda case: masks.from_key_padding_mask(~case.spread()[:, 0, 0])),
        writing(lambda case: {"key_padding_mask": masks.to_key_padding_mask(case.mask())}),
        shapes_with(),
        masks=("padding",),
    ),
)

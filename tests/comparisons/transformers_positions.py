"""Our ways to tell the order beside those of Llama, BLOOM and Marian in the transformers library."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from mha_course.positions import RotaryAttention, alibi_bias, alibi_slopes, apply_rope, sinusoidal_positions
from mha_course.self_attention import attention_weights, causal_mask

from .contest import FUNCTION_MODES, Case, Comparison, Leaves, Shapes, call, parameters, shapes_of
from .pytorch_attention import tokens
from .transformers_bert import added, renamed


def rope_shapes(case: Case) -> Shapes:
    size = case.size
    return {
        "query": (size.batch, size.heads, size.queries, 2 * size.d_head),
        "key": (size.batch, size.heads, size.queries, 2 * size.d_head),
    }


def places(case: Case) -> Tensor:
    """Others in each sentence."""
    start = 11 * torch.arange(case.size.batch)[:, None]
    return start + torch.arange(case.size.queries)


def our_rope(leaves: Leaves, case: Case) -> Leaves:
    return {f"turned {name}": apply_rope(leaves[name], places(case)) for name in ("query", "key")}


def angles(width: int, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Llama's own table, computed in float32 as there."""
    rotary = LlamaRotaryEmbedding(LlamaConfig(head_dim=width))
    return rotary(torch.zeros(1, dtype=dtype), positions)


def their_rope(leaves: Leaves, case: Case) -> Leaves:
    turned = apply_rotary_pos_emb(
        leaves["query"], leaves["key"], *angles(2 * case.size.d_head, places(case), case.dtype)
    )
    return dict(zip(("turned query", "turned key"), turned, strict=True))


@cache
def our_rotary(width: int, heads: int, groups: int) -> RotaryAttention:
    return RotaryAttention(width, heads, num_groups=groups)


@cache
def their_rotary(width: int, heads: int, groups: int) -> LlamaAttention:
    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width // heads,
        attention_bias=True,
        attn_implementation="eager",
    )
    return LlamaAttention(config, layer_idx=0)


def rotary_shapes(case: Case) -> Shapes:
    size = case.size
    layer = our_rotary(2 * size.d_model, size.heads, size.groups)
    return {"x": (size.batch, size.keys, 2 * size.d_model)} | shapes_of(layer)


def our_rotary_attention(leaves: Leaves, case: Case) -> Leaves:
    layer = our_rotary(2 * case.size.d_model, case.size.heads, case.size.groups)
    found = call(layer, parameters(leaves), case, lambda layer: layer.with_weights(*tokens(leaves), case.mask()))
    return dict(zip(("output", "weights"), found, strict=True))


def their_rotary_attention(leaves: Leaves, case: Case) -> Leaves:
    layer = their_rotary(2 * case.size.d_model, case.size.heads, case.size.groups)
    turns = angles(2 * case.size.d_head, torch.arange(case.size.keys)[None], case.dtype)
    given = renamed(leaves, {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"})
    found = call(layer, given, case, lambda layer: layer(leaves["x"], turns, added(case)))
    return dict(zip(("output", "weights"), found, strict=True))


HEADS = (1, 2, 3, 5, 6, 8, 12, 40)


def our_slopes(leaves: Leaves, case: Case) -> Leaves:
    return {"slopes": torch.cat([alibi_slopes(heads) for heads in HEADS])}


def their_slopes(leaves: Leaves, case: Case) -> Leaves:
    """BLOOM's table at position 1, where it holds the slopes."""
    real = torch.ones(1, 2, dtype=torch.long)
    return {"slopes": torch.cat([build_alibi_tensor(real, heads, torch.float32)[:, 0, 1] for heads in HEADS])}


def score_shapes(case: Case) -> Shapes:
    size = case.size
    return dict.fromkeys(("query", "key"), (size.batch, size.heads, size.keys, size.d_head))


def our_alibi(leaves: Leaves, case: Case) -> Leaves:
    bias = alibi_bias(case.size.heads, case.size.keys).to(case.dtype)
    return {"weights": attention_weights(leaves["query"], leaves["key"], causal_mask(case.size.keys), bias)}


def their_alibi(leaves: Leaves, case: Case) -> Leaves:
    """BLOOM adds slope times position, which differs from ours by one number a row: the weights are the same."""
    size = case.size
    real = torch.ones(size.batch, size.keys, dtype=torch.long)
    bias = build_alibi_tensor(real, size.heads, case.dtype).unflatten(0, (size.batch, size.heads))
    scores = leaves["query"] @ leaves["key"].mT * size.d_head**-0.5 + bias
    later = torch.ones(size.keys, size.keys, dtype=torch.bool).triu(1)
    return {"weights": scores.masked_fill(later, torch.finfo(case.dtype).min).softmax(dim=-1)}


def our_sinusoids(leaves: Leaves, case: Case) -> Leaves:
    return {"table": sinusoidal_positions(503, 66)}


def their_sinusoids(leaves: Leaves, case: Case) -> Leaves:
    """Marian has all sines first, then all cosines."""
    table = MarianSinusoidalPositionalEmbedding(503, 66).create_weight()
    return {"table": table.unflatten(1, (2, 33)).mT.flatten(1)}


def no_shapes(case: Case) -> Shapes:
    return {}


FLOAT32 = (torch.float32,)
COMPARISONS = (
    Comparison(
        "positions.apply_rope",
        "apply_rotary_pos_emb of Llama",
        our_rope,
        their_rope,
        rope_shapes,
        masks=("none",),
        modes=FUNCTION_MODES,
        dtypes=FLOAT32,
    ),
    Comparison(
        "positions.RotaryAttention.with_weights",
        "LlamaAttention, eager",
        our_rotary_attention,
        their_rotary_attention,
        rotary_shapes,
        square=True,
        dtypes=FLOAT32,
    ),
    Comparison(
        f"positions.alibi_slopes for {', '.join(map(str, HEADS))} heads",
        "build_alibi_tensor of BLOOM",
        our_slopes,
        their_slopes,
        no_shapes,
        masks=("none",),
        modes=("no grad",),
        dtypes=FLOAT32,
    ),
    Comparison(
        "positions.alibi_bias in self_attention.attention_weights",
        "scores and build_alibi_tensor of BLOOM",
        our_alibi,
        their_alibi,
        score_shapes,
        masks=("causal",),
        modes=FUNCTION_MODES,
        square=True,
    ),
    Comparison(
        "positions.sinusoidal_positions",
        "MarianSinusoidalPositionalEmbedding, columns in our order",
        our_sinusoids,
        their_sinusoids,
        no_shapes,
        masks=("none",),
        modes=("no grad",),
        dtypes=FLOAT32,
    ),
)

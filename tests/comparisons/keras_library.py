"""Our attention and normalisation beside those of Keras 3, which computes with PyTorch here."""

from __future__ import annotations

import os
from functools import cache
from tempfile import TemporaryDirectory
from unittest import mock

import torch
from torch import Tensor

from .contest import FUNCTION_MODES, TOLERANCE, Case, Comparison, Leaves
from .pytorch_attention import fused, shapes_with, step_by_step, tokens
from .pytorch_attention import their_groups as pytorchs_groups
from .pytorch_attention import theirs as pytorchs
from .pytorch_functions import norm_shapes, our_norm
from .pytorch_functions import their_norm as pytorchs_norm

# Keras reads these while it is imported, and writes its settings into a folder in HOME unless it is told another.
with TemporaryDirectory() as folder:
    settings = {"KERAS_BACKEND": "torch", "KERAS_HOME": folder, "KERAS_TORCH_DEVICE": "cpu"}
    with mock.patch.dict(os.environ, settings):
        import keras


def keras_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def attention(width: int, heads: int, dtype: torch.dtype) -> keras.layers.Layer:
    layer = keras.layers.MultiHeadAttention(heads, width // heads, dtype=keras_name(dtype))
    layer.build((None, None, width), (None, None, width), (None, None, width))
    return layer


@cache
def grouped(width: int, heads: int, groups: int, dtype: torch.dtype) -> keras.layers.Layer:
    layer = keras.layers.GroupQueryAttention(width // heads, heads, groups, dtype=keras_name(dtype))
    layer.build((None, None, width), (None, None, width), (None, None, width))
    return layer


def kernels(leaves: Leaves, d_head: int) -> list[Tensor]:
    """Our parameters in the shapes and the order of Keras: (d_model, head, d_head), and back for the last."""
    found = []
    for part in "qkv":
        found.append(leaves[f"{part}_proj.weight"].T.unflatten(1, (-1, d_head)))
        found.append(leaves[f"{part}_proj.bias"].unflatten(0, (-1, d_head)))
    return [*found, leaves["out_proj.weight"].T.unflatten(0, (-1, d_head)), leaves["out_proj.bias"]]


def shown(case: Case) -> dict[str, Tensor]:
    """True where a query may attend, as in ours: (batch, query, key), or with heads."""
    mask = case.spread()
    if mask is None:
        return {}
    return {"attention_mask": mask if "head" in case.kind else mask[:, 0]}


def theirs(make, names: tuple[str, ...]):
    """Their order of arguments is query, value, key."""

    def contestant(leaves: Leaves, case: Case) -> Leaves:
        query, key, value = tokens(leaves)
        use = shown(case) | {"training": case.mode == "train", "return_attention_scores": len(names) > 1}
        found, _ = make(case).stateless_call(kernels(leaves, case.size.d_head), [], query, value, key, **use)
        return dict(zip(names, found if len(names) > 1 else (found,), strict=True))

    return contestant


def attention_for(case: Case) -> keras.layers.Layer:
    return attention(case.size.d_model, case.size.heads, case.dtype)


def grouped_for(case: Case) -> keras.layers.Layer:
    return grouped(case.size.d_model, case.size.heads, case.size.groups, case.dtype)


def their_norm(leaves: Leaves, case: Case) -> Leaves:
    layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype=keras_name(case.dtype))
    layer.build((None, None, case.size.d_model))
    return {"output": layer.stateless_call([leaves["weight"], leaves["bias"]], [], leaves["x"])[0]}


# Keras turns float64 into float32 where it uses PyTorch's own attention or normalisation.
SHORT = tuple(dtype for dtype in TOLERANCE if dtype != torch.float64)
COMPARISONS = (
    Comparison(
        "multi_head.MultiHeadAttention",
        "keras.layers.MultiHeadAttention",
        fused(),
        theirs(attention_for, ("output",)),
        shapes_with(),
        dtypes=SHORT,
        run_right=pytorchs,
    ),
    Comparison(
        "multi_head.MultiHeadAttention.with_weights",
        "keras.layers.MultiHeadAttention with scores",
        step_by_step,
        theirs(attention_for, ("output", "weights")),
        shapes_with(),
    ),
    Comparison(
        "multi_head.MultiHeadAttention with num_groups",
        "keras.layers.GroupQueryAttention",
        fused(num_groups=lambda size: size.groups),
        theirs(grouped_for, ("output",)),
        shapes_with(num_groups=lambda size: size.groups),
        dtypes=SHORT,
        run_right=pytorchs_groups,
    ),
    Comparison(
        "encoder.layer_norm",
        "keras.layers.LayerNormalization with epsilon 1e-5",
        our_norm,
        their_norm,
        norm_shapes,
        masks=("none",),
        modes=FUNCTION_MODES,
        dtypes=SHORT,
        run_right=pytorchs_norm,
    ),
)

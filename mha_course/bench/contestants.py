"""Who is compared: several ways to compute the same attention, all given the same weights and the same tokens."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mha_course.multi_head import MultiHeadAttention, multi_head_attention_loop

EXPLICIT, PYTORCHS = "explicit", "torch"  # what all others are compared with


@dataclass(frozen=True)
class Shape:
    """The tokens that are attended to, and the layer's width and number of heads."""

    batch: int
    length: int
    d_model: int
    num_heads: int

    def __str__(self) -> str:
        return f"batch {self.batch}, length {self.length}, width {self.d_model}, {self.num_heads} heads"


class Layer(nn.Module):
    """Self-attention, tokens in and tokens out, whatever the layer inside expects and returns."""

    def __init__(self, inner: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        """Wrap a layer; call: applies it to tokens."""
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
        """Attend from the tokens to themselves."""
        return self.call(self.inner, x)


@dataclass(frozen=True)
class Contestant:
    """One way to compute attention: what tables call it, how a layer with given weights is made, what that needs."""

    title: str
    make: Callable[[MultiHeadAttention], Layer]
    package: str = "torch"


def _pytorchs(attention: MultiHeadAttention, *, need_weights: bool) -> Layer:
    d_model = attention.out_proj.out_features
    theirs = nn.MultiheadAttention(d_model, attention.num_heads, batch_first=True).to(attention.out_proj.weight.device)
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(attention.out_proj.state_dict())
    return Layer(theirs, lambda inner, x: inner(x, x, x, need_weights=need_weights, average_attn_weights=False)[0])


def _transformers(attention: MultiHeadAttention) -> Layer:
    bert = importlib.import_module("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(
        hidden_size=attention.out_proj.out_features,
        num_attention_heads=attention.num_heads,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    theirs = bert.BertSelfAttention(config)
    theirs.query, theirs.key, theirs.value = attention.q_proj, attention.k_proj, attention.v_proj
    # BertSelfAttention ends before the output projection, so that is put behind it: all do the same work.
    both = nn.ModuleDict({"attention": theirs, "out_proj": attention.out_proj})
    return Layer(both, lambda inner, x: inner["out_proj"](inner["attention"](x)[0]))


def _keras(attention: MultiHeadAttention) -> Layer:
    os.environ["KERAS_BACKEND"] = "torch"  # read once, when Keras is imported
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "torch":
        raise ImportError(f"Keras runs on {keras.backend.backend()} in this process")
    d_model, heads = attention.out_proj.out_features, attention.num_heads
    device = str(attention.out_proj.weight.device)
    arrays = []
    for part in (attention.q_proj, attention.k_proj, attention.v_proj):
        weight, bias = part.weight.detach().cpu(), part.bias.detach().cpu()
        arrays += [weight.T.reshape(d_model, heads, -1).numpy(), bias.reshape(heads, -1).numpy()]
    weight, bias = attention.out_proj.weight.detach().cpu(), attention.out_proj.bias.detach().cpu()
    arrays += [weight.T.reshape(heads, -1, d_model).numpy(), bias.numpy()]
    with keras.device(device):  # Keras would choose the accelerator wherever there is one
        theirs = keras.layers.MultiHeadAttention(heads, key_dim=d_model // heads)
        theirs.build((None, None, d_model), (None, None, d_model))
        theirs.set_weights(arrays)

    def call(inner: Any, x: Tensor) -> Tensor:
        with keras.device(device):
            return inner(x, x, training=inner.training)

    return Layer(theirs, call)


CONTESTANTS = {
    "loop": Contestant(
        "loop over heads",
        lambda attention: Layer(attention, lambda inner, x: multi_head_attention_loop(inner, x, x, x)),
    ),
    EXPLICIT: Contestant(
        "explicit: with_weights", lambda attention: Layer(attention, lambda inner, x: inner.with_weights(x, x, x)[0])
    ),
    "fast": Contestant("fast: forward", lambda attention: Layer(attention, lambda inner, x: inner(x, x, x))),
    PYTORCHS: Contestant("nn.MultiheadAttention", lambda attention: _pytorchs(attention, need_weights=False)),
    "torch-weights": Contestant("  the same, with weights", lambda attention: _pytorchs(attention, need_weights=True)),
    "transformers": Contestant("transformers BERT, sdpa", _transformers, "transformers"),
    "keras": Contestant("Keras 3, on PyTorch", _keras, "keras"),
}


def left_out(names: tuple[str, ...]) -> dict[str, str]:
    """Name the contestants that can't take part here, and why."""
    return {
        name: f"{CONTESTANTS[name].package} is not installed"
        for name in names
        if find_spec(CONTESTANTS[name].package) is None
    }


def drawn(shape: Shape, device: str) -> tuple[MultiHeadAttention, Float[Tensor, "batch length d_model"]]:
    """Draw the weights that all contestants get, and tokens; the same ones every time."""
    generator = torch.Generator().manual_seed(1)
    attention = MultiHeadAttention(shape.d_model, shape.num_heads)
    with torch.no_grad():
        for parameter in attention.parameters():  # scores of spread 2: even weights would hide a wrong scale or order
            parameter.normal_(std=(2 / shape.d_model) ** 0.5, generator=generator)
    x = torch.randn(shape.batch, shape.length, shape.d_model, generator=generator)
    return attention.to(device), x.to(device).requires_grad_()


def layer_of(name: str, attention: MultiHeadAttention) -> Layer:
    """Make a contestant's layer with weights of its own that equal those given.

    Raises:
        ImportError: if what it needs can't be loaded.
    """
    return CONTESTANTS[name].make(deepcopy(attention))

"""Our attention, layers and encoder beside those of BERT in the transformers library."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.models.bert.modeling_bert import BertCrossAttention, BertLayer, BertSelfAttention

from mha_course import masks
from mha_course.encoder import Encoder, EncoderLayer

from .contest import LAYER_MASKS, TOLERANCE_OF_LAYERS, Case, Comparison, Leaves, Shapes, call, parameters, shapes_of
from .pytorch_attention import fused, our_layer, self_shapes, step_by_step, tokens
from .pytorch_layers import D_FF, LAYERS


@cache
def bert(kind: type[nn.Module], width: int, heads: int, implementation: str) -> nn.Module:
    return kind(
        BertConfig(
            vocab_size=17,
            max_position_embeddings=13,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=D_FF,
            num_hidden_layers=LAYERS,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation=implementation,
        )
    )


def added(case: Case) -> Tensor | None:
    """BERT's layers add their mask to the scores."""
    return None if case.kind == "none" else masks.to_additive(case.spread(), case.dtype)


def projected(leaves: Leaves, mixed: Tensor) -> Tensor:
    """BERT's attention ends before the output projection."""
    return F.linear(mixed, leaves["out_proj.weight"], leaves["out_proj.bias"])


BERT_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
BERT_PARTS = {f"self_attn.{ours}": f"attention.self.{theirs}" for ours, theirs in BERT_PROJECTIONS.items()} | {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ffn.0": "intermediate.dense",
    "ffn.2": "output.dense",
    "norm2": "output.LayerNorm",
}


def renamed(leaves: Leaves, names: dict[str, str], prefix: str = "", to: str = "") -> Leaves:
    return {
        f"{to}{theirs}.{kind}": leaves[f"{prefix}{ours}.{kind}"]
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }


def their_attention(kind: type[nn.Module], implementation: str, *, weights: bool = False):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = bert(kind, case.size.d_model, case.size.heads, implementation)
        query, memory, _ = tokens(leaves)
        given = (query, added(case)) if kind is BertSelfAttention else (query, memory, added(case))
        mixed, shown = call(layer, renamed(leaves, BERT_PROJECTIONS), case, lambda layer: layer(*given))
        return {"output": projected(leaves, mixed)} | ({"weights": shown} if weights else {})

    return contestant


def cross_shapes(case: Case) -> Shapes:
    size = case.size
    return {
        "x": (size.batch, size.queries, size.d_model),
        "memory": (size.batch, size.keys, size.d_model),
    } | shapes_of(our_layer(size.d_model, size.heads))


def our_bert_layer(width: int, heads: int) -> EncoderLayer:
    return EncoderLayer(width, heads, D_FF, activation=nn.GELU, norm_eps=1e-12)


def bert_layer_shapes(case: Case) -> Shapes:
    size = case.size
    return {"x": (size.batch, size.keys, size.d_model)} | shapes_of(our_bert_layer(size.d_model, size.heads))


def our_layer_as_in_bert(leaves: Leaves, case: Case) -> Leaves:
    layer = our_bert_layer(case.size.d_model, case.size.heads)
    return {"output": call(layer, parameters(leaves), case, lambda layer: layer(leaves["x"], case.mask()))}


def their_bert_layer(implementation: str):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = bert(BertLayer, case.size.d_model, case.size.heads, implementation)
        given = renamed(leaves, BERT_PARTS)
        return {"output": call(layer, given, case, lambda layer: layer(leaves["x"], added(case)))}

    return contestant


def our_bert(width: int, heads: int) -> Encoder:
    return Encoder(width, heads, D_FF, LAYERS, norm_first=False, activation=nn.GELU, norm_eps=1e-12)


def bert_shapes(case: Case) -> Shapes:
    size = case.size
    return {"x": (size.batch, size.keys, size.d_model)} | shapes_of(our_bert(size.d_model, size.heads))


def our_encoder(leaves: Leaves, case: Case) -> Leaves:
    """Under a mask read from the tokenizer's, and under ours."""
    model, width = our_bert(case.size.d_model, case.size.heads), case.size.d_model
    read = masks.from_tokenizer(case.spread()[:, 0, 0].long())
    embedded = F.layer_norm(leaves["x"], (width,), eps=1e-12)
    return {
        name: call(model, parameters(leaves), case, lambda model, mask=mask: model(embedded, mask))
        for name, mask in (("read", read), ("written", case.mask()))
    }


def their_encoder(leaves: Leaves, case: Case) -> Leaves:
    """BERT as a whole; its embeddings add nothing here and only normalise."""
    model = bert(BertModel, case.size.d_model, case.size.heads, "sdpa")
    given = {
        name: (torch.ones_like if "LayerNorm.weight" in name else torch.zeros_like)(parameter, dtype=case.dtype)
        for name, parameter in model.named_parameters()
    }
    for i in range(LAYERS):
        given |= renamed(leaves, BERT_PARTS, f"layers.{i}.", f"encoder.layer.{i}.")
    tokenizer, written = case.spread()[:, 0, 0].long(), masks.to_tokenizer(case.mask())
    return {
        name: call(
            model,
            given,
            case,
            lambda model, mask=mask: model(inputs_embeds=leaves["x"], attention_mask=mask).last_hidden_state,
        )
        for name, mask in (("read", tokenizer), ("written", written))
    }


COMPARISONS = (
    *(
        comparison
        for implementation in ("eager", "sdpa")
        for comparison in (
            Comparison(
                "multi_head.MultiHeadAttention" + (".with_weights" if implementation == "eager" else ""),
                f"BertSelfAttention, {implementation}, and F.linear",
                step_by_step if implementation == "eager" else fused(),
                their_attention(BertSelfAttention, implementation, weights=implementation == "eager"),
                self_shapes,
                square=True,
            ),
            Comparison(
                "multi_head.MultiHeadAttention" + (".with_weights" if implementation == "eager" else ""),
                f"BertCrossAttention, {implementation}, and F.linear",
                step_by_step if implementation == "eager" else fused(),
                their_attention(BertCrossAttention, implementation, weights=implementation == "eager"),
                cross_shapes,
            ),
            Comparison(
                "encoder.EncoderLayer with GELU, norm_eps 1e-12",
                f"BertLayer, {implementation}",
                our_layer_as_in_bert,
                their_bert_layer(implementation),
                bert_layer_shapes,
                masks=LAYER_MASKS,
                square=True,
                tolerance=TOLERANCE_OF_LAYERS,
            ),
        )
    ),
    Comparison(
        "encoder.Encoder under masks.from_tokenizer, to_tokenizer",
        "BertModel, sdpa, under attention_mask",
        our_encoder,
        their_encoder,
        bert_shapes,
        masks=("padding",),
        square=True,
        tolerance=TOLERANCE_OF_LAYERS,
    ),
)

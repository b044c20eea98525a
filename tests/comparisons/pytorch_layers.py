"""Our layers, whole models and the recurrent network beside those of `torch.nn`."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor, nn

from mha_course.decoder import DecoderLayer, PreNormDecoderLayer
from mha_course.encoder import EncoderLayer, PreNormEncoderLayer
from mha_course.self_attention import RecurrentNetwork, causal_mask
from mha_course.transformer import Transformer

from .contest import (
    LAYER_MASKS,
    TOLERANCE,
    TOLERANCE_OF_LAYERS,
    Case,
    Comparison,
    Leaves,
    Shapes,
    call,
    parameters,
    seeded,
    shapes_of,
)
from .pytorch_attention import hiding, packed

D_FF = 19


@cache
def layer_of(kind: type[nn.Module], width: int, heads: int, **options) -> nn.Module:
    return kind(width, heads, D_FF, dropout=0.0, **options)


def renamed(leaves: Leaves, attentions: dict[str, str], norms: int, to: str = "", prefix: str = "") -> Leaves:
    """Our names of one layer's parameters as PyTorch has them; attentions: its name of each of ours."""
    found = {}
    for ours, theirs in attentions.items():
        found |= packed(leaves, f"{prefix}{ours}.", f"{to}{theirs}.")
    names = {"ffn.0": "linear1", "ffn.2": "linear2"} | {f"norm{i}": f"norm{i}" for i in range(1, norms + 1)}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            found[f"{to}{theirs}.{kind}"] = leaves[f"{prefix}{ours}.{kind}"]
    return found


ENCODER = ({"self_attn": "self_attn"}, 2)
DECODER = ({"self_attn": "self_attn", "cross_attn": "multihead_attn"}, 3)


def encoder_shapes(case: Case) -> Shapes:
    size = case.size
    layer = layer_of(EncoderLayer, size.d_model, size.heads)
    return {"x": (size.batch, size.keys, size.d_model)} | shapes_of(layer)


def our_encoder_layer(kind: type[EncoderLayer], activation: type[nn.Module]):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = layer_of(kind, case.size.d_model, case.size.heads, activation=activation)
        return {"output": call(layer, parameters(leaves), case, lambda layer: layer(leaves["x"], case.mask()))}

    return contestant


def their_encoder_layer(**options):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        size = case.size
        layer = layer_of(nn.TransformerEncoderLayer, size.d_model, size.heads, batch_first=True, **options)
        names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
        use = {names[name]: mask for name, mask in hiding(case).items()}
        return {"output": call(layer, renamed(leaves, *ENCODER), case, lambda layer: layer(leaves["x"], **use))}

    return contestant


def decoder_shapes(case: Case) -> Shapes:
    size = case.size
    layer = layer_of(DecoderLayer, size.d_model, size.heads)
    return {
        "x": (size.batch, size.queries, size.d_model),
        "memory": (size.batch, size.keys, size.d_model),
    } | shapes_of(layer)


def our_decoder_layer(kind: type[DecoderLayer], activation: type[nn.Module]):
    """Causal among the target's tokens; the mask of the case is between target and source."""

    def contestant(leaves: Leaves, case: Case) -> Leaves:
        layer = layer_of(kind, case.size.d_model, case.size.heads, activation=activation)
        own = causal_mask(case.size.queries)
        return {
            "output": call(
                layer, parameters(leaves), case, lambda layer: layer(leaves["x"], leaves["memory"], own, case.mask())
            )
        }

    return contestant


def their_decoder_layer(**options):
    def contestant(leaves: Leaves, case: Case) -> Leaves:
        size = case.size
        layer = layer_of(nn.TransformerDecoderLayer, size.d_model, size.heads, batch_first=True, **options)
        names = {"attn_mask": "memory_mask", "key_padding_mask": "memory_key_padding_mask"}
        use = {names[name]: mask for name, mask in hiding(case).items()} | {"tgt_mask": later(size.queries)}
        return {
            "output": call(
                layer, renamed(leaves, *DECODER), case, lambda layer: layer(leaves["x"], leaves["memory"], **use)
            )
        }

    return contestant


def later(length: int) -> Tensor:
    """True where PyTorch's layers must not look: at what comes later."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


VOCABULARIES, PAD, LAYERS = (17, 23), 0, 2


@cache
def our_model(width: int, heads: int) -> Transformer:
    return Transformer(*VOCABULARIES, 13, width, heads, D_FF, LAYERS, pad=PAD)


@cache
def their_model(width: int, heads: int) -> nn.Transformer:
    with warnings.catch_warnings():
        # It says that pre-norm layers have no fast path, which nobody asked for.
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        return nn.Transformer(width, heads, LAYERS, LAYERS, D_FF, dropout=0.0, batch_first=True, norm_first=True)


def ids(case: Case) -> tuple[Tensor, Tensor]:
    """Source, padded as the case's mask says, and target."""
    size = case.size
    source, target = (
        torch.randint(1, words, (size.batch, length), generator=seeded(f"{words} {length}"))
        for words, length in zip(VOCABULARIES, (size.keys, size.queries), strict=True)
    )
    return (source if case.kind == "none" else source * case.mask()[:, 0, 0]), target


def model_shapes(case: Case) -> Shapes:
    return shapes_of(our_model(case.size.d_model, case.size.heads))


def our_transformer(leaves: Leaves, case: Case) -> Leaves:
    model = our_model(case.size.d_model, case.size.heads)
    return {"logits": call(model, parameters(leaves), case, lambda model: model(*ids(case)))}


def their_transformer(leaves: Leaves, case: Case) -> Leaves:
    """PyTorch's has neither embeddings nor an output layer: it gets ours."""
    model, (source, target) = our_model(case.size.d_model, case.size.heads), ids(case)
    given = {}
    for side, (attentions, norms) in (("encoder", ENCODER), ("decoder", DECODER)):
        for i in range(LAYERS):
            given |= renamed(leaves, attentions, norms, f"{side}.layers.{i}.", f"{side}.layers.{i}.")
        given |= {f"{side}.norm.{kind}": leaves[f"{side}.norm.{kind}"] for kind in ("weight", "bias")}
    read, written = call(model, parameters(leaves), case, lambda model: (model.source(source), model.target(target)))
    hidden = source == PAD
    use = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden, "tgt_mask": later(target.size(1))}
    result = call(
        their_model(case.size.d_model, case.size.heads), given, case, lambda model: model(read, written, **use)
    )
    return {"logits": result @ leaves["output.table.weight"].T}


def recurrent_shapes(case: Case) -> Shapes:
    return {"x": (case.size.batch, case.size.keys, case.size.d_model)} | shapes_of(RecurrentNetwork(case.size.d_model))


def our_recurrent(leaves: Leaves, case: Case) -> Leaves:
    network = RecurrentNetwork(case.size.d_model)
    return {"states": call(network, parameters(leaves), case, lambda network: network(leaves["x"]))}


def their_recurrent(leaves: Leaves, case: Case) -> Leaves:
    names = {"weight_ih_l0": "from_token.weight", "weight_hh_l0": "from_state.weight"}
    names |= {"bias_ih_l0": "from_token.bias", "bias_hh_l0": "from_state.bias"}
    given = {theirs: leaves[ours] for theirs, ours in names.items()}
    network = nn.RNN(case.size.d_model, case.size.d_model, batch_first=True)
    return {"states": call(network, given, case, lambda network: network(leaves["x"])[0])}


# ReLU has a kink: in the shorter types a number may round to its other side, and the gradient is another one.
EXACT = (torch.float64, torch.float32)
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


def layers(activation: str) -> list[Comparison]:
    """Both layers, post-norm and pre-norm, with this activation."""
    found = []
    for norm_first, encoder, decoder in (
        (False, EncoderLayer, DecoderLayer),
        (True, PreNormEncoderLayer, PreNormDecoderLayer),
    ):
        options = {"norm_first": norm_first, "activation": activation}
        note = f" with {'norm_first, ' if norm_first else ''}{activation}"
        dtypes = EXACT if activation == "relu" else tuple(TOLERANCE)
        module = ACTIVATIONS[activation]
        found += [
            Comparison(
                f"encoder.{encoder.__name__}",
                f"nn.TransformerEncoderLayer{note}",
                our_encoder_layer(encoder, module),
                their_encoder_layer(**options),
                encoder_shapes,
                square=True,
                masks=LAYER_MASKS,
                dtypes=dtypes,
                tolerance=TOLERANCE_OF_LAYERS,
            ),
            Comparison(
                f"decoder.{decoder.__name__}",
                f"nn.TransformerDecoderLayer{note}",
                our_decoder_layer(decoder, module),
                their_decoder_layer(**options),
                decoder_shapes,
                masks=LAYER_MASKS,
                dtypes=dtypes,
                tolerance=TOLERANCE_OF_LAYERS,
            ),
        ]
    return found


COMPARISONS = (
    Comparison(
        "self_attention.RecurrentNetwork",
        "nn.RNN",
        our_recurrent,
        their_recurrent,
        recurrent_shapes,
        masks=("none",),
    ),
    *(layer for activation in ACTIVATIONS for layer in layers(activation)),
    Comparison(
        "transformer.Transformer",
        "nn.Transformer with norm_first, our embeddings and our output layer",
        our_transformer,
        their_transformer,
        model_shapes,
        masks=("none", "padding"),
        dtypes=EXACT,
        tolerance=TOLERANCE_OF_LAYERS,
    ),
)

"""Our language model beside GPT-2 in the transformers library."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from mha_course.transformer import LanguageModel

from .contest import TOLERANCE_OF_LAYERS, Case, Comparison, Leaves, Shapes, call, parameters, seeded, shapes_of
from .pytorch_layers import D_FF, EXACT, LAYERS
from .transformers_bert import renamed

VOCABULARY = 17


@cache
def our_gpt2(width: int, heads: int) -> LanguageModel:
    return LanguageModel(VOCABULARY, 13, width, heads, D_FF, LAYERS, tied=False)


@cache
def their_gpt2(width: int, heads: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=13,
        n_embd=width,
        n_layer=LAYERS,
        n_head=heads,
        n_inner=D_FF,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


def text(case: Case) -> tuple[Tensor, Tensor | None]:
    """Ids, and where the text is padded on its left: True on real tokens."""
    size = case.size
    ids = torch.randint(VOCABULARY, (size.batch, size.keys), generator=seeded(str(size)))
    return ids, None if case.kind == "none" else case.mask()[:, 0, 0].flip(1)


def gpt2_shapes(case: Case) -> Shapes:
    return shapes_of(our_gpt2(case.size.d_model, case.size.heads))


def at_real_tokens(logits: Tensor, real: Tensor | None) -> Tensor:
    """What comes out at padding means nothing."""
    return logits if real is None else logits * real[:, :, None]


def our_language_model(leaves: Leaves, case: Case) -> Leaves:
    ids, real = text(case)
    model = our_gpt2(case.size.d_model, case.size.heads)
    return {"logits": at_real_tokens(call(model, parameters(leaves), case, lambda model: model(ids, real)), real)}


def their_language_model(leaves: Leaves, case: Case) -> Leaves:
    ids, real = text(case)
    given = {
        "transformer.wte.weight": leaves["embedding.token.weight"],
        "transformer.wpe.weight": leaves["embedding.position.weight"],
        "lm_head.weight": leaves["output.table.weight"],
    } | renamed(leaves, {"encoder.norm": "transformer.ln_f"})
    for i in range(LAYERS):
        ours, theirs = f"encoder.layers.{i}.", f"transformer.h.{i}."
        given |= renamed(leaves, {"norm1": "ln_1", "norm2": "ln_2"}, ours, theirs)
        # GPT-2 keeps the three projections in one matrix, and each matrix as it stands in formulas: (in, out).
        for kind in ("weight", "bias"):
            parts = [leaves[f"{ours}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            given[f"{theirs}attn.c_attn.{kind}"] = torch.cat(parts)
        names = {"self_attn.out_proj": "attn.c_proj", "ffn.0": "mlp.c_fc", "ffn.2": "mlp.c_proj"}
        given |= renamed(leaves, names, ours, theirs)
        for matrix in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            given[f"{theirs}{matrix}.weight"] = given[f"{theirs}{matrix}.weight"].T
    use = {} if real is None else {"attention_mask": real.long(), "position_ids": counted(real)}
    model = their_gpt2(case.size.d_model, case.size.heads)
    return {"logits": at_real_tokens(call(model, given, case, lambda model: model(ids, **use).logits), real)}


def counted(real: Tensor) -> Tensor:
    """The positions that `generate` hands to a model whose text is padded on its left."""
    positions = real.long().cumsum(-1) - 1
    return positions.masked_fill(~real, 0)


COMPARISONS = (
    Comparison(
        "transformer.LanguageModel",
        "GPT2LMHeadModel, eager, with relu",
        our_language_model,
        their_language_model,
        gpt2_shapes,
        masks=("none", "padding"),
        square=True,
        dtypes=EXACT,
        tolerance=TOLERANCE_OF_LAYERS,
    ),
)

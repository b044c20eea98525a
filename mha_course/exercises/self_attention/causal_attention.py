"""Exercise: attention in which nobody sees what comes later, nor padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, unchanged
from mha_course.exercises.self_attention.scaled_dot_product_attention import (
    AXIS,
    FUNCTION,
    GRADIENTS,
    MASK,
    NOTHING,
    SCALE,
    Result,
    attend,
    blind_query_gets_nothing,
    describe,
    infinity,
    infinity_added,
    inputs,
    nothing_is_zero,
    product,
    rows_sum_to_one,
    untouched,
    weighed_again,
    with_number,
)
from mha_course.self_attention import causal_mask, padding_mask, scaled_dot_product_attention

SECTION, TOGETHER, PADDING = (
    "self_attention#causal-mask",
    "self_attention#masks-together",
    "self_attention#padding-mask",
)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Result:
    mask = causal_mask(query.size(-2))
    return scaled_dot_product_attention(query, key, value, mask if padding is None else mask & padding)


def cases(rng: Generator) -> Iterator[Case]:
    yield from _causal_cases(rng)
    yield from _padding_cases(rng)
    for label, lengths in (("no padding mask", None), ("padding behind", (2, 5))):
        q, k, v = inputs(rng, (2, 3), 5, 5, 7, 2)
        known = () if lengths is None else (padding_mask(torch.tensor(lengths), 5),)
        yield Case(
            "gradients", f"{describe(q, k, v)}, {label}, with gradients", (Call((q, k, v, *known), backward=True),)
        )
    for label, backward in (("", False), (", with gradients", True)):
        q, k, v = inputs(rng, (2, 3), 5, 5, 7, 2)
        padding = torch.tensor([[False, False, True, True, True]])[:, None, None]
        text = (
            f"{describe(q, k, v)}, two places of padding in FRONT, so that queries 0 and 1 may attend to nothing{label}"
        )
        call = Call((q, k, v, padding), backward=backward)
        yield Case("nothing to attend to", text, (call,), holds=(blind_query_gets_nothing,))


def _causal_cases(rng: Generator) -> Iterator[Case]:
    for label, leading, length, scale in (
        ("", (), 3, 1.0),
        ("a batch", (2,), 5, 1.0),
        ("one token", (2, 3), 1, 1.0),
        ("heads", (2, 3), 7, 1.0),
        ("as many heads as tokens", (2, 5), 5, 1.0),
        ("as many examples as tokens", (3,), 3, 1.0),
        ("scores in the thousands", (2,), 7, 60.0),
    ):
        q, k, v = inputs(rng, leading, length, length, 11, 2, scale)
        if scale > 1:  # query 0 sees key 0 alone, which fits it badly: what is hidden too weakly comes through
            q[..., 0, :] = -k[..., 0, :]
        text = describe(q, k, v) + f", {label}" * bool(label)
        yield Case("causal", text, (Call((q, k, v)),), holds=(no_weight_on_later_keys, rows_sum_to_one))
    q, k, v = inputs(rng, (), 5, 5, 7, 2)
    q[3] = 0
    text = describe(q, k, v) + ", query 3 all zeros, so that its scores are all exactly 0"
    yield Case("causal", text, (Call((q, k, v)),), holds=(no_weight_on_later_keys, rows_sum_to_one))
    q, k, v = inputs(rng, (2,), 5, 5, 7, 2)
    later_k, later_v = k.clone(), v.clone()
    later_k[:, 3:], later_v[:, 3:] = randn(rng, 2, 2, 7, scale=9.0), randn(rng, 2, 2, 2, scale=9.0)
    yield Case(
        "causal",
        describe(q, k, v) + ", the last two keys and values changed",
        (Call((q, k, v)), Call((q, later_k, later_v))),
        holds=(
            unchanged(
                "What comes later has no effect on what comes before.",
                "when only keys and values 3 and 4 were changed, the output of queries 0 to 2 moved by {change}",
                where=(slice(None), slice(3)),
            ),
        ),
    )
    first, second = inputs(rng, (2,), 5, 5, 7, 2), inputs(rng, (), 3, 3, 7, 2)
    yield Case("causal", "5 tokens, then 3 tokens", (Call(first), Call(second)))
    q, k, v = inputs(rng, (2,), 5, 5, 7, 2, dtype=torch.float64)
    yield Case("causal", describe(q, k, v) + ", float64", (Call((q, k, v)),), tolerance=1e-9)


def _padding_cases(rng: Generator) -> Iterator[Case]:
    for lengths, heads, length in (((2, 3), 1, 3), ((5, 3, 1), 2, 5), ((7, 4), 3, 7), ((2, 5, 3, 4, 1), 5, 5)):
        q, k, v = inputs(rng, (len(lengths), heads), length, length, 7, 2)
        padding = padding_mask(torch.tensor(lengths), length)
        text = f"{describe(q, k, v)}, lengths {list(lengths)}, padding behind"
        holds = (no_weight_on_later_keys, no_weight_on_padding(padding), rows_sum_to_one)
        yield Case("padding", text, (Call((q, k, v, padding)),), holds=holds)
    for scale in (1.0, 60.0):
        q, k, v = inputs(rng, (2, 3), 5, 5, 7, 2, scale)
        padding = torch.tensor([[True, True, False, True, True], [True, False, True, True, False]])[:, None, None]
        text = f"{describe(q, k, v)}, padding between real tokens" + ", scores in the thousands" * (scale > 1)
        holds = (no_weight_on_later_keys, no_weight_on_padding(padding), rows_sum_to_one)
        yield Case("padding", text, (Call((q, k, v, padding)),), holds=holds)


def _leak(outputs: Sequence[Any]) -> str | None:
    weights = outputs[0][1]
    later = weights.abs().triu(1)
    if not weights.numel() or later.max() <= 1e-6:
        return None
    *_, query, key = (later > 1e-6).nonzero()[0].tolist()
    return f"query {query} gives key {key}, which comes later, the weight {float(later[later > 1e-6][0]):.3g}"


no_weight_on_later_keys = Property("A key that comes later gets no weight at all.", _leak)


def no_weight_on_padding(padding: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        wrong = outputs[0][1].masked_fill(padding, 0.0).abs() > 1e-6
        if not wrong.any():
            return None
        *leading, query, key = wrong.nonzero()[0].tolist()
        weight = float(outputs[0][1][tuple(wrong.nonzero()[0].tolist())])
        return f"in example {leading[0]}, query {query} gives key {key}, which is padding, the weight {weight:.3g}"

    return Property("Padding gets no weight at all.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def masked_by(
    join: Callable[[Tensor, Tensor | None], Tensor | None], attention: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Build an attention whose mask is made out of the causal one and the padding, which may be None."""

    def wrong(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Any:
        mask = join(causal_mask(query.size(-2)), padding)
        return (attention or scaled_dot_product_attention)(query, key, value, mask)

    return wrong


def both(causal: Tensor, padding: Tensor | None) -> Tensor:
    return causal if padding is None else causal & padding


def joining(join: Callable[[Tensor, Tensor], Tensor | None]) -> Callable[..., Any]:
    """Build an attention that is right without padding."""
    return masked_by(lambda causal, padding: causal if padding is None else join(causal, padding))


def hiding(hide: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    return masked_by(both, attend(hide=hide, finish=untouched))


def zeros_hidden(number: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Cut the triangle out of the scores, and hide whatever is 0 then."""

    def hide(scores: Tensor, mask: Tensor) -> Tensor:
        return (scores * mask).masked_fill(scores * mask == 0, number)

    return hide


def padding_added(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Result:
    """Hide the future rightly, and add the boolean padding mask to the scores."""
    real = 0 if padding is None else padding
    return masked_by(
        lambda causal, padding: causal, attend(hide=lambda scores, mask: (scores + real).masked_fill(~mask, -math.inf))
    )(query, key, value)


def joined_in_place(causal: Tensor, padding: Tensor | None) -> Tensor:
    if padding is not None:
        causal &= padding
    return causal


def length_along(axis: int) -> Callable[..., Result]:
    def wrong(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Result:
        return scaled_dot_product_attention(query, key, value, both(causal_mask(query.size(axis)), padding))

    return wrong


def flag_and_mask(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Result:
    """Call the library, as people do, with its flag and a mask: it refuses both together."""
    identity = torch.eye(key.size(-2), dtype=value.dtype).expand(*key.shape[:-1], key.size(-2))
    output, weights = (
        F.scaled_dot_product_attention(query, key, mixed, attn_mask=padding, is_causal=True)
        for mixed in (value, identity)
    )
    return output, weights


def output_alone(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Tensor:
    return causal_attention(query, key, value, padding)[0]


def results_swapped(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None) -> Result:
    output, weights = causal_attention(query, key, value, padding)
    return weights, output


MISCONCEPTIONS = (
    Misconception(
        "causal_skipped_without_mask",
        "The future is hidden only if a padding mask is given: the causal mask is made inside the branch that deals "
        "with padding. A batch without padding then trains a model that looks at the answers. Being causal is what "
        "this function is for; the argument that may be left out is the padding alone.",
        SECTION,
        (masked_by(lambda causal, padding: None if padding is None else causal & padding),),
        (
            "https://github.com/facebookresearch/xformers/issues/103",
            "https://github.com/paiml/entrenar/issues/310",
        ),
    ),
    Misconception(
        "not_causal",
        "The future is not hidden at all: each token attends to all of them, whether padding is given or not.",
        SECTION,
        (masked_by(lambda causal, padding: padding),),
        ("https://github.com/alex-matton/causal-transformer-decoder/issues/1",),
    ),
    Misconception(
        "padding_dropped_when_causal",
        "The padding mask has no effect: padding gets a part of the weights. One mask has taken the place of the "
        "other, or the argument isn't used. The causal mask does hide padding that stands BEHIND the real tokens from "
        "these; padding that stands in front of them or in between it does not hide. Both must hold at once.",
        TOGETHER,
        (masked_by(lambda causal, padding: causal),),
        (
            "https://github.com/AI-Hypercomputer/maxtext/issues/878",
            "https://github.com/keras-team/keras-io/pull/1046",
        ),
    ),
    Misconception(
        "causal_dropped_when_padded",
        "As soon as a padding mask is given, the future is no longer hidden: it has taken the place of the causal "
        "mask. The padding mask says which tokens are real, not in which order they come. Both must hold at once.",
        TOGETHER,
        (joining(lambda causal, padding: padding),),
    ),
    Misconception(
        "masks_joined_by_or",
        "A key may be seen if ONE of the masks allows it. That is “or”, which also comes out when two boolean masks "
        "are added with +. What one of them forbids must stay forbidden.",
        TOGETHER,
        (joining(torch.logical_or),),
        (
            "https://github.com/NVIDIA/TransformerEngine/pull/1271",
            "https://github.com/lucidrains/local-attention/issues/5",
        ),
    ),
    Misconception(
        "padding_inverted",
        "The padding mask is read the wrong way round: real tokens are hidden and padding is seen. True means “may "
        "attend” here; in the key_padding_mask of nn.MultiheadAttention it means “ignore”.",
        "self_attention#masks",
        (joining(lambda causal, padding: causal & ~padding),),
        ("https://github.com/lucidrains/x-transformers/issues/160",),
    ),
    Misconception(
        "padding_hides_queries",
        "The padding mask hides rows: queries of padding see nothing, and keys of padding may still be seen. It comes "
        "with the axis of the keys last, as the weights have it; it must not be turned.",
        PADDING,
        (
            joining(lambda causal, padding: causal & padding.transpose(-2, -1)),
            joining(lambda causal, padding: causal & padding & padding.transpose(-2, -1)),
        ),
        ("https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",),
    ),
    Misconception(
        "padding_axes_dropped",
        "The padding mask has lost its axes of size 1 before it was joined (squeeze, or an index). Lined up from the "
        "right, (batch, key) meets (query, key): sentences fall on queries. The axes of size 1 are what keeps the two "
        "apart.",
        TOGETHER,
        (
            joining(lambda causal, padding: causal & padding.squeeze()),
            joining(lambda causal, padding: causal & padding[:, 0]),
        ),
        ("https://github.com/lucidrains/vit-pytorch/issues/71",),
    ),
    Misconception(
        "masks_not_joined",
        "The two masks never become one. If PyTorch's function refused them: its is_causal=True makes a mask of its "
        "own, and is not allowed beside another. If `&=` did: it writes into the mask on its left, where (query, key) "
        "has no room for a batch. Make a new mask, in which both hold, and hand that one over.",
        TOGETHER,
        (masked_by(joined_in_place), flag_and_mask),
    ),
    Misconception(
        "length_from_a_fixed_axis",
        "The number of tokens is read from axis 0 or 1, counted from the front. With heads there stands something "
        "else: (batch, head, length, d_head) has its heads at 1. If these happen to be as many as the tokens, nothing "
        "is noticed. Counted from the end, the length is found whatever stands in front.",
        SECTION,
        (length_along(1), length_along(0)),
    ),
    Misconception(
        "length_from_the_width",
        "The number of tokens is read from the last axis. That's the width of a query; the tokens are one axis before "
        "it.",
        SECTION,
        (length_along(-1),),
    ),
    Misconception(
        "causal_mask_transposed",
        "Past and future have changed places: each token sees itself and what comes later. A row is a query, a column "
        "a key.",
        SECTION,
        (masked_by(lambda causal, padding: both(causal.t(), padding)),),
        ("https://github.com/marin-community/levanter/pull/102",),
    ),
    Misconception(
        "causal_mask_excludes_self",
        "No token may attend to itself, and the first one sees nothing at all. The token itself is what the model is "
        "given at this place; the answer is the next one.",
        SECTION,
        (
            masked_by(lambda causal, padding: both(causal.tril(-1), padding)),
            masked_by(lambda causal, padding: both(causal.tril(-1), padding), attend(finish=untouched)),
            masked_by(lambda causal, padding: both(causal.tril(-1), padding), attend(hide=infinity, finish=untouched)),
        ),
        ("https://github.com/pbloem/former/issues/10",),
    ),
    Misconception(
        "causal_mask_sees_next",
        "Each token may also attend to the next one, which is the answer that it has to predict: in training the loss "
        "falls as by magic, and the model has learned to copy.",
        SECTION,
        (masked_by(lambda causal, padding: both(torch.ones_like(causal).tril(1), padding)),),
    ),
    Misconception(
        "causal_mask_inverted",
        "The causal mask is read the wrong way round: what you hide is the past. True means “may attend” here.",
        "self_attention#masks",
        (
            masked_by(lambda causal, padding: both(~causal, padding)),
            masked_by(lambda causal, padding: both(~causal, padding), attend(finish=untouched)),
            masked_by(lambda causal, padding: both(~causal, padding), attend(hide=infinity, finish=untouched)),
        ),
        ("https://github.com/rasbt/LLMs-from-scratch/issues/1061",),
    ),
    Misconception(
        "triangle_of_scores",
        "The triangle was cut out of the scores (tril of the scores, or a product with 1 and 0). What is cut away "
        "becomes 0, and 0 is an ordinary score: exp(0) = 1. Later keys keep a sizeable weight. They need the lowest "
        "score there is.",
        MASK,
        (hiding(lambda scores, mask: scores * mask),),
        ("https://github.com/hyunwoongko/transformer/issues/10",),
    ),
    Misconception(
        "zero_scores_hidden",
        "The triangle was cut out of the scores, and then every score that is exactly 0 was hidden. That 0 has two "
        "meanings: cut away, and a real score, which a query and a key have that stand at a right angle, or of which "
        "one is all zeros. Such keys are hidden though they may be seen. Ask the mask what is hidden, not the scores.",
        MASK,
        (
            masked_by(both, attend(hide=zeros_hidden(-math.inf), finish=lambda weights, mask: weights.nan_to_num())),
            *(hiding(zeros_hidden(number)) for number in (-math.inf, -1e9)),
        ),
    ),
    Misconception(
        "mask_after_softmax",
        "The triangle was cut out of the weights, after softmax had shared out the 1 among all keys. What the later "
        "ones got is lost: the rows sum to less than 1. The mask belongs before softmax.",
        MASK,
        (masked_by(both, attend(hide=lambda scores, mask: scores)),),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "mask_after_softmax_renormalised",
        "The triangle was cut out of the weights, after softmax, and the rows divided by what was left. On paper that "
        "is the same. On a computer it fails where a later score is far above the earlier ones: their weights have "
        "been rounded to 0 by then, and 0 divided by 0 is NaN (or 0, with a small number added below). The mask "
        "belongs before softmax.",
        MASK,
        tuple(
            masked_by(both, attend(hide=lambda scores, mask: scores, finish=weighed_again(epsilon)))
            for epsilon in (0.0, 1e-9, 1e-8)
        ),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "mask_too_weak",
        "Hidden keys get a low score, but not low enough: a later key with a high score still comes through. With a "
        "fixed number, a model can even learn to push its scores below it. What is hidden needs the lowest score "
        "there is.",
        MASK,
        tuple(hiding(with_number(low)) for low in (-1.0, -10.0, -100.0)),
        ("https://github.com/karpathy/minGPT/issues/75",),
    ),
    Misconception(
        "mask_bool_added",
        "The boolean mask is added to the scores. Allowed keys gain 1, hidden ones 0: a faint preference, and nothing "
        "is hidden. Only a mask of 0 and very large negative numbers is made to be added.",
        MASK,
        (hiding(lambda scores, mask: scores + mask), padding_added),
        ("https://github.com/huggingface/transformers/pull/41443",),
    ),
    Misconception(
        "fully_masked_uniform",
        "A query that may attend to nothing gets the mean of all that it must not see: where all scores of a row are "
        "the same, however low, softmax shares out the 1 evenly. With padding in front this happens to the first "
        "rows. Their weights have to be set to zero.",
        NOTHING,
        (masked_by(both, attend(finish=untouched)),),
        ("https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",),
    ),
    Misconception(
        "fully_masked_nan",
        "A query that may attend to nothing gets NaN: 0 divided by 0, in softmax of a row of minus infinities. With "
        "padding in front this happens to the first rows, and one NaN spoils the whole loss.",
        NOTHING,
        (masked_by(both, attend(hide=infinity, finish=untouched)),),
        (
            "https://github.com/pytorch/pytorch/issues/103749",
            "https://github.com/pytorch/pytorch/issues/41508",
        ),
    ),
    Misconception(
        "fully_masked_nan_grad",
        "The output is right, the gradients are NaN. Minus infinity was added to the scores and the NaN that it leads "
        "to was replaced after softmax, but on the way back softmax still multiplies by it. The NaN must never arise.",
        NOTHING,
        (masked_by(both, attend(hide=infinity_added, finish=lambda weights, mask: weights.nan_to_num(0.0))),),
        ("https://github.com/pytorch/pytorch/issues/41508",),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the head's width.",
        SCALE,
        (masked_by(both, attend(score=product)),),
    ),
    Misconception(
        "softmax_over_queries",
        "softmax runs along the queries. Each key then shares itself out among them, where each query should share "
        "itself out among the keys: the rows are what must sum to 1.",
        AXIS,
        (masked_by(both, attend(normalise=lambda scores: scores.softmax(dim=-2))),),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "weights_detached",
        "The output is right, but queries and keys get no gradient: the weights have been rebuilt from raw data "
        "(.data, .detach(), torch.tensor(...)), which cuts them off. Such a layer never learns where to look.",
        GRADIENTS,
        (masked_by(both, attend(finish=lambda weights, mask: nothing_is_zero(weights, mask).detach())),),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
    Misconception(
        "results_swapped",
        "The two results are returned in the wrong order: the output comes first, then the weights.",
        FUNCTION,
        (results_swapped,),
    ),
    Misconception(
        "weights_not_returned",
        "Only the output is returned. The weights are wanted too, so that one can look at them.",
        FUNCTION,
        (output_alone,),
    ),
)

EXERCISE = Exercise(
    name="causal_attention",
    chapter="self_attention",
    kind="function",
    minutes=10,
    parts=(
        Part("causal", 2, "give no weight to what comes later, and share out the 1 among the rest", SECTION),
        Part("padding", 1, "give no weight to padding either, if it is told where that is", TOGETHER),
        Part("gradients", 1, "pass the right gradients to query, key and value", GRADIENTS),
        Part(
            "nothing to attend to", 1, "give zeros to a query that may attend to nothing, and finite gradients", NOTHING
        ),
    ),
    results=("output", "weights"),
    hints=(
        "What must this function do when no padding mask is given? And what changes when one is?",
        "All the parts are there: the function of attention takes one mask, and you have a way to make the causal one. "
        "Where does the number of tokens stand, if a batch and heads may stand in front?",
        "Make the causal mask first, whatever is given. Only if there is a padding mask, join the two, so that both "
        "hold. Then call your attention once.",
    ),
    cases=cases,
    reference=causal_attention,
    misconceptions=MISCONCEPTIONS,
)

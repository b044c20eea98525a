"""Exercise: mix values in proportion to how well a query fits their keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course import self_attention
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import ragged_mask, randn, sequence_first, unchanged

SECTION = "self_attention_exercises#scaled-dot-product-attention"
ROLES, FUNCTION = "self_attention#queries-keys-and-values", "self_attention#one-function"
SCALE, SOFTMAX = "self_attention#why-scale", "self_attention#why-softmax"
AXIS, GRADIENTS = "self_attention#which-axis-does-softmax-run-along", "self_attention#gradients"
HALF, MASK, NOTHING = (
    "self_attention#half-precision",
    "self_attention#boolean-or-additive",
    "self_attention#a-query-that-sees-nothing",
)
Result = tuple[Tensor, Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    yield from _mixing_cases(rng)
    yield from _mask_cases(rng)
    for label, leading, queries, keys, mask in (
        ("no mask", (), 2, 3, None),
        ("3 heads, a mask", (2, 3), 5, 7, ragged_mask(rng, 2, 1, 5, 7)),
        ("float64", (2,), 3, 3, None),
    ):
        q, k, v = inputs(
            rng, leading, queries, keys, 5, 11, dtype=torch.float64 if label == "float64" else torch.float32
        )
        call = Call((q, k, v), backward=True) if mask is None else Call((q, k, v, mask), backward=True)
        yield Case("gradients", describe(q, k, v) + f", {label}, with gradients", (call,))
    yield from _nothing_cases(rng)
    yield from _half_precision_cases(rng)


def _mixing_cases(rng: Generator) -> Iterator[Case]:
    for label, leading, queries, keys, d_head, d_value, scale in (
        ("", (), 2, 3, 2, 5, 1.0),
        ("one query", (), 1, 7, 3, 2, 1.0),
        ("a single key", (), 3, 1, 5, 2, 1.0),
        ("a batch", (2,), 3, 5, 7, 11, 1.0),
        ("heads", (2, 3), 5, 7, 13, 11, 1.0),
        ("small scores", (2, 3), 5, 7, 11, 2, 0.1),
        ("large scores", (3,), 5, 7, 11, 2, 5.0),
        ("scores in the thousands", (3,), 5, 7, 11, 2, 60.0),
        ("as many keys as queries", (2,), 5, 5, 29, 3, 1.0),
        ("two axes of examples, and heads", (2, 3, 2), 3, 5, 7, 2, 1.0),
    ):
        q, k, v = inputs(rng, leading, queries, keys, d_head, d_value, scale)
        text = describe(q, k, v) + f", {label}" * bool(label)
        yield Case("mixing", text, (Call((q, k, v)),), holds=(rows_sum_to_one,))
    for leading in ((), (2,)):  # rounding differs from one float32 answer to another, the type does not
        q, k, v = inputs(rng, leading, 2, 3, 5, 7, dtype=torch.float64)
        yield Case("mixing", describe(q, k, v) + ", float64", (Call((q, k, v)),))
    q, k, v = inputs(rng, (3,), 5, 7, 11, 2, dtype=torch.float64)
    yield Case("mixing", describe(q, k, v) + ", float64", (Call((q, k, v)),), tolerance=1e-9)
    q, k, v = (sequence_first(x) for x in inputs(rng, (2,), 3, 5, 7, 2))
    yield Case("mixing", describe(q, k, v) + ", stored sequence first", (Call((q, k, v)),))
    q, k, v = inputs(rng, (2,), 3, 5, 7, 2)
    other = q.clone()
    other[1] = randn(rng, 3, 7)
    yield Case(
        "mixing",
        describe(q, k, v) + ", the second example changed",
        (Call((q, k, v)), Call((other, k, v))),
        holds=(
            unchanged(
                "The examples of a batch do not affect one another.",
                "when only the second example was changed, the first one's output moved by {change}",
                where=0,
            ),
        ),
    )
    order = torch.randperm(5, generator=rng)
    yield Case(
        "mixing",
        describe(q, k, v) + ", keys and values in another order",
        (Call((q, k, v)), Call((q, k[:, order], v[:, order]))),
        holds=(
            unchanged(
                "The order of the keys does not matter, as long as each keeps its value.",
                "with keys and values in another order the output moved by {change}",
            ),
        ),
    )


def _mask_cases(rng: Generator) -> Iterator[Case]:
    for label, leading, mask in (
        ("a mask (query, key)", (), ragged_mask(rng, 3, 5)),
        ("a mask (query, key) for every example", (2,), ragged_mask(rng, 3, 5)),
        ("a mask (batch, 1, 1, key)", (3, 2), ragged_mask(rng, 3, 1, 1, 5)),
        ("a mask (batch, 1, query, key)", (2, 2), ragged_mask(rng, 2, 1, 3, 5)),
        ("a mask (batch, head, query, key)", (2, 3), ragged_mask(rng, 2, 3, 3, 5)),
        ("a mask (batch, query, key)", (2,), ragged_mask(rng, 2, 3, 5)),
        ("a mask that allows everything", (), torch.ones(3, 5, dtype=torch.bool)),
    ):
        q, k, v = inputs(rng, leading, 3, 5, 7, 2)
        yield Case(
            "mask",
            describe(q, k, v) + f", {label}",
            (Call((q, k, v, mask)),),
            holds=(hidden_keys_get_nothing(mask), rows_sum_to_one),
        )
    q, k, v = inputs(rng, (2,), 3, 5, 7, 2)
    mask = torch.tensor([True, True, True, False, False]).expand(3, 5)
    other_k, other_v = k.clone(), v.clone()
    other_k[:, 3:], other_v[:, 3:] = randn(rng, 2, 2, 7, scale=9.0), randn(rng, 2, 2, 2, scale=9.0)
    yield Case(
        "mask",
        describe(q, k, v) + ", the last two keys hidden and then changed",
        (Call((q, k, v, mask)), Call((q, other_k, other_v, mask))),
        holds=(
            unchanged(
                "What is hidden has no effect.",
                "when only hidden keys and values were changed, the output moved by {change}",
            ),
        ),
    )
    # So exact that a hidden score of -1e-12 differs from one of 0.
    q, k, v = inputs(rng, (2,), 3, 5, 7, 2, dtype=torch.float64)
    call = Call((q, k, v, ragged_mask(rng, 2, 3, 5)))
    yield Case("mask", describe(q, k, v) + ", float64, a mask (batch, query, key)", (call,), tolerance=1e-13)
    for scale in (9.0, 90.0):
        q, k, v = inputs(rng, (), 5, 5, 7, 2, scale)
        mask = ragged_mask(rng, 5, 5)
        text = f"{describe(q, k, v)}, scores in the {'tens' if scale < 10 else 'thousands'}, a mask"
        yield Case("mask", text, (Call((q, k, v, mask)),), holds=(rows_sum_to_one,))

    q, k, v = inputs(rng, (), 5, 5, 7, 2, 90.0)
    mask = F.one_hot(product(q, k).argmin(dim=-1), 5).bool()  # so that whatever is hidden too weakly comes through
    text = f"{describe(q, k, v)}, scores in the thousands, each query may attend only to the key that fits it worst"
    yield Case("mask", text, (Call((q, k, v, mask)),), holds=(hidden_keys_get_nothing(mask), rows_sum_to_one))


def _nothing_cases(rng: Generator) -> Iterator[Case]:
    for label, leading, backward in (("", (), False), ("heads", (2, 3), False), ("with gradients", (2,), True)):
        q, k, v = inputs(rng, leading, 3, 5, 7, 2)
        mask = ragged_mask(rng, 3, 5)
        mask[1] = False
        yield Case(
            "nothing to attend to",
            describe(q, k, v) + f", {label}" * bool(label) + ", query 1 may attend to nothing",
            (Call((q, k, v, mask), backward=backward),),
            holds=(blind_query_gets_nothing,),
        )


def _half_precision_cases(rng: Generator) -> Iterator[Case]:
    # Each query equals one key up to size: a clear winner, but query @ key is 230,400, beyond float16's 65,504.
    signs = torch.randint(2, (5, 64), generator=rng).float() * 2 - 1
    q, k, v = 60 * signs[[3, 0, 4]], 60 * signs, randn(rng, 5, 2)
    call = Call((q.half(), k.half(), v.half()))
    text = describe(q, k, v) + ", float16, scores near 29,000"
    yield Case("half precision", text, (call,), tolerance=2e-3)
    q, k, v = (x.bfloat16() for x in inputs(rng, (2,), 3, 5, 7, 2))
    yield Case("half precision", describe(q, k, v) + ", bfloat16", (Call((q, k, v)),), tolerance=3e-2)
    q, k, v = inputs(rng, (), 3, 5, 7, 2)
    call = Call((q.half(), k.half(), v.half(), ragged_mask(rng, 3, 5)))
    yield Case("half precision", describe(q, k, v) + ", float16, a mask", (call,), tolerance=1e-2)


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    d_head: int,
    d_value: int,
    scale: float = 1.5,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn(rng, *leading, queries, d_head, scale=scale, dtype=dtype),
        randn(rng, *leading, keys, d_head, scale=scale, dtype=dtype),
        randn(rng, *leading, keys, d_value, dtype=dtype),
    )


def describe(query: Tensor, key: Tensor, value: Tensor) -> str:
    shapes = (f"{name} {tuple(x.shape)}" for name, x in (("query", query), ("key", key), ("value", value)))
    return ", ".join(shapes)


def _row_sums(outputs: Sequence[Any]) -> str | None:
    weights = outputs[0][1]
    if (weights < -1e-6).any():
        return f"one of yours is {weights.min():.3g}, and a weight can't be negative"
    sums = weights.sum(dim=-1)
    worst = (sums - 1).abs().argmax()
    if abs(float(sums.flatten()[worst]) - 1) < 1e-3:
        return None
    return f"the weights of one of the queries sum to {float(sums.flatten()[worst]):.3g}"


rows_sum_to_one = Property("The weights of each query are positive and sum to 1.", _row_sums)


def hidden_keys_get_nothing(mask: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        weights = outputs[0][1]
        most = weights.masked_fill(mask, 0.0).abs().max()
        return None if most <= 1e-6 else f"a key that the mask hides (False) gets the weight {most:.3g}"

    return Property("A key that the mask hides gets no weight at all.", broken)


def _blind_query(outputs: Sequence[Any]) -> str | None:
    for name, result in zip(("output", "weights"), outputs[0], strict=True):
        row = result[..., 1, :]
        if row.isnan().any():
            return f"among its {name} there is NaN"
        if row.abs().max() > 1e-6:
            return f"among its {name} there is {row.abs().max():.3g}"
    return None


blind_query_gets_nothing = Property("A query that may attend to nothing gets zeros.", _blind_query)


# --- wrong answers -------------------------------------------------------------------------------------------------


def attend(
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    hide: Callable[[Tensor, Tensor], Tensor] | None = None,
    normalise: Callable[[Tensor], Tensor] | None = None,
    finish: Callable[[Tensor, Tensor | None], Tensor] | None = None,
) -> Callable[..., Result]:
    """Build an attention out of its four steps; each is right unless another is given."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
        scores = (score or scaled_first)(query, key)
        if mask is not None:
            scores = (hide or lowest_number)(scores, mask)
        weights = (normalise or over_keys)(scores)
        weights = (finish or nothing_is_zero)(weights, mask)
        return weights @ value, weights

    return attention


def scaled_first(query: Tensor, key: Tensor) -> Tensor:
    return product(query / math.sqrt(query.size(-1)), key)


def product(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(-2, -1)


def lowest_number(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def infinity(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -math.inf)


def infinity_added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)


def hide_allowed(scores: Tensor, mask: Tensor) -> Tensor:
    return lowest_number(scores, ~mask)


def over_keys(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def nothing_is_zero(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights * mask


def untouched(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights


def scale_after_softmax(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    _, weights = attend(score=product)(query, key, value, mask)
    weights = weights / math.sqrt(query.size(-1))
    return weights @ value, weights


def keys_as_values(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend()(query, key, key, mask)


def scaled_by(number: Callable[[Tensor, Tensor], float]) -> Callable[..., Result]:
    return attend(score=lambda query, key: product(query / number(query, key), key))


def scaled_by_root_of(width: int) -> Callable[..., Result]:
    return scaled_by(lambda query, key: math.sqrt(width))


def scale_by_width_of_values(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend(score=lambda query, key: product(query / math.sqrt(value.size(-1)), key))(query, key, value, mask)


def output_scaled(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = attend(score=product)(query, key, value, mask)
    return output / math.sqrt(query.size(-1)), weights


def transposed_by(transpose: Callable[[Tensor], Tensor]) -> Callable[..., Result]:
    return attend(score=lambda query, key: query / math.sqrt(query.size(-1)) @ transpose(key))


def three_axes_alone(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    scores = torch.bmm(query / math.sqrt(query.size(-1)), key.transpose(1, 2))
    weights = nothing_is_zero(over_keys(scores if mask is None else lowest_number(scores, mask)), mask)
    return torch.bmm(weights, value), weights


def exponential(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def softmax_in_float32(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype)


def over_whole_table(scores: Tensor) -> Tensor:
    return scores.flatten(-2).softmax(dim=-1).view_as(scores)


def masked_through(
    change: Callable[[Tensor], Tensor], finish: Callable[..., Tensor] | None = None
) -> Callable[..., Result]:
    """Build an attention that changes the mask before it uses it."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
        return attend(finish=finish)(query, key, value, None if mask is None else change(mask))

    return attention


def masked_if(condition: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[..., Result]:
    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
        return attend()(query, key, value, mask if mask is not None and condition(query, key, mask) else None)

    return attention


def mask_inverted_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    if mask is not None:
        mask.logical_not_()
    return attend()(query, key, value, None if mask is None else ~mask)


def weighed_again(epsilon: float) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Set hidden weights to 0 after softmax and divide what is left by its sum."""

    def finish(weights: Tensor, mask: Tensor | None) -> Tensor:
        weights = nothing_is_zero(weights, mask)
        return weights / (weights.sum(dim=-1, keepdim=True) + epsilon)

    return finish


def with_number(number: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda scores, mask: scores.masked_fill(~mask, number)


def filled(number: float) -> Callable[..., Result]:
    return attend(hide=with_number(number), finish=untouched)


def called_with(change: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., Result]:
    """Build an attention that is right for other inputs than those it gets."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
        return attend()(*change(query, key, value), mask)

    return attention


def changed(change: Callable[[Tensor, Tensor], Result]) -> Callable[..., Result]:
    """Build an attention that does something to its right results."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
        return change(*attend()(query, key, value, mask))

    return attention


def heads_joined(join: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Result]:
    return lambda output, weights: (output, join(weights, dim=1) if weights.dim() > 3 else weights)


def first_of(x: Tensor) -> Tensor:
    return x[:1].expand_as(x) if x.dim() > 2 else x


def weights_transposed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    weights = attend()(query, key, value, mask)[1]
    return weights.transpose(-2, -1) @ value, weights


def nan_in_weights_alone(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = attend(hide=infinity, finish=untouched)(query, key, value, mask)
    return output.nan_to_num(0.0), weights


def dropping(probability: float) -> Callable[..., Result]:
    return attend(finish=lambda weights, mask: F.dropout(nothing_is_zero(weights, mask), probability))


def always_float32(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend()(query.float(), key.float(), value.float(), mask)


def weights_in_float32(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    weights = attend()(query.float(), key.float(), value.float(), mask)[1]
    return weights @ value, weights


def never_cast_back(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend(score=lambda query, key: scaled_first(query, key).float())(query, key, value.float(), mask)


def weights_never_cast_back(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend(score=lambda query, key: scaled_first(query, key).float())(query, key, value, mask)


def results_swapped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    output, weights = attend()(query, key, value, mask)
    return weights, output


def output_alone(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return attend()(query, key, value, mask)[0]


def scores_returned(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    return attend()(query, key, value, mask)[0], scaled_first(query, key)


def key_scaled_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    key /= math.sqrt(key.size(-1))
    return attend(score=product)(query, key, value, mask)


def query_scaled_in_place(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Result:
    query /= math.sqrt(query.size(-1))
    return attend(score=product)(query, key, value, mask)


MISCONCEPTIONS = (
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the head's width. A dot product of d_head terms grows like that "
        "root; softmax of large scores is close to 0 and 1, and there its gradient vanishes.",
        SCALE,
        (attend(score=product),),
    ),
    Misconception(
        "scale_by_width",
        "The scores are divided by the width itself instead of by its root (or by the root twice, once in the queries "
        "and once in the keys). The weights come out far too even.",
        SCALE,
        (scaled_by(lambda query, key: query.size(-1)),),
    ),
    Misconception(
        "scale_by_length",
        "The scores are divided by the root of a length: the number of keys or queries, or whatever stands at an axis "
        "counted from the front, such as the number of heads. What makes a dot product large is the number of its "
        "terms: the width of query and key, their last axis.",
        SCALE,
        (
            scaled_by(lambda query, key: math.sqrt(key.size(-2))),
            scaled_by(lambda query, key: math.sqrt(query.size(-2))),
            scaled_by(lambda query, key: math.sqrt(query.size(1))),
            scaled_by(lambda query, key: math.sqrt(key.size(1))),
            scaled_by(lambda query, key: math.sqrt(query.size(0))),
        ),
    ),
    Misconception(
        "scale_by_width_of_values",
        "The scores are divided by the root of the width of the *values*. It is often the same number, but the values "
        "have no part in the dot product: its terms are as many as query and key are wide.",
        SCALE,
        (scale_by_width_of_values,),
    ),
    Misconception(
        "scale_fixed",
        "The scores are divided by a fixed number, 8 or another. That is the root of one width, 64; it has to follow "
        "the width of the queries that come in.",
        SCALE,
        tuple(scaled_by_root_of(width) for width in (64, 512, 16, 4, 2)),
        ("https://github.com/lucidrains/muse-maskgit-pytorch/issues/40",),
    ),
    Misconception(
        "scale_rounded",
        "The root of the width is rounded to a whole number, or the division rounds its result (//). Most widths have "
        "no whole root.",
        SCALE,
        (
            scaled_by(lambda query, key: int(math.sqrt(query.size(-1)))),
            attend(score=lambda query, key: product(query, key) // math.sqrt(query.size(-1))),
        ),
    ),
    Misconception(
        "scale_fourth_root",
        "The scores are divided by the fourth root of the width. Some programs divide both queries and keys by it, "
        "which makes the root together; here only one of them was, or only the scores were.",
        SCALE,
        (scaled_by(lambda query, key: query.size(-1) ** 0.25),),
    ),
    Misconception(
        "scale_multiplied",
        "The scores are multiplied by the root of the width, where they should be divided by it.",
        SCALE,
        (attend(score=lambda query, key: product(query * math.sqrt(query.size(-1)), key)),),
    ),
    Misconception(
        "scale_after_softmax",
        "The scale is applied after softmax, to the weights or to what they mix. They no longer sum to 1, outputs "
        "shrink as the width grows, and softmax is as saturated as it was without a scale.",
        SCALE,
        (scale_after_softmax, output_scaled),
        ("https://github.com/FrancescoSaverioZuppichini/ViT/issues/2",),
    ),
    Misconception(
        "fp16_scale_late",
        "The product of queries and keys is formed first and divided afterwards. In float16 no number is larger than "
        "65,504: the product overflows to infinity before the division can bring it down, and softmax of infinities is "
        "NaN. Scaling the query first keeps every number in range, and costs less.",
        HALF,
        (attend(score=lambda query, key: product(query, key) / math.sqrt(query.size(-1))),),
        (
            "https://github.com/ultralytics/ultralytics/pull/24990",
            "https://github.com/philipturner/metal-flash-attention/issues/8",
        ),
    ),
    Misconception(
        "fill_beyond_half_precision",
        "Hidden scores are filled with a number such as -1e9, which float16 does not have: it ends at -65,504. The fill "
        "raises an error, or becomes minus infinity, as soon as somebody runs the model in half precision. The lowest "
        "number depends on the type of the scores, and can be asked for.",
        HALF,
        (attend(hide=with_number(-1e9)),),
        (
            "https://github.com/facebookresearch/fairseq/issues/3575",
            "https://github.com/NVIDIA/apex/issues/1105",
            "https://github.com/facebookresearch/ParlAI/pull/2536",
        ),
    ),
    Misconception(
        "softmax_over_queries",
        "softmax runs along the queries. Each key then shares itself out among the queries, where each query should "
        "share itself out among the keys: the rows are what must sum to 1.",
        AXIS,
        (attend(normalise=lambda scores: scores.softmax(dim=-2)),),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "softmax_fixed_dim2",
        "The axis of softmax is a fixed number, counted from the front (or left out, which lets PyTorch choose one). "
        "That is the key axis only as long as the input has just as many axes; with a batch or heads in front it is "
        "another one. Counted from the end it is right always.",
        AXIS,
        (
            *(attend(normalise=partial(torch.softmax, dim=dim)) for dim in (0, 1, 2, 3)),
            attend(normalise=F.softmax),
        ),
        ("https://github.com/FudanNLP/fastNLP/issues/254",),
    ),
    Misconception(
        "softmax_over_whole_table",
        "softmax runs over all scores of an example together, so that the whole table sums to 1. Each query has a 1 "
        "of its own to share out: every row sums to 1.",
        AXIS,
        (attend(normalise=over_whole_table),),
    ),
    Misconception(
        "softmax_twice",
        "softmax is taken twice. The second one gets numbers between 0 and 1, in which all differences are small, and "
        "makes weights that are nearly even.",
        SOFTMAX,
        (attend(normalise=lambda scores: scores.softmax(dim=-1).softmax(dim=-1)),),
    ),
    Misconception(
        "softmax_logarithm",
        "The weights are logarithms of weights (log_softmax): negative numbers. It is what a loss asks for; to mix "
        "with, the weights themselves are needed.",
        SOFTMAX,
        (attend(normalise=lambda scores: scores.log_softmax(dim=-1)),),
    ),
    Misconception(
        "not_normalised",
        "The weights are positive, but they do not sum to 1: exp or a sigmoid gives each key a number of its own. "
        "Attention is a mean, in which more for one key is less for the others.",
        "self_attention#weighted-average",
        (attend(normalise=torch.exp), attend(normalise=torch.sigmoid)),
    ),
    Misconception(
        "divided_without_exponential",
        "The scores are divided by their sum. They may be negative, and sum to nearly 0: then the weights are huge, "
        "of either sign. exp comes first.",
        SOFTMAX,
        (attend(normalise=lambda scores: scores / scores.sum(dim=-1, keepdim=True)),),
    ),
    Misconception(
        "exponential_overflows",
        "exp is taken of the scores as they are. From about 89 on its result is infinity in 32 bits, and infinity "
        "divided by infinity is NaN. softmax subtracts the largest score of each row first, which changes nothing in "
        "the result.",
        "soft_addressing#why-subtract-the-maximum",
        (attend(normalise=exponential),),
    ),
    Misconception(
        "no_softmax",
        "The scores are used as weights as they are. They can be negative and sum to anything, so that the output is "
        "no weighted mean.",
        SOFTMAX,
        (attend(normalise=lambda scores: scores),),
    ),
    Misconception(
        "hard_argmax",
        "Each query takes the best key alone. That is the limit of very large scores; in between, attention mixes. "
        "Besides, a choice has no gradient from which queries and keys could learn.",
        SOFTMAX,
        (
            attend(
                normalise=lambda scores: torch.nn.functional.one_hot(scores.argmax(dim=-1), scores.size(-1)).to(
                    scores.dtype
                )
            ),
        ),
    ),
    Misconception(
        "mask_ignored",
        "The mask has no effect. Either it is not used, or masked_fill is called and its result thrown away: without a "
        "trailing underscore it returns a new tensor and leaves the old one as it was.",
        MASK,
        (attend(hide=lambda scores, mask: scores, finish=untouched),),
        (
            "https://github.com/facebookresearch/ParlAI/pull/3068",
            "https://github.com/lucidrains/flamingo-pytorch/issues/10",
            "https://github.com/opendilab/DI-engine/issues/333",
        ),
    ),
    Misconception(
        "mask_inverted",
        'The mask is read the wrong way round: what you hide are the keys that should stay. True means "may attend" '
        "here, as in PyTorch's scaled_dot_product_attention; in nn.MultiheadAttention True means the opposite.",
        MASK,
        (
            attend(hide=hide_allowed, finish=lambda weights, mask: weights if mask is None else weights * ~mask),
            attend(hide=hide_allowed, finish=untouched),
            attend(hide=hide_allowed),
            attend(hide=lambda scores, mask: infinity(scores, ~mask), finish=untouched),
            attend(
                hide=lambda scores, mask: infinity(scores, ~mask), finish=lambda weights, mask: weights.nan_to_num(0.0)
            ),
        ),
        ("https://github.com/facebookresearch/detr/issues/96",),
    ),
    Misconception(
        "mask_multiplied",
        "Hidden keys get a score of 0: the scores are multiplied by the mask, or filled with 0. But 0 is an ordinary "
        "score, and exp(0) = 1: those keys keep a sizeable weight, more than a key whose score is below 0. What is "
        "hidden needs the lowest score there is.",
        MASK,
        (attend(hide=lambda scores, mask: scores * mask, finish=untouched),),
        ("https://github.com/georg-wolflein/good-features/pull/1",),
    ),
    Misconception(
        "mask_tiny_constant",
        "Hidden keys get a score just below 0: minus a TINY number, such as -1e-12, or the `tiny` or `eps` of the "
        "number type, where minus a huge one was meant. exp of it is 1, so those keys keep a sizeable weight. (-1e12 "
        "and -1e-12 are easily taken for one another; the lowest number of a type is finfo's `min`.)",
        MASK,
        (
            *(filled(-tiny) for tiny in (1e-12, 1e-10, 1e-9, 1e-8, 1e-6, 1e-5)),
            filled(-torch.finfo(torch.float32).eps),
        ),
        ("https://github.com/hyunwoongko/transformer/issues/10",),
    ),
    Misconception(
        "mask_bool_added",
        "The boolean mask is added to the scores. Allowed keys gain 1, hidden ones 0: a faint preference, and nothing "
        "is hidden. Only a mask of 0 and very large negative numbers is made to be added.",
        MASK,
        (attend(hide=lambda scores, mask: scores + mask, finish=untouched),),
        ("https://github.com/huggingface/transformers/pull/41443",),
    ),
    Misconception(
        "mask_after_softmax",
        "The weights are multiplied by the mask after softmax, which had already shared out the 1 among all keys. What "
        "the hidden keys got is lost, and the rows sum to less than 1. The mask belongs before softmax.",
        MASK,
        (
            attend(hide=lambda scores, mask: scores),
            attend(
                hide=lambda scores, mask: scores,
                finish=lambda weights, mask: weights if mask is None else weights.masked_fill(~mask, -1e9),
            ),
        ),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "mask_after_softmax_renormalised",
        "The weights are multiplied by the mask after softmax, and divided by what is left. On paper that is the "
        "same. On a computer it fails where a hidden score is far above the others: their weights have been rounded "
        "to 0 by then, and 0 divided by 0 is NaN (or 0, with a small number added below). The mask belongs before "
        "softmax.",
        MASK,
        tuple(
            attend(hide=lambda scores, mask: scores, finish=weighed_again(epsilon))
            for epsilon in (0.0, 1e-9, 1e-8, 1e-6, 1e-12)
        ),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "mask_too_weak",
        "Hidden keys get a low score, but not low enough: where it is not far below the others, something comes "
        "through. A model can even learn to push its own scores below such a number. What is hidden needs the lowest "
        "score there is.",
        MASK,
        tuple(filled(number) for number in (-1.0, -5.0, -10.0, -20.0, -50.0, -100.0)),
        ("https://github.com/karpathy/minGPT/issues/75",),
    ),
    Misconception(
        "mask_of_first_example",
        "One part of the mask is used for all: the first example's, or the first query's row. Elsewhere, too, it has "
        "to be its own.",
        "self_attention#masks-together",
        (
            masked_through(lambda mask: mask[:1] if mask.dim() > 2 else mask),
            masked_through(lambda mask: mask[0] if mask.dim() > 2 else mask),
            masked_through(lambda mask: mask[:1]),
            masked_through(lambda mask: mask[..., :1, :]),
            masked_through(lambda mask: mask[:, :1] if mask.dim() > 3 else mask),
        ),
    ),
    Misconception(
        "mask_axis_added",
        "An axis is put into the mask that was not asked for. The mask comes in a shape that already broadcasts to "
        "(…, query, key); with one more axis it meets the wrong one, or stretches the result.",
        "self_attention#masks-together",
        (masked_through(lambda mask: mask.unsqueeze(1)), masked_through(lambda mask: mask[None])),
    ),
    Misconception(
        "mask_transposed",
        "The last two axes of the mask have changed places. A row is a query, a column a key, as in the scores. With "
        "as many queries as keys nothing complains, and everybody sees what somebody else may see.",
        "self_attention#masks-together",
        (masked_through(lambda mask: mask.transpose(-2, -1)),),
    ),
    Misconception(
        "mask_square_reshape",
        "The mask is cut into a square, as if there were always as many keys as queries.",
        "self_attention#cross-attention-in-one-line",
        (
            masked_through(lambda mask: mask.reshape(*mask.shape[:-1], mask.size(-2))),
            masked_through(lambda mask: mask[..., : mask.size(-2)]),
        ),
        ("https://github.com/harvard-edge/cs249r_book/pull/1875",),
    ),
    Misconception(
        "mask_truth_value",
        "`if mask:` asks whether the whole tensor is true, which PyTorch refuses to answer. What you want to know is "
        "whether a mask was given: compare with None.",
        MASK,
        (masked_if(lambda query, key, mask: mask),),
    ),
    Misconception(
        "mask_only_when_square",
        "The mask is used only where there are as many queries as keys. That is self-attention; a mask is needed in "
        "the other case just as well.",
        "self_attention#cross-attention-in-one-line",
        (
            masked_if(lambda query, key, mask: query.size(-2) == key.size(-2)),
            masked_if(lambda query, key, mask: query.size(-2) != key.size(-2)),
        ),
        ("https://github.com/mlx-node/mlx-node/pull/24",),
    ),
    Misconception(
        "mask_changed_in_place",
        "The mask is turned round in place, which changes the caller's own: in the next layer, which gets the same "
        "one, it hides what should be seen.",
        MASK,
        (mask_inverted_in_place,),
    ),
    Misconception(
        "mask_plus_inf",
        "Hidden keys get plus infinity, or another very large number, where minus was meant (-float('-inf') is a "
        "double minus): they draw all weight to them, and softmax of infinity is NaN.",
        MASK,
        (
            filled(math.inf),
            filled(1e9),
            filled(torch.finfo(torch.float32).max),
            attend(hide=with_number(1e9)),
            attend(hide=with_number(math.inf)),
        ),
        ("https://github.com/lucidrains/memory-compressed-attention/issues/2",),
    ),
    Misconception(
        "fully_masked_uniform",
        "A query that may attend to nothing gets the mean of everything it must not see: where all scores of a row are "
        "the same, however low, softmax shares out the 1 evenly. Its weights have to be set to zero.",
        NOTHING,
        (attend(finish=untouched),),
    ),
    Misconception(
        "fully_masked_nan",
        "A query that may attend to nothing gets NaN: 0 divided by 0, in softmax of a row of minus infinities or by "
        "dividing by a sum of no weights. One such row (a padded one, say) turns the whole loss into NaN.",
        NOTHING,
        (
            attend(hide=infinity, finish=untouched),
            attend(hide=infinity),
            attend(hide=infinity, finish=weighed_again(0.0)),
            nan_in_weights_alone,
        ),
        (
            "https://github.com/pytorch/pytorch/issues/103749",
            "https://github.com/tracel-ai/burn/pull/4697",
            "https://github.com/pytorch/pytorch/issues/27968",
        ),
    ),
    Misconception(
        "fully_masked_nan_grad",
        "The output is right and finite, the gradients are NaN. Minus infinity was added to the scores and the NaN "
        "that it leads to was replaced after softmax, but on the way back softmax still multiplies by it. The NaN "
        "must never arise: use a finite lowest number, or give such rows ordinary scores first.",
        NOTHING,
        (attend(hide=infinity_added, finish=lambda weights, mask: weights.nan_to_num(0.0)),),
        ("https://github.com/pytorch/pytorch/issues/41508",),
    ),
    Misconception(
        "weights_detached",
        "The output is right to the last bit, but queries and keys get no gradient: the weights have been rebuilt "
        "from raw data (.data, .detach(), .numpy(), torch.tensor(...)), which cuts them off. Such a layer never "
        "learns where to look.",
        GRADIENTS,
        (
            attend(finish=lambda weights, mask: nothing_is_zero(weights, mask).detach()),
            called_with(lambda query, key, value: (query.detach(), key.detach(), value)),
        ),
        (
            "https://github.com/paiml/aprender/pull/2203",
            "https://github.com/facebookresearch/inversecooking/issues/3",
        ),
    ),
    Misconception(
        "result_detached",
        "The output is right, and nothing gets a gradient: the result has been cut off (.detach(), .data, "
        "torch.no_grad(), numpy). Such a layer, and everything before it, never learns.",
        GRADIENTS,
        (changed(lambda output, weights: (output.detach(), weights.detach())),),
    ),
    Misconception(
        "one_input_detached",
        "One of query, key and value gets no gradient: it has been cut off (.detach(), .data, numpy) before it was "
        "used. Its projection never learns.",
        GRADIENTS,
        (
            called_with(lambda query, key, value: (query.detach(), key, value)),
            called_with(lambda query, key, value: (query, key.detach(), value)),
            called_with(lambda query, key, value: (query, key, value.detach())),
        ),
    ),
    Misconception(
        "keys_as_values",
        "The weights mix the keys instead of the values. This hides as long as both are the same tensor.",
        ROLES,
        (keys_as_values,),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "key_reshaped",
        "The keys are brought into the shape (d_head, key) by view or reshape. That cuts the same row of numbers anew "
        "and turns nothing: features of different keys end up in one column. The two axes have to change places.",
        ROLES,
        (
            transposed_by(lambda key: key.reshape(*key.shape[:-2], key.size(-1), key.size(-2))),
            transposed_by(lambda key: key.contiguous().view(*key.shape[:-2], key.size(-1), key.size(-2))),
        ),
    ),
    Misconception(
        "axes_counted_from_the_front",
        "The keys are transposed, or multiplied, along axes counted from the front (.T and .t(), transpose(0, 1), "
        "transpose(1, 2), torch.mm, torch.bmm). That suits one number of axes alone. Counted from the end it suits "
        "all, and @ takes any number in front.",
        FUNCTION,
        (
            transposed_by(lambda key: key.transpose(0, 1)),
            transposed_by(lambda key: key.transpose(1, 2)),
            transposed_by(lambda key: key.transpose(2, 3)),
            transposed_by(torch.t),
            three_axes_alone,
        ),
    ),
    Misconception(
        "roles_exchanged",
        "Queries and keys have changed roles: each key asks the queries. There is one row of weights for each "
        "*query*, and as many columns as keys.",
        ROLES,
        (
            attend(score=lambda query, key: scaled_first(key, query)),
            attend(score=lambda query, key: scaled_first(key, query), finish=untouched),
        ),
    ),
    Misconception(
        "cosine_scores",
        "Queries and keys are brought to length 1 first, so that only their angle counts. That is another similarity: "
        "in the dot product long vectors score higher, and a model uses this.",
        "soft_addressing#similarity-functions",
        (
            attend(score=lambda query, key: product(F.normalize(query, dim=-1), F.normalize(key, dim=-1))),
            attend(score=lambda query, key: scaled_first(F.normalize(query, dim=-1), F.normalize(key, dim=-1))),
        ),
    ),
    Misconception(
        "dropout_always_on",
        "Weights are dropped at random. A function does not know whether a model is being trained, and torch's own "
        "dropout is on unless it is told otherwise. The layer around it decides that; this function gives the same "
        "result every time.",
        FUNCTION,
        (dropping(0.1), dropping(0.5), dropping(0.2)),
        (
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/pytorch/pytorch/issues/124464",
        ),
    ),
    Misconception(
        "number_type_changed",
        "The results have another number type than the inputs, or were calculated in one that is too coarse for them. "
        "Softmax in 32 bits is a good idea in half precision; but cast back afterwards. And float64 loses half its "
        "digits by it.",
        HALF,
        (
            always_float32,
            weights_in_float32,
            never_cast_back,
            weights_never_cast_back,
            attend(normalise=softmax_in_float32),
        ),
        ("https://github.com/pytorch/pytorch/pull/21658", "https://github.com/tinygrad/tinygrad/pull/5100"),
    ),
    Misconception(
        "axes_squeezed",
        "An axis of size 1 has been taken away (squeeze). It is an axis all the same: one query, or a single key, "
        "still has a row or a column of its own.",
        "self_attention#shapes",
        (
            changed(lambda output, weights: (output.squeeze(), weights.squeeze())),
            changed(lambda output, weights: (output.squeeze(), weights)),
            changed(lambda output, weights: (output, weights.squeeze())),
        ),
    ),
    Misconception(
        "weights_averaged",
        "The weights are averaged or summed over the heads, as nn.MultiheadAttention does unless told otherwise. Here "
        "each head keeps its own.",
        "self_attention#shapes",
        (changed(heads_joined(torch.mean)), changed(heads_joined(torch.sum))),
        ("https://github.com/TransformerLensOrg/TransformerLens/pull/666",),
    ),
    Misconception(
        "first_example_for_all",
        "The keys or values of the first example are used for all. The examples of a batch have nothing to do with "
        "one another; every step leaves the axes in front as they are.",
        "self_attention#shapes",
        (
            called_with(lambda query, key, value: (query, first_of(key), value)),
            called_with(lambda query, key, value: (query, key, first_of(value))),
            called_with(lambda query, key, value: (query, first_of(key), first_of(value))),
        ),
    ),
    Misconception(
        "weights_transposed",
        "The weights meet the values the wrong way round. Row i of the weights holds the shares of query i, one for "
        "each row of the values: they are multiplied as they are.",
        ROLES,
        (weights_transposed,),
    ),
    Misconception(
        "results_swapped",
        "The two results are returned in the wrong order: the output comes first, then the weights.",
        SECTION,
        (results_swapped,),
    ),
    Misconception(
        "weights_not_returned",
        "Only the output is returned. The weights are wanted too, so that one can look at them.",
        SECTION,
        (output_alone,),
    ),
    Misconception(
        "scores_returned",
        "The second result are the scores. The weights are what softmax makes of them.",
        FUNCTION,
        (scores_returned,),
    ),
    Misconception(
        "query_scaled_in_place",
        "The query, or the key, is divided in place (/=), which changes the caller's own tensor: whoever uses it "
        "afterwards, a residual connection say, gets the scaled one.",
        FUNCTION,
        (query_scaled_in_place, key_scaled_in_place),
    ),
)

EXERCISE = Exercise(
    name="scaled_dot_product_attention",
    chapter="self_attention",
    kind="function",
    minutes=30,
    parts=(
        Part(
            "mixing", 3, "mix the values by the softmax of scaled dot products, whatever axes stand in front", FUNCTION
        ),
        Part("mask", 2, "give no weight to a key where the mask is False", MASK),
        Part("gradients", 1, "pass the right gradients to query, key and value", GRADIENTS),
        Part(
            "nothing to attend to", 1, "give zeros to a query that may attend to nothing, and finite gradients", NOTHING
        ),
        Part("half precision", 1, "stay finite in half precision, where the largest number is 65,504", HALF),
    ),
    results=("output", "weights"),
    hints=(
        "For one query and three keys of width 2, written on paper: what are the three scores, and what do you do with "
        "them before they can serve as proportions?",
        "Five steps: product, scale, mask, softmax, weighted sum. Count axes from the end, so "
        "that any number of them may stand in front.",
        "Divide the query by the root of its width before the product. Fill hidden scores with the lowest finite "
        "number of their type, torch.finfo(scores.dtype).min, take softmax along the last axis, and think of a row in "
        "which everything is hidden.",
    ),
    cases=cases,
    reference=self_attention.scaled_dot_product_attention,
    misconceptions=MISCONCEPTIONS,
)

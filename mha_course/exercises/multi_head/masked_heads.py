"""Exercise: repair an attention in which each example has a mask of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import ragged_mask, randn, unchanged
from mha_course.self_attention import scaled_dot_product_attention

SECTION, NOTHING = "multi_head#masks-and-heads", "self_attention#a-query-that-sees-nothing"
BOOLEAN = "self_attention#boolean-or-additive"


def cases(rng: Generator) -> Iterator[Case]:
    for label, batch, heads, queries, keys in (
        ("one example", 1, 2, 2, 3),
        ("one head", 3, 1, 2, 5),
        ("as many examples as heads", 2, 2, 2, 3),
        ("", 2, 3, 5, 7),
        ("more examples than heads", 5, 2, 3, 7),
        ("as many heads as queries", 2, 3, 3, 5),
        ("all sizes equal", 3, 3, 3, 3),
        ("as many queries as keys", 2, 3, 5, 5),
        ("one query", 3, 2, 1, 5),
    ):
        mask = ragged_mask(rng, batch, queries, keys)
        given = inputs(rng, batch, heads, queries, keys)
        text = describe(given) + f", {label}" * bool(label)
        yield Case("masks", text, (Call((*given, mask)),))
    mask = torch.ones(3, 3, 5, dtype=torch.bool)
    mask[1, :, 3:] = mask[2, :, 2:] = False
    given = inputs(rng, 3, 3, 3, 5)
    values = given[2].clone()
    values[1, :, 3:] = values[2, :, 2:] = 100.0
    yield Case(
        "masks",
        f"{describe(given)}, padding of other lengths in each example, and then other values there",
        (Call((*given, mask)), Call((*given[:2], values, mask))),
        holds=(
            unchanged(
                "What is padding in an example has no effect in it.",
                "when only values in the padding were changed, the result moved by {change}",
            ),
        ),
    )
    mask = ragged_mask(rng, 2, 3, 5)
    given = inputs(rng, 2, 2, 3, 5)
    other = mask.clone()
    other[1] = ragged_mask(rng, 3, 5)
    yield Case(
        "masks",
        f"{describe(given)}, then another mask for example 1",
        (Call((*given, mask)), Call((*given, other))),
        holds=(
            unchanged(
                "The mask of one example has no effect on another.",
                "when only the mask of example 1 was changed, the result of example 0 moved by {change}",
                where=0,
            ),
        ),
    )
    given, mask = inputs(rng, 3, 2, 3, 5), ragged_mask(rng, 3, 3, 5)
    yield Case("masks", f"{describe(given)}, with gradients", (Call((*given, mask), backward=True),))
    for heads in (2, 3):
        mask = ragged_mask(rng, 2, 3, 5)
        mask[1, 1] = False
        given = inputs(rng, 2, heads, 3, 5)
        label = f"{describe(given)}, query 1 of example 1 may attend to nothing"
        yield Case("nothing to attend to", label, (Call((*given, mask), backward=True),), holds=(zeros_for_the_blind,))


def inputs(rng: Generator, batch: int, heads: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries and keys of width 7, and values of width 11."""
    return (
        randn(rng, batch, heads, queries, 7, scale=1.2),
        randn(rng, batch, heads, keys, 7, scale=1.2),
        randn(rng, batch, heads, keys, 11),
    )


def describe(given: tuple[Tensor, Tensor, Tensor]) -> str:
    (batch, heads, queries, _), keys = given[0].shape, given[1].size(2)
    return (
        f"batch {batch}, {heads} head{'s' * (heads > 1)}, {queries} {'query' if queries == 1 else 'queries'}, "
        f"{keys} keys, a mask ({batch}, {queries}, {keys})"
    )


def _blind(outputs: Sequence[Any]) -> str | None:
    row = outputs[0][1, :, 1]
    if row.isnan().any():
        return "among its numbers there is NaN"
    return None if row.abs().max() < 1e-6 else f"among its numbers there is {row.abs().max():.3g}"


zeros_for_the_blind = Property("A query that may attend to nothing gets zeros.", _blind)


def masked_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, mask[:, None])[0]


# --- wrong answers -------------------------------------------------------------------------------------------------


def attend(
    shape: Callable[[Tensor, int], Tensor] | None = None,
    fill: float = torch.finfo(torch.float32).min,
    cover: Callable[[Tensor, Tensor], Tensor] = lambda weights, mask: weights * mask,
    hide: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Build a masked attention out of its steps; each is right unless another is given."""

    def masked_heads(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        mask = (shape or head_axis)(mask, query.size(1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        scores = scores.masked_fill(~mask, fill) if hide is None else hide(scores, mask)
        return cover(scores.softmax(dim=-1), mask) @ value

    return masked_heads


def head_axis(mask: Tensor, heads: int) -> Tensor:
    return mask[:, None]


def as_it_came(mask: Tensor, heads: int) -> Tensor:
    return mask


def tiled(mask: Tensor, heads: int) -> Tensor:
    return mask.repeat(heads, 1, 1).view(mask.size(0), heads, mask.size(1), mask.size(2))


def square(mask: Tensor, heads: int) -> Tensor:
    return mask.reshape(mask.size(0), 1, mask.size(1), mask.size(1))


def untouched(weights: Tensor, mask: Tensor) -> Tensor:
    return weights


MISCONCEPTIONS = (
    Misconception(
        "mask_missing_head_axis",
        "The mask meets the scores without a head axis. Broadcasting lines axes up from the end, so the batch axis of the "
        "mask falls on the head axis of the scores: an error for most sizes, and where there are as many examples as "
        "heads, the mask of example 1 lies on head 1 of every example.",
        SECTION,
        (attend(as_it_came), attend(lambda mask, heads: mask[None])),
        (
            "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
            "https://github.com/lucidrains/vit-pytorch/issues/71",
            "https://github.com/hyunwoongko/transformer/issues/32",
        ),
    ),
    Misconception(
        "head_axis_in_the_wrong_place",
        "The mask has four axes now, but the new one stands in the wrong place: its queries fall on the heads. Axes are "
        "lined up from the end, and the scores are (batch, head, query, key).",
        SECTION,
        (attend(lambda mask, heads: mask.unsqueeze(2)), attend(lambda mask, heads: mask.unsqueeze(-1))),
    ),
    Misconception(
        "masks_tiled",
        "Masks are repeated for the heads in the wrong order: repeat lays whole copies one behind the other, example 0, "
        "example 1, example 0, example 1, and cut into examples and heads, that puts the masks of several examples on "
        "the heads of one. No shape gives it away. An axis of size 1 needs no copies at all.",
        SECTION,
        (attend(tiled),),
        (
            "https://github.com/line/lighthouse/pull/77",
            "https://github.com/ArrowLuo/CLIP4Clip/issues/22",
            "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36",
        ),
    ),
    Misconception(
        "first_mask_for_all",
        "Every example gets the mask of the first. The error is gone, and so is the point: sentences of other lengths "
        "have their padding in other places.",
        SECTION,
        (attend(lambda mask, heads: mask[0]), attend(lambda mask, heads: mask[:1, None])),
    ),
    Misconception(
        "masks_combined",
        "The masks of all examples are combined into one. The error is gone, but now what is hidden in one sentence "
        "depends on the others of the batch.",
        SECTION,
        (attend(lambda mask, heads: mask.all(dim=0)), attend(lambda mask, heads: mask.any(dim=0))),
    ),
    Misconception(
        "first_query_for_all",
        "Every query gets the mask of the first, as if it were a padding mask. This one may differ from query to query, as "
        "a causal mask does.",
        SECTION,
        (attend(lambda mask, heads: mask[:, None, :1]),),
    ),
    Misconception(
        "mask_square_reshape",
        "The mask is reshaped as if it were square, with the query length used twice. In cross-attention a mask has as "
        "many columns as there are keys.",
        SECTION,
        (attend(square),),
        ("https://github.com/harvard-edge/cs249r_book/pull/1875",),
    ),
    Misconception(
        "queries_and_keys_exchanged",
        "The mask is transposed: who may attend to whom is turned round, and with unequal lengths it doesn't fit at all.",
        SECTION,
        (attend(lambda mask, heads: mask.transpose(1, 2)[:, None]),),
    ),
    Misconception(
        "mask_ignored",
        "The mask has no effect any more: it is not used, or masked_fill is called and its result thrown away.",
        SECTION,
        (attend(hide=lambda scores, mask: scores, cover=untouched),),
        ("https://github.com/facebookresearch/ParlAI/pull/3068",),
    ),
    Misconception(
        "mask_inverted",
        'The mask is read the wrong way round: what you hide are the keys that should stay. True means "may attend" here, '
        "as it did in the code that you were given.",
        BOOLEAN,
        (
            attend(lambda mask, heads: ~mask[:, None]),
            attend(hide=lambda scores, mask: scores.masked_fill(mask, torch.finfo(scores.dtype).min)),
            attend(lambda mask, heads: ~mask[:, None], cover=untouched),
        ),
        ("https://github.com/facebookresearch/detr/issues/96",),
    ),
    Misconception(
        "mask_after_softmax",
        "The weights are multiplied by the mask, but hidden keys have taken part in softmax: what they got is lost, and "
        "the rows sum to less than 1. Both steps with the mask are needed, as in the code that you were given.",
        BOOLEAN,
        (attend(hide=lambda scores, mask: scores),),
        ("https://github.com/abisee/pointer-generator/issues/88",),
    ),
    Misconception(
        "fully_masked_uniform",
        "A query that may attend to nothing gets the mean of everything it must not see, since all its scores are equally "
        "low. The product with the mask after softmax, which the code had, is there for this.",
        NOTHING,
        (attend(cover=untouched),),
    ),
    Misconception(
        "fully_masked_nan",
        "A query that may attend to nothing gets NaN: softmax of a row of minus infinities is 0 divided by 0. The lowest "
        "finite number, which the code had, is there for this.",
        NOTHING,
        (attend(fill=-math.inf), attend(fill=-math.inf, cover=untouched)),
        ("https://github.com/pytorch/pytorch/issues/103749",),
    ),
)

EXERCISE = Exercise(
    name="masked_heads",
    chapter="multi_head",
    kind="function",
    minutes=10,
    parts=(
        Part("masks", 2, "hide in every head of an example what this example's own mask hides", SECTION),
        Part(
            "nothing to attend to", 1, "give zeros to a query that may attend to nothing, and finite gradients", NOTHING
        ),
    ),
    hints=(
        "Write the shapes of the scores and of the mask one below the other, the last axes in line. Which axis of the mask "
        "meets which axis of the scores?",
        "An axis of size 1 is stretched to whatever it meets. Where does the mask need one, so that its batch axis meets "
        "the batch?",
        "The mask has to become (batch, 1, query, key) before it is used: unsqueeze puts in such an axis. It is used twice, "
        "and both uses need it.",
    ),
    cases=cases,
    reference=masked_heads,
    misconceptions=MISCONCEPTIONS,
    task="repair",
)

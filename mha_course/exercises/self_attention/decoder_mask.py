"""Exercise: hide the future and the padding in one mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Generator, Tensor

from mha_course import self_attention
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.self_attention.causal_mask import (
    ADDITIVE_MASK,
    AS_ADDED,
    AS_NUMBERS,
    BOOLEAN,
    INVERTED,
    MASK_OF_NUMBERS,
    MASKS,
    who_may_see_whom,
)

SECTION, CAUSAL, PADDING = "self_attention#masks-together", "self_attention#causal-mask", "self_attention#padding-mask"


def cases(rng: Generator) -> Iterator[Case]:
    for lengths, length in (
        ((2, 3), 3),
        ((5, 3, 1), 5),
        ((4, 1, 3, 2, 4), 5),  # as many sentences as places, none of them full
        ((2,), 5),
        ((2, 2, 2), 3),
    ):
        yield case("both", lengths, length)
    yield case("both", tuple(torch.randint(1, 8, (11,), generator=rng).tolist()), 7)
    for lengths, length in (((2, 0, 3), 3), ((3, 3), 3), ((1,), 1), ((1, 0), 1)):
        yield case("edges", lengths, length)


def case(part: str, lengths: Sequence[int], length: int) -> Case:
    given = torch.tensor(lengths)
    holds = who_may_see_whom(self_attention.decoder_mask(given, length), RULE, given)
    return Case(part, f"lengths {list(lengths)}, padded to {length}", (Call((given, length)),), holds=(holds,))


RULE = "A query may attend to a key that is a real token and comes no later than itself, and to no other."

# --- wrong answers -------------------------------------------------------------------------------------------------


def joined(
    join: Callable[[Tensor, Tensor], Tensor] = torch.logical_and,
    causal: Callable[[Tensor], Tensor] | None = None,
    padding: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Tensor, int], Tensor]:
    """Build a mask out of the two, (query, key) and (batch, 1, 1, key), each of which may be changed first."""

    def mask(lengths: Tensor, length: int) -> Tensor:
        one, other = self_attention.causal_mask(length), self_attention.padding_mask(lengths, length)
        return join(causal(one) if causal else one, padding(other) if padding else other)

    return mask


def altered(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda lengths, length: change(self_attention.decoder_mask(lengths, length))


def causal_alone(causal: Tensor, padding: Tensor) -> Tensor:
    return causal.expand(len(padding), 1, *causal.shape)


def padding_alone(causal: Tensor, padding: Tensor) -> Tensor:
    return padding.expand(len(padding), 1, *causal.shape)


def along_queries(padding: Tensor) -> Tensor:
    return padding.transpose(-2, -1)


def padding_off_by(extra: int) -> Callable[[Tensor, int], Tensor]:
    return lambda lengths, length: self_attention.decoder_mask(lengths + extra, length)


def to_the_longest(lengths: Tensor, length: int) -> Tensor:
    return self_attention.decoder_mask(lengths, int(lengths.max()))


MISCONCEPTIONS = (
    Misconception(
        "padding_dropped_when_causal",
        "Only the future is hidden, the padding is not: the lengths have no effect. One mask has taken the place of "
        "the other (an if and an else, say, or an assignment that forgets the first). Isn't the padding behind the "
        "real tokens hidden by the causal mask anyway? For real tokens it is; but the rows of padding still read "
        "padding, and with padding in front, as when a model writes, real tokens would. Both must hold at once.",
        SECTION,
        (joined(causal_alone), joined(lambda causal, padding: causal[None, None])),
        (
            "https://github.com/AI-Hypercomputer/maxtext/issues/878",
            "https://github.com/keras-team/keras-io/pull/1046",
        ),
    ),
    Misconception(
        "future_not_hidden",
        "Only the padding is hidden, the future is not: each token may attend to later ones, and a decoder in "
        "training just copies the answer from there. The padding mask knows how long a sentence is, not in which "
        "order its tokens come; the other mask has to be joined to it.",
        SECTION,
        (joined(padding_alone), joined(lambda causal, padding: padding)),
    ),
    Misconception(
        "masks_joined_by_or",
        "A key may be seen if ONE of the masks allows it. That is “or”, which also comes out when two boolean masks "
        "are added with +. So padding is allowed as long as it lies in the past, and the future as long as it is "
        "real. Each mask forbids something, and what one of them forbids must stay forbidden. (Where True means "
        "“hidden”, “or” is right: look at which of the two a mask uses before you copy a line.)",
        SECTION,
        (joined(torch.logical_or), joined(torch.add)),
        (
            "https://github.com/NVIDIA/TransformerEngine/pull/1271",
            "https://github.com/lucidrains/local-attention/issues/5",
        ),
    ),
    Misconception(
        "masks_joined_by_xor",
        "A key may be seen if exactly ONE of the masks allows it (^, or !=). What both allow comes out hidden.",
        SECTION,
        (joined(torch.logical_xor),),
    ),
    Misconception(
        "masks_compared",
        "The two masks are compared (==). Where both of them hide, they agree, and so what is padding and in the "
        "future comes out allowed.",
        SECTION,
        (joined(torch.eq),),
    ),
    Misconception(
        "padding_hides_queries",
        "The rows of padding are hidden, where only the columns should be: queries of padding see nothing at all. "
        "What must not be attended to are keys, the last axis. Hiding the rows as well looks tidier, as nobody reads "
        "them; but a query that may attend to nothing becomes NaN in many implementations, and one NaN spoils the "
        "whole loss.",
        PADDING,
        (joined(padding=along_queries),),
        (
            "https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",
            "https://github.com/pytorch/pytorch/issues/41508",
        ),
    ),
    Misconception(
        "causal_mask_transposed",
        "Past and future have changed places: tokens see themselves and what comes later (triu in place of tril, or j "
        ">= i in place of j <= i). A row is a query, a column a key: row 0 is the first token, which may see nothing "
        "but itself.",
        CAUSAL,
        (joined(causal=torch.t),),
        ("https://github.com/marin-community/levanter/pull/102",),
    ),
    Misconception(
        "causal_mask_excludes_self",
        "The triangle starts one diagonal too low: no token may attend to itself, and the first one sees nothing at "
        "all. The token itself is what the model is given at this place; the answer is the NEXT one.",
        CAUSAL,
        (joined(causal=lambda mask: mask.tril(-1)),),
        ("https://github.com/pbloem/former/issues/10",),
    ),
    Misconception(
        "causal_mask_sees_next",
        "The triangle reaches one diagonal too far: each token may also attend to the next one, which is the answer "
        "it has to predict. In training the loss falls as by magic, and the model has learned to copy.",
        CAUSAL,
        (joined(causal=lambda mask: torch.ones_like(mask).tril(1)),),
    ),
    Misconception(
        "padding_off_by_one",
        "The padding is counted one place too far, or not far enough. Places are counted from 0: a sentence of 2 "
        "tokens fills the places 0 and 1.",
        PADDING,
        (padding_off_by(1), padding_off_by(-1)),
        ("https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",),
    ),
    Misconception(
        "padding_in_front",
        "The real tokens are taken to be the last ones. Here the padding stands behind them.",
        PADDING,
        (joined(padding=lambda mask: mask.flip(-1)),),
    ),
    Misconception(
        "padding_to_the_longest",
        "The mask is as large as the longest sentence of the batch, whatever length the batch was padded to.",
        PADDING,
        (to_the_longest,),
        ("https://github.com/speechbrain/speechbrain/issues/2344",),
    ),
    Misconception(
        "mask_without_head_axis",
        "The shape is (batch, query, key). The weights of several heads are (batch, head, query, key); lined up from "
        "the right, the mask of example 1 would be used for head 1. It needs an axis of size 1 for the heads.",
        SECTION,
        (altered(lambda mask: mask[:, 0]), altered(lambda mask: mask[:, 0][None])),
        (
            "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
            "https://github.com/lucidrains/vit-pytorch/issues/71",
        ),
    ),
    Misconception(
        "padding_axes_dropped",
        "The padding mask has lost its axes of size 1 before it was joined (squeeze, or an index). Lined up from the "
        "right, (batch, key) meets (query, key): sentences fall on queries. Where there are as many sentences as "
        "places, nothing complains. The axes of size 1 are what keeps the two apart.",
        SECTION,
        (
            joined(padding=torch.squeeze),
            joined(padding=lambda mask: mask[:, 0, 0]),
        ),
        ("https://github.com/lucidrains/vit-pytorch/issues/71",),
    ),
    Misconception(
        "mask_of_one_example",
        "The mask of one sentence is used for all of them: the axis of the batch has been lost. Each sentence has a "
        "length of its own, and so a mask of its own.",
        SECTION,
        (
            altered(lambda mask: mask[0, 0]),
            altered(lambda mask: mask[:1]),
            altered(lambda mask: mask[:1].expand_as(mask)),
            altered(lambda mask: mask.all(dim=0, keepdim=True)),
        ),
    ),
    Misconception(
        "mask_inverted",
        INVERTED,
        MASKS,
        (altered(torch.logical_not), joined(torch.logical_or, torch.logical_not, torch.logical_not)),
        ("https://github.com/rasbt/LLMs-from-scratch/issues/1061",),
    ),
    Misconception(
        "half_inverted",
        "One of the two masks was the wrong way round when they were joined: True meant “may attend” in one, and "
        "“hidden” in the other. Both must speak the same language first.",
        SECTION,
        (joined(causal=torch.logical_not), joined(padding=torch.logical_not)),
    ),
    Misconception(
        "mask_of_numbers",
        MASK_OF_NUMBERS,
        BOOLEAN,
        (
            *(altered(change) for change in AS_NUMBERS),
            joined(lambda causal, padding: causal.int() + padding.int()),
            joined(lambda causal, padding: torch.maximum(causal.int(), padding.int())),
            joined(lambda causal, padding: causal.float() + padding.float()),
        ),
    ),
    Misconception("additive_mask", ADDITIVE_MASK, BOOLEAN, tuple(altered(change) for change in AS_ADDED)),
)

EXERCISE = Exercise(
    name="decoder_mask",
    chapter="self_attention",
    kind="function",
    minutes=10,
    parts=(
        Part("both", 2, "allow what is real and not in the future, and have the shape (batch, 1, query, key)", SECTION),
        Part("edges", 1, "hold for sentences without a token, for full ones, and for a single place", SECTION),
    ),
    hints=(
        "One sentence of 2 tokens, padded to 3. Write both masks down as tables, and then the table in which both "
        "hold.",
        "You have both masks already. What are their shapes, and what does broadcasting make of the two?",
        "(query, key) and (batch, 1, 1, key) give (batch, 1, query, key) when they are joined entry by entry. Of "
        "“and” and “or”, which forbids what either of them forbids?",
    ),
    cases=cases,
    reference=self_attention.decoder_mask,
    misconceptions=MISCONCEPTIONS,
)

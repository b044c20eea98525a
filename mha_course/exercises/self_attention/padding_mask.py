"""Exercise: hide the padding behind the real tokens of each sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import self_attention
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.self_attention.causal_mask import (
    ADDITIVE_MASK,
    AS_ADDED,
    AS_NUMBERS,
    BOOLEAN,
    MASK_OF_NUMBERS,
    MASKS,
    SHAPE,
)

SECTION, WRONG_SHAPE = "self_attention#padding-mask", SHAPE


def cases(rng: Generator) -> Iterator[Case]:
    for lengths, length in (
        ((2, 5, 3), 5),
        ((3, 1), 3),
        ((4, 1, 3, 2, 4), 5),  # as many sentences as places, none of them full
        ((2,), 3),
        ((3, 3, 3), 7),
    ):
        yield case("real tokens", lengths, length)
    yield case("real tokens", tuple(torch.randint(1, 12, (7,), generator=rng).tolist()), 13)
    for lengths, length in (((3, 0, 2), 3), ((2, 2, 2), 2), ((1,), 1), ((0, 0), 3)):
        yield case("edges", lengths, length)
    short = torch.tensor([3, 1], dtype=torch.int32)
    yield Case("edges", "lengths [3, 1] of type int32, padded to 5", (Call((short, 5)),))


def case(part: str, lengths: Sequence[int], length: int) -> Case:
    given = torch.tensor(lengths)
    label = f"lengths {list(lengths)}, padded to {length}"
    return Case(part, label, (Call((given, length)),), holds=(what_is_real(given, length),))


def what_is_real(lengths: Tensor, length: int) -> Property:
    right = self_attention.padding_mask(lengths, length)

    def broken(outputs: Sequence[Any]) -> str | None:
        wrong = (outputs[0] != right).nonzero()
        if not len(wrong):
            return None
        example, _, _, key = wrong[0].tolist()
        may = "may" if outputs[0][example, 0, 0, key] else "may not"
        kind = "a real token" if right[example, 0, 0, key] else "padding"
        return (
            f"in your mask of example {example}, which has {int(lengths[example])} of {length} real tokens, "
            f"key {key} is {kind} but {may} be attended to"
        )

    return Property("A real token may be attended to, and padding may not.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def comparing(compare: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Build a mask out of a comparison of the places (1, key) with the lengths (batch, 1)."""
    return lambda lengths, length: compare(torch.arange(length)[None], lengths[:, None])[:, None, None]


def shaped(shape: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Build a mask out of the right (batch, key)."""
    return lambda lengths, length: shape(self_attention.padding_mask(lengths, length)[:, 0, 0])


def altered(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    return lambda lengths, length: change(self_attention.padding_mask(lengths, length))


def longest(lengths: Tensor, length: int) -> Tensor:
    return self_attention.padding_mask(lengths, int(lengths.max()))


def in_front(lengths: Tensor, length: int) -> Tensor:
    return self_attention.padding_mask(lengths, length).flip(-1)


def of_first_example(lengths: Tensor, length: int) -> Tensor:
    return self_attention.padding_mask(lengths[:1].expand(len(lengths)), length)


def reshaped(lengths: Tensor, length: int) -> Tensor:
    return places_in_rows(lengths, length).reshape(len(lengths), 1, 1, length)


def hidden_from_the_end(lengths: Tensor, length: int) -> Tensor:
    mask = torch.ones(len(lengths), 1, 1, length, dtype=torch.bool)
    for example, real in enumerate(lengths.tolist()):
        mask[example, :, :, -(length - real) :] = False
    return mask


def places_in_rows(lengths: Tensor, length: int) -> Tensor:
    return torch.arange(length)[:, None] < lengths[None]


def places_in_rows_four_axes(lengths: Tensor, length: int) -> Tensor:
    return places_in_rows(lengths, length)[:, None, None]


def queries_too(mask: Tensor) -> Tensor:
    return (mask[:, :, None] & mask[:, None])[:, None]


MISCONCEPTIONS = (
    Misconception(
        "padding_one_too_many",
        "One place too many counts as real: the first place of padding of every shorter sentence. Places are counted "
        "from 0, so a sentence of 2 tokens fills the places 0 and 1; place 2 is padding already.",
        SECTION,
        (comparing(torch.le),),
        ("https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",),
    ),
    Misconception(
        "padding_one_too_few",
        "The last real token of each sentence is hidden. Places are counted from 0, and a sentence of 2 tokens fills "
        "the places 0 and 1; `<` leaves out the end by itself, nothing has to be taken off.",
        SECTION,
        (
            comparing(lambda place, length: place < length - 1),
            comparing(lambda place, length: (place > 0) & (place < length)),
        ),
    ),
    Misconception(
        "padding_inverted",
        "The mask is the wrong way round: True stands on the padding. The key_padding_mask of nn.MultiheadAttention is "
        "read so: True means “ignore”. In this book True means “may attend”, as in PyTorch's "
        "scaled_dot_product_attention. Nothing warns you: the same tensor is accepted in both places.",
        MASKS,
        (comparing(torch.ge),),
        (
            "https://github.com/facebookresearch/detr/issues/96",
            "https://github.com/lucidrains/x-transformers/issues/160",
        ),
    ),
    Misconception(
        "padding_without_axes",
        "The shape is (batch, key). Shapes are lined up from the right, so that attention takes it for (query, key): "
        "the mask of example 2 falls on query 2 of every example, in silence wherever there are as many sentences as "
        "places. The mask needs an axis of size 1 for the heads and one for the queries.",
        WRONG_SHAPE,
        (shaped(lambda mask: mask),),
        ("https://github.com/lucidrains/vit-pytorch/issues/71",),
    ),
    Misconception(
        "padding_without_head_axis",
        "An axis is missing: the mask has three, and the weights of several heads have four, (batch, head, query, "
        "key). Lined up from the right, your batch falls on their heads: the mask of example 1 is used for head 1.",
        WRONG_SHAPE,
        (shaped(lambda mask: mask[:, None]), shaped(lambda mask: mask[:, :, None])),
        (
            "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
            "https://github.com/lucidrains/vit-pytorch/issues/71",
        ),
    ),
    Misconception(
        "padding_hides_queries",
        "The axis of the tokens stands where the queries are, (batch, 1, query, 1). So the rows of padding are "
        "hidden, which nobody will read anyway, and every real token still attends to the padding. What must not be "
        "attended to are keys: they are the last axis.",
        SECTION,
        (shaped(lambda mask: mask[:, None, :, None]),),
    ),
    Misconception(
        "padding_hides_queries_too",
        "The mask hides padding as a query too: (batch, 1, query, key), with rows that are False throughout. It looks "
        "tidier, but such a query may attend to nothing, which many implementations turn into NaN, and the mask no "
        "longer fits where there are other queries than keys. Let padding ask: nobody reads what it gets.",
        SECTION,
        (shaped(queries_too),),
        (
            "https://github.com/ajhalthor/Transformer-Neural-Network/issues/15",
            "https://github.com/bentrevett/pytorch-seq2seq/issues/119",
            "https://github.com/pytorch/pytorch/issues/41508",
        ),
    ),
    Misconception(
        "padding_batch_in_wrong_place",
        "The axes of size 1 stand in front, (1, 1, batch, key). The batch has to be the first axis: here it lies "
        "where the queries are, and the mask of example 2 falls on query 2 of every example.",
        WRONG_SHAPE,
        (
            shaped(lambda mask: mask[None, None]),
            shaped(lambda mask: mask[None]),
            shaped(lambda mask: mask[None, :, None]),
            shaped(lambda mask: mask[None, None, None]),
        ),
    ),
    Misconception(
        "padding_places_in_rows",
        "Places and sentences have changed axes: each row is a place, each column a sentence. Which of the two stands "
        "where is decided by the axis of size 1 that you give them before they are compared.",
        SECTION,
        (places_in_rows, places_in_rows_four_axes),
    ),
    Misconception(
        "padding_reshaped",
        "Places and sentences had changed axes, and a reshape brought them into the right shape. It cuts the same row "
        "of entries anew and turns nothing, so that the entries of one place end up in several sentences.",
        SECTION,
        (reshaped,),
    ),
    Misconception(
        "padding_negative_index",
        "The padding is counted from the end, by a slice that begins at minus its number. Where there is no padding "
        "that is minus 0, which is 0: the slice begins at the very first place, and a full sentence is hidden "
        "altogether.",
        SECTION,
        (hidden_from_the_end,),
    ),
    Misconception(
        "padding_stretched",
        "The axis of the queries has been stretched, (batch, 1, length, length). An axis of size 1 means “the same "
        "for all” and fits any number of queries. Stretched, the mask fits self-attention alone: in a decoder the "
        "queries come from another sentence, of another length.",
        WRONG_SHAPE,
        (shaped(lambda mask: mask[:, None, None].repeat(1, 1, mask.size(-1), 1)),),
    ),
    Misconception(
        "padding_to_the_longest",
        "The mask is as wide as the longest sentence of the batch, whatever length the batch was padded to. The two "
        "agree only where a sentence is full: with a fixed length, or a part of a batch on each device, the mask is "
        "too narrow.",
        SECTION,
        (longest,),
        (
            "https://github.com/speechbrain/speechbrain/issues/2344",
            "https://github.com/speechbrain/speechbrain/pull/3086",
        ),
    ),
    Misconception(
        "padding_in_front",
        "The real tokens are taken to be the last ones. That is how a batch is padded when a model is to write on, "
        "since the newest token then stands last in every row; here the padding stands behind.",
        SECTION,
        (in_front,),
    ),
    Misconception(
        "padding_of_first_example",
        "Every sentence gets the mask of the first. Each has a length of its own: the comparison needs a row for each.",
        SECTION,
        (of_first_example,),
    ),
    Misconception("mask_of_numbers", MASK_OF_NUMBERS, BOOLEAN, tuple(altered(change) for change in AS_NUMBERS)),
    Misconception("additive_mask", ADDITIVE_MASK, BOOLEAN, tuple(altered(change) for change in AS_ADDED)),
)

EXERCISE = Exercise(
    name="padding_mask",
    chapter="self_attention",
    kind="function",
    minutes=10,
    parts=(
        Part(
            "real tokens",
            1,
            "be True on the real tokens of each sentence, and have the shape (batch, 1, 1, key)",
            SECTION,
        ),
        Part(
            "edges",
            1,
            "hold for sentences without a token and for full ones, and for lengths of any integer type",
            SECTION,
        ),
    ),
    hints=(
        "Two sentences of 2 and 3 tokens are padded to 4. Write down the row of each. What do you compare with what, "
        "to get an entry?",
        "torch.arange numbers the places. Comparing all places with all lengths at once takes an axis of size 1 in "
        "each: one has to become a row, the other a column.",
        "Places (1, key) below lengths (batch, 1) gives (batch, key). Two axes of size 1 are still missing, between "
        "the batch and the keys; None in square brackets puts one in.",
    ),
    cases=cases,
    reference=self_attention.padding_mask,
    misconceptions=MISCONCEPTIONS,
)

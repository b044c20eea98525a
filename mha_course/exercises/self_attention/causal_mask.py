"""Exercise: say who may attend to whom where nobody may see what comes later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import self_attention
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property

SECTION, SHAPE = "self_attention#causal-mask", "self_attention#masks-together"
MASKS, BOOLEAN = "self_attention#masks", "self_attention#boolean-or-additive"
LENGTHS = (3, 2, 1, 5, 7, 131)  # the first is the one that is shown


def cases(rng: Generator) -> Iterator[Case]:
    for length in LENGTHS:
        right = self_attention.causal_mask(length)
        yield Case("triangle", describe(length), (Call((length,)),), holds=(who_may_see_whom(right, RULE),))
    yield Case("any length", "5 tokens, then 3, then 257", tuple(Call((length,)) for length in (5, 3, 257)))


def describe(length: int) -> str:
    return f"{length} token{'s' * (length > 1)}"


def who_may_see_whom(right: Tensor, rule: str, lengths: Tensor | None = None) -> Property:
    """Demand a mask (…, query, key) entry by entry, and name the first that is wrong; lengths: real tokens, if any pad."""

    def broken(outputs: Sequence[Any]) -> str | None:
        wrong = (outputs[0] != right).nonzero()
        if not len(wrong):
            return None
        index = wrong[0].tolist()
        *leading, query, key = index
        may = "may" if outputs[0][tuple(index)] else "may not"
        where = "itself" if key == query else f"key {key}, which comes {'later' if key > query else 'earlier'}"
        if lengths is None:
            return f"in your mask, query {query} {may} attend to {where}"
        kind = "a real token" if key < int(lengths[leading[0]]) else "padding"
        example = f"in your mask of example {leading[0]}, which has {int(lengths[leading[0]])} of {right.size(-1)} real tokens"
        return f"{example}, query {query} {may} attend to {where}; that key is {kind}"

    return Property(rule, broken)


RULE = "A query may attend to itself and to every earlier key, and to no later one."

# --- wrong answers -------------------------------------------------------------------------------------------------


def altered(change: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
    return lambda length: change(self_attention.causal_mask(length))


def ones(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool)


def added(number: float) -> Callable[[Tensor], Tensor]:
    """Make a mask of numbers to be added to the scores: 0 where it allows, this number where it does not."""
    return lambda mask: torch.zeros(mask.shape).masked_fill(~mask, number)


def numbers(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda mask: change(~mask)


# A right mask in another type: ones and zeros, also the other way round, and what would have to be added.
AS_NUMBERS = (Tensor.float, Tensor.long, Tensor.int, Tensor.byte, numbers(Tensor.float), numbers(Tensor.long))
AS_ADDED = tuple(added(number) for number in (-math.inf, torch.finfo(torch.float32).min, -1e9))
MASK_OF_NUMBERS = (
    "The mask holds numbers. Ones and zeros don't say what is meant: a library adds them to the scores, where a 0 "
    "hides nothing, and `~`, which turns a boolean mask round, fails on decimal numbers and makes -2 out of the "
    "integer 1. A mask of this book is boolean, torch.bool, so that True can have one meaning only."
)
ADDITIVE_MASK = (
    "The mask holds what is to be added to the scores: 0 where a query may attend, a huge negative number where it may "
    "not. Libraries do use that form, and it hides well, but it can't be joined with other masks by `&`. Here the mask "
    "only says yes or no, and the attention function chooses the number."
)
INVERTED = (
    "The mask is the wrong way round: True stands where a query may NOT attend. nn.Transformer and "
    "nn.MultiheadAttention read a mask so. In this book, and in PyTorch's scaled_dot_product_attention, True means "
    "“may attend”. Nothing warns you: the same tensor is accepted in both places."
)


def fixed_size(size: int) -> Callable[[int], Tensor]:
    return lambda length: self_attention.causal_mask(size)[:length, :length]


def given_out_again(size: int) -> Callable[[int], Tensor]:
    return lambda length: self_attention.causal_mask(size)


MISCONCEPTIONS = (
    Misconception(
        "causal_mask_excludes_self",
        "The triangle starts one diagonal too low: no token may attend to itself. The first one then sees nothing at "
        "all, and softmax of nothing is NaN. It looks safe to hide the token itself, “or it could copy the answer”; "
        "but the answer at each place is the NEXT token. The current one is what the model is given.",
        SECTION,
        (altered(lambda mask: mask.tril(-1)),),
        ("https://github.com/pbloem/former/issues/10",),
    ),
    Misconception(
        "causal_mask_sees_next",
        "The triangle reaches one diagonal too far: each token may also attend to the next one. That is the very "
        "answer which the model has to predict at this place, so that in training the loss falls as by magic and the "
        "model has learned to copy. (`diagonal=1` belongs to triu, where it marks what is to be hidden.)",
        SECTION,
        (lambda length: ones(length).tril(1),),
    ),
    Misconception(
        "causal_mask_transposed",
        "Past and future have changed places: tokens see themselves and what comes later. Row and column are mixed up "
        "(j >= i in place of j <= i, triu in place of tril), or a triangle of what is to be hidden was made, and the "
        "diagonal with it. A row is a query, a column a key: row 0 is the first token, which may see nothing but "
        "itself.",
        SECTION,
        (lambda length: ones(length).triu(),),
        ("https://github.com/marin-community/levanter/pull/102",),
    ),
    Misconception(
        "causal_mask_inverted",
        INVERTED,
        MASKS,
        (altered(torch.logical_not),),
        (
            "https://github.com/rasbt/LLMs-from-scratch/issues/1061",
            "https://github.com/lucidrains/x-transformers/issues/160",
        ),
    ),
    Misconception("mask_of_numbers", MASK_OF_NUMBERS, BOOLEAN, tuple(altered(change) for change in AS_NUMBERS)),
    Misconception("additive_mask", ADDITIVE_MASK, BOOLEAN, tuple(altered(change) for change in AS_ADDED)),
    Misconception(
        "causal_mask_allows_all",
        "Every entry is True, which is no mask at all: each token sees the whole sentence. A row of ones, as a "
        "tokenizer gives it out, says which tokens are real; it does not know the order.",
        SECTION,
        (ones, lambda length: torch.ones(length, length, dtype=torch.bool).tril(length)),
        ("https://github.com/alex-matton/causal-transformer-decoder/issues/1",),
    ),
    Misconception(
        "causal_mask_itself_alone",
        "Each token may attend to itself alone. Then it has nothing to mix, and attention returns its own value. What "
        "came before must stay in sight: only what comes later is hidden.",
        SECTION,
        (lambda length: torch.eye(length, dtype=torch.bool),),
    ),
    Misconception(
        "causal_mask_mirrored",
        "The triangle is mirrored: its long row is the first, or its long column the last. Key 0 is the first column "
        "and query 0 the first row, in the upper left corner; there the triangle has its tip.",
        SECTION,
        (altered(lambda mask: mask.flip(1)), altered(lambda mask: mask.flip(0))),
    ),
    Misconception(
        "causal_mask_extra_axes",
        "There are axes of size 1 in front, (1, query, key) or (1, 1, query, key), as a layer with a batch and heads "
        "may keep its mask. Broadcasting adds such axes by itself. Put in by hand they reach the result: a sentence "
        "without a batch comes back with one.",
        SHAPE,
        (altered(lambda mask: mask[None]), altered(lambda mask: mask[None, None])),
    ),
    Misconception(
        "causal_mask_fixed_size",
        "The mask is cut out of one that was made once, for a largest length. A longer sentence gets a mask that is "
        "too small. Layers do keep such a mask to save time, but they must then refuse what is longer, or make a new "
        "one.",
        SECTION,
        tuple(fixed_size(size) for size in (8, 10, 16, 32, 64, 100, 128, 256)),
        ("https://github.com/facebookresearch/xformers/pull/66",),
    ),
    Misconception(
        "causal_mask_remembered",
        "The mask of the first call is kept and given out again, whatever length is asked for next. All goes well "
        "until a longer or a shorter sentence comes. A mask may be kept, but only together with its length.",
        SECTION,
        (*(given_out_again(size) for size in (3, 5, 4, 7, 10)), fixed_size(3), fixed_size(5)),
        (
            "https://github.com/facebookresearch/xformers/issues/655",
            "https://github.com/XPU-Forces/mojo_opset/pull/390",
        ),
    ),
    Misconception(
        "causal_mask_one_row",
        "It is a single row, one entry a key. But what may be seen differs from query to query: the mask is a table "
        "with a row for each query and a column for each key.",
        SECTION,
        (lambda length: torch.ones(length, dtype=torch.bool), lambda length: torch.ones(1, length, dtype=torch.bool)),
    ),
)

EXERCISE = Exercise(
    name="causal_mask",
    chapter="self_attention",
    kind="function",
    minutes=5,
    parts=(
        Part(
            "triangle", 1, "let each query attend to itself and to what comes before it, and to nothing else", SECTION
        ),
        Part("any length", 1, "make a mask of the length that is asked for, at every call", SECTION),
    ),
    hints=(
        "Draw the table for three tokens, with a row for each query and a column for each key. Which entries are True "
        "in the first row, and which in the last?",
        "PyTorch keeps a triangle of a matrix with tril and triu. Or number the queries and the keys, and compare "
        "every number of the one with every number of the other.",
        "Start with a square of True: torch.ones takes a dtype. Keep what is on and below the diagonal; the diagonal "
        "is each token itself.",
    ),
    cases=cases,
    reference=self_attention.causal_mask,
    misconceptions=MISCONCEPTIONS,
)

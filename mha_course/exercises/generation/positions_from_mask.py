"""Exercise: count the positions of each text in a padded batch from its own first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given

SECTION = "positions#counting-from-the-first-real-token"


def cases(rng: Generator) -> Iterator[Case]:
    for label, mask in masks(rng):
        yield Case("real tokens", label, (Call((mask,)),), through=given(at_real_tokens), holds=(counted(mask),))
    for label, mask in (*masks(rng), ("a text without any token beside another", rows("00000", "00111"))):
        yield Case("padding", label, (Call((mask,)),), compare=False, holds=(exists,))


def masks(rng: Generator) -> Iterator[tuple[str, Tensor]]:
    yield from (
        ("two texts of 3 and 2 tokens, padded on the left", rows("111", "011")),
        ("a text of one token, without padding", rows("1")),
        ("one text of 2 tokens, padded on the left to 5", rows("00011")),
        ("two texts without padding", rows("11111", "11111")),
        ("three texts of 2, 5 and 4 tokens, padded on the left", rows("00011", "11111", "01111")),
        ("three texts of 7, 1 and 3 tokens, padded on the left", rows("1111111", "0000001", "0000111")),
        ("two texts padded on the right", rows("11100", "11110")),
        ("a text padded on the left beside one padded on the right", rows("00111", "11100")),
        ("texts padded on both sides", rows("0011100", "0111110", "1111000")),
        ("prompts padded on the right, and two tokens written behind", rows("1110011", "1111111", "1000011")),
        ("as many texts as places", rows("00001", "00011", "00111", "01111", "11111")),
    )
    yield "a text of 2,100 tokens, more than half precision can count", torch.ones(1, 2100, dtype=torch.bool)
    lengths = torch.randint(1, 12, (7,), generator=rng)
    yield "seven texts, padded on the left to 11", torch.arange(11) >= (11 - lengths)[:, None]


def rows(*texts: str) -> Tensor:
    return torch.tensor([[sign == "1" for sign in text] for text in texts])


def at_real_tokens(answer: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def run(mask: Tensor) -> Any:
        positions = answer(mask)
        if isinstance(positions, Tensor) and positions.shape == mask.shape:
            return positions.masked_fill(~mask, 0)
        return positions

    return run


def counted(mask: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for row, column in mask.nonzero().tolist():
            found, before = int(outputs[0][row, column]), int(mask[row, :column].sum())
            if found != before:
                shown = " ".join("1" if real else "0" for real in mask[row].tolist())
                return f"row {row} of the mask is {shown}; place {column} gets {found}; real tokens before it: {before}"
        return None

    return Property("A token's position is the number of real tokens before it in its own row.", broken)


def _out_of_the_table(outputs: Sequence[Any]) -> str | None:
    length = outputs[0].size(1)
    for row, column in ((outputs[0] < 0) | (outputs[0] >= length)).nonzero().tolist():
        return (
            f"in row {row}, place {column}, there is {outputs[0][row, column]}, and the positions are 0 to {length - 1}"
        )
    return None


exists = Property(
    "Every position exists, also that of padding: a table of positions is asked for all of them.", _out_of_the_table
)


# --- wrong answers -------------------------------------------------------------------------------------------------


def columns(mask: Tensor) -> Tensor:
    return torch.arange(mask.size(1)).expand(mask.shape)


def columns_of_one_row(mask: Tensor) -> Tensor:
    return torch.arange(mask.size(1))


def real_so_far(mask: Tensor) -> Tensor:
    return mask.long().cumsum(dim=1)


def columns_of_real_tokens(mask: Tensor) -> Tensor:
    return columns(mask) * mask


def real_tokens_up_to_each(mask: Tensor) -> Tensor:
    return real_so_far(mask)


def numbered_from_one(mask: Tensor) -> Tensor:
    return real_so_far(mask) * mask


def unclamped(mask: Tensor) -> Tensor:
    return real_so_far(mask) - 1


def padding_minus_one(mask: Tensor) -> Tensor:
    return unclamped(mask).masked_fill(~mask, -1)


def padding_before_negative(mask: Tensor) -> Tensor:
    return columns(mask) - mask.long().argmax(dim=1, keepdim=True)


def moved_by_all_padding(mask: Tensor) -> Tensor:
    return (columns(mask) - (~mask).sum(dim=1, keepdim=True)).clamp(min=0)


def moved_to_the_first(mask: Tensor) -> Tensor:
    return padding_before_negative(mask).clamp(min=0)


def first_row_for_all(mask: Tensor) -> Tensor:
    return unclamped(mask)[:1].clamp(min=0).expand(mask.shape)


def along_the_batch(mask: Tensor) -> Tensor:
    return (mask.long().cumsum(dim=0) - 1).clamp(min=0)


def padding_counted(mask: Tensor) -> Tensor:
    return unclamped(~mask).clamp(min=0)


def through_the_batch(mask: Tensor) -> Tensor:
    return (mask.flatten().long().cumsum(dim=0).view(mask.shape) - 1).clamp(min=0)


def backwards(mask: Tensor) -> Tensor:
    return unclamped(mask.flip(1)).flip(1).clamp(min=0)


def in_decimal_numbers(mask: Tensor) -> Tensor:
    return (mask.float().cumsum(dim=1) - 1).clamp(min=0)


MISCONCEPTIONS = (
    Misconception(
        "left_pad_positions",
        "The positions are the numbers of the columns, the same for every row. That is right for a text that begins in "
        "column 0. Padding on the left pushes a short text to the right: its first token, which should be at 0, is then "
        "given the position of its column, and the model reads a text that seems to begin in its middle. The same prompt "
        "is continued in one way alone and in another way in a batch. A mask does not help here: it hides padding, but "
        "renumbers nothing.",
        SECTION,
        (columns, columns_of_real_tokens, columns_of_one_row),
        (
            "https://github.com/unslothai/unsloth/pull/3803",
            "https://github.com/ndif-team/nnsight/pull/673",
            "https://github.com/huggingface/transformers/issues/33095",
            "https://github.com/huggingface/transformers/pull/48028",
        ),
    ),
    Misconception(
        "counted_from_one",
        "The first token gets 1. Counting the real tokens up to and with a token gives 1 for the first of them, while "
        "positions begin at 0, as they do in `range`. (Some models, RoBERTa among them, really begin later; they were "
        "trained so, and their tables have rows for it.)",
        SECTION,
        (real_tokens_up_to_each, numbered_from_one),
        ("https://github.com/huggingface/transformers/issues/11242",),
    ),
    Misconception(
        "padding_below_zero",
        "Real tokens are right, but padding gets a negative position. Nobody attends to padding, so it seems not to "
        "matter; but its position is looked up all the same. An embedding raises an error for -1, and plain indexing "
        "silently takes the last row.",
        SECTION,
        (unclamped, padding_minus_one),
    ),
    Misconception(
        "moved_by_all_padding",
        "Each row is moved by the number of its padding places, wherever these stand. What pushes a token to the right is "
        "only the padding before it. Behind the last token, padding changes nothing.",
        SECTION,
        (moved_by_all_padding,),
    ),
    Misconception(
        "gaps_counted",
        "The positions are counted in columns from the first real token on. That is right as long as the real tokens "
        "stand side by side. Where there is padding between them, as behind a prompt that was padded on the right before "
        "it was continued, it is counted as if it were text.",
        SECTION,
        (moved_to_the_first, padding_before_negative),
    ),
    Misconception(
        "first_row_for_all",
        "The positions are those of the first row, for every row. Each text has padding of its own.",
        SECTION,
        (first_row_for_all,),
    ),
    Misconception(
        "counted_along_the_batch",
        "It's counted along axis 0, from text to text. Axis 0 is the batch, and the tokens of a text follow one another "
        "along axis 1.",
        SECTION,
        (along_the_batch,),
    ),
    Misconception(
        "counted_on_through_the_batch",
        "The count goes on from the end of one row to the beginning of the next. Each text begins at 0.",
        SECTION,
        (through_the_batch,),
    ),
    Misconception(
        "padding_counted",
        "The padding is counted instead of the tokens. In this book a mask is True where there is a token.",
        SECTION,
        (padding_counted,),
    ),
    Misconception(
        "counted_backwards",
        "It's counted from the end: the last token gets 0. The padding stands on the left, the counting goes from left to "
        "right all the same.",
        SECTION,
        (backwards,),
    ),
    Misconception(
        "decimal_numbers",
        "The numbers are right, but they are decimal numbers. A position is looked up in a table, and an index has to be "
        "a whole number (torch.int64).",
        SECTION,
        (in_decimal_numbers,),
    ),
)

EXERCISE = Exercise(
    name="positions_from_mask",
    chapter="generation",
    kind="function",
    minutes=10,
    parts=(
        Part("real tokens", 2, "give each token the number of real tokens before it in its own row", SECTION),
        Part("padding", 1, "give padding a position that exists, from 0 to length - 1", SECTION),
    ),
    hints=(
        "Write a row of the mask as 0 and 1, and below it the position that each real token should have. What has to be "
        "counted?",
        "A running sum along a row (torch.cumsum) counts the real tokens up to each place. How far is that from the "
        "position, and what does it give for padding at the beginning?",
        "The running sum of the mask along axis 1, less 1, is right for every real token; padding before the first one "
        "would get -1 and has to be raised to 0.",
    ),
    cases=cases,
    reference=positions.positions_from_mask,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: give each position a pattern of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property

SECTION, PAIR = "positions#sinusoids", "positions#one-pair-of-columns"
LAYOUT = "positions#interleaved-or-side-by-side"
Table = Callable[[int, int], Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for length, d_model in ((2, 4), (1, 4), (3, 2), (5, 6), (7, 12), (11, 10), (3, 16), (101, 8), (6, 6)):
        yield Case(
            "waves",
            describe(length, d_model),
            (Call((length, d_model)),),
            holds=(starts_at_zero, sine_and_cosine),
        )
    # In float32 the angles are off by up to 2e-4 there, which is nobody's fault.
    yield Case("waves", describe(2003, 4), (Call((2003, 4)),), tolerance=1e-3)
    yield Case("waves", "length 5, d_model 6, then length 3, d_model 4", (Call((5, 6)), Call((3, 4))))
    for length, d_model in ((3, 1), (5, 7), (2, 3), (11, 5), (7, 13)):
        yield Case("odd width", describe(length, d_model), (Call((length, d_model)),))


def describe(length: int, d_model: int) -> str:
    return f"length {length}, d_model {d_model}"


def _row_of_zero(outputs: Sequence[Any]) -> str | None:
    row = outputs[0][0]
    if (row - torch.arange(len(row)) % 2).abs().max() < 1e-5:
        return None
    return f"your row of position 0 is {[round(number, 3) for number in row.tolist()]}"


def _off_the_circle(outputs: Sequence[Any]) -> str | None:
    squares = outputs[0].double().square()
    sums = squares[:, 0::2] + squares[:, 1::2]
    if (sums - 1).abs().max() < 1e-4:
        return None
    position, pair = ((sums - 1).abs() >= 1e-4).nonzero()[0].tolist()
    return (
        f"at position {position}, the squares in columns {2 * pair} and {2 * pair + 1} sum to "
        f"{sums[position, pair]:.4f}, where sine and cosine of one angle would give 1"
    )


starts_at_zero = Property(
    "Positions count from 0, and columns are sines and cosines in turn: position 0 gets 0, 1, 0, 1, …", _row_of_zero
)
sine_and_cosine = Property("Columns 2i and 2i + 1 are the sine and the cosine of one angle.", _off_the_circle)


# --- wrong answers -------------------------------------------------------------------------------------------------


def waves(
    angle: Callable[[Tensor, Tensor, int], Tensor],
    even: Callable[[Tensor], Tensor] = torch.sin,
    odd: Callable[[Tensor], Tensor] = torch.cos,
) -> Table:
    """Build a table out of what the angle is, given positions, columns and the width, and of its two waves."""

    def table(length: int, d_model: int) -> Tensor:
        position = torch.arange(length, dtype=torch.float64)[:, None]
        column = torch.arange(d_model, dtype=torch.float64)
        turned = angle(position, column, d_model)
        return torch.where(column % 2 == 0, even(turned), odd(turned)).float()

    return table


def right_angle(position: Tensor, column: Tensor, d_model: int) -> Tensor:
    return position / 10000 ** ((column - column % 2) / d_model)


def speed(exponent: Callable[[Tensor, int], Tensor], base: float = 10000.0) -> Table:
    """Build a table in which the exponent is another function of column and width."""
    return waves(lambda position, column, d_model: position / base ** exponent(column, d_model))


def even_column(column: Tensor) -> Tensor:
    return column - column % 2


def side_by_side(length: int, d_model: int) -> Tensor:
    right = positions.sinusoidal_positions(length, d_model)
    return torch.cat([right[:, 0::2], right[:, 1::2]], dim=1)


def cosines_first(length: int, d_model: int) -> Tensor:
    right = positions.sinusoidal_positions(length, d_model)
    return torch.cat([right[:, 1::2], right[:, 0::2]], dim=1)


def transposed(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model).T


def with_batch_axis(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model)[None]


def in_float64(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model, torch.float64)


def cosines_of_sines(length: int, d_model: int) -> Tensor:
    table = torch.arange(length)[:, None] / 10000 ** (even_column(torch.arange(d_model)) / d_model)
    table[:, 0::2] = table[:, 0::2].sin()
    table[:, 1::2] = table[:, 0::2].cos()[:, : d_model // 2]
    return table


def sines_of_cosines(length: int, d_model: int) -> Tensor:
    right = positions.sinusoidal_positions(length, d_model)
    right[:, 0::2] = right[:, 0::2].sin()
    right[:, 1::2] = right[:, 1::2].cos()
    return right


def in_float16(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model, torch.float16).float()


def in_bfloat16(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model, torch.bfloat16).float()


def positions_in_float16(length: int, d_model: int) -> Tensor:
    return waves(lambda position, column, width: right_angle(position, column, width).half().double())(length, d_model)


def even_width_only(length: int, d_model: int) -> Tensor:
    table = torch.zeros(length, d_model)
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()
    return table


def odd_width_padded(length: int, d_model: int) -> Tensor:
    even = positions.sinusoidal_positions(length, d_model - d_model % 2)
    return torch.cat([even, torch.zeros(length, d_model % 2)], dim=1)


def odd_width_dropped(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model)[:, : d_model - d_model % 2]


def odd_width_as_next_even(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model + d_model % 2)[:, :d_model]


def odd_width_as_last_even(length: int, d_model: int) -> Tensor:
    width = d_model - d_model % 2 or 1
    return waves(lambda position, column, _: right_angle(position, column, width))(length, d_model)


def odd_width_rounded_up(length: int, d_model: int) -> Tensor:
    return positions.sinusoidal_positions(length, d_model + d_model % 2)


MISCONCEPTIONS = (
    Misconception(
        "pe_exponent_doubled",
        "The exponent grows twice as fast as it should. In the paper's 2i / d_model, i counts the pairs: 0, 1, 2, …. A "
        "loop or a range that steps by two already runs through 0, 2, 4, …, which is 2i itself; multiplied by 2 once more, "
        "the speeds fall far too quickly, and the later columns hardly change at all.",
        SECTION,
        (
            speed(lambda column, d_model: 2 * column / d_model),
            speed(lambda column, d_model: 2 * even_column(column) / d_model),
        ),
        (
            "https://github.com/SamLynnEvans/Transformer/issues/25",
            "https://github.com/shenweichen/DeepCTR/issues/379",
            "https://github.com/Kyubyong/transformer/issues/38",
            "https://github.com/BrianPulfer/PapersReimplementations/issues/9",
        ),
    ),
    Misconception(
        "pe_speed_per_column",
        "Each column has a speed of its own. But a sine and the cosine beside it belong together: they are the two "
        "coordinates of one hand of a clock, which has one speed. With two speeds the pair is no hand, and moving on by k "
        "positions is no rotation.",
        PAIR,
        (speed(lambda column, d_model: column / d_model),),
        (
            "https://github.com/dmlc/gluon-nlp/issues/178",
            "https://github.com/luhengshiwo/LLMForEverybody/issues/106",
        ),
    ),
    Misconception(
        "pe_exponent_halved",
        "The exponent grows half as fast as it should: the number of the pair is divided by the whole width, where the "
        "paper has twice that number. The slowest hand then goes round in some 600 positions instead of 60,000.",
        SECTION,
        (speed(lambda column, d_model: even_column(column) / 2 / d_model),),
    ),
    Misconception(
        "pe_last_speed",
        "The speeds run from 1 to exactly 1 / 10000, as if the last pair had to reach it: the number of the pair is divided "
        "by the number of pairs less one. Some libraries do that. In the paper the exponent is 2i / d_model, and the last "
        "pair stays just short of it.",
        SECTION,
        (speed(lambda column, d_model: even_column(column) / 2 / max(d_model / 2 - 1, 1)),),
    ),
    Misconception(
        "pe_other_base",
        "The speeds fall by another factor than they should: the base of the power is not 10000.",
        SECTION,
        tuple(speed(lambda column, d_model: even_column(column) / d_model, base) for base in (1000.0, 100_000.0)),
        ("https://github.com/maxjcohen/transformer/issues/62",),
    ),
    Misconception(
        "pe_natural_power",
        "The power is one of e, about 2.718, where it should be one of 10000. To write a power of 10000 with exp, the "
        "exponent must be multiplied by the logarithm of 10000, the natural one that math.log gives.",
        SECTION,
        (
            speed(lambda column, d_model: even_column(column) / d_model, math.e),
            speed(lambda column, d_model: even_column(column) / d_model * math.log10(10000), math.e),
        ),
    ),
    Misconception(
        "pe_missing_minus",
        "The speeds rise from pair to pair instead of falling: the position is multiplied by the power of 10000, not "
        "divided by it (or the minus in the exponent is missing). A hand that turns by thousands of radians a step points "
        "anywhere; neighbours have nothing in common.",
        SECTION,
        (waves(lambda position, column, d_model: position * 10000 ** (even_column(column) / d_model)),),
    ),
    Misconception(
        "pe_base_and_exponent_exchanged",
        "Base and exponent have changed places. Almost all hands then turn at almost the same speed, so that far places "
        "can't be told apart.",
        SECTION,
        (
            waves(lambda position, column, d_model: position * (even_column(column) / d_model) ** 1e-4),
            waves(lambda position, column, d_model: position / (even_column(column) / d_model) ** 10000),
        ),
        ("https://github.com/ivanvovk/WaveGrad/issues/12",),
    ),
    Misconception(
        "pe_integer_division",
        "Somewhere // cuts off what comes after the point. 2i / d_model lies between 0 and 1: rounded down it is always 0, "
        "and every pair turns at the same speed. (-log(10000) / d_model // 2 is such a case too: it divides from left to "
        "right and rounds the result down to a whole number.)",
        SECTION,
        (
            speed(lambda column, d_model: 0 * column),
            waves(lambda position, column, d_model: position * torch.exp(-even_column(column))),
            waves(
                lambda position, column, d_model: (
                    position * torch.exp(even_column(column) * (-math.log(10000) / d_model // 2))
                )
            ),
            waves(lambda position, column, d_model: position // 10000 ** (even_column(column) / d_model)),
        ),
        ("https://github.com/zju3dv/LoFTR/issues/41", "https://github.com/Kyubyong/transformer/pull/81"),
    ),
    Misconception(
        "pe_sin_cos_exchanged",
        "Sine and cosine have changed places: the cosines stand in the columns 0, 2, 4, …. A model could be trained with "
        "that as well, but whoever loads trained weights needs the columns in the order in which they were learned.",
        LAYOUT,
        (waves(right_angle, torch.cos, torch.sin),),
        ("https://github.com/Open-Deep-ML/DML-OpenProblem/pull/595",),
    ),
    Misconception(
        "pe_side_by_side",
        "All sines stand on one side, all cosines on the other. As to what can be learned it makes no difference, and "
        "some libraries do it so; but here, as in the paper, they stand in turn, and trained weights fit only the order "
        "in which they were learned.",
        LAYOUT,
        (side_by_side, cosines_first),
        (
            "https://github.com/allenai/allennlp/issues/2993",
            "https://github.com/tensorops/TransformerX/issues/115",
            "https://github.com/lucidrains/x-transformers/issues/252",
        ),
    ),
    Misconception(
        "pe_overwritten",
        "A wave is taken of what is a wave already: the angles have been overwritten by their sines when the cosines are "
        "made of them (or sine and cosine are applied twice). Both waves need the angles as they were; keep these in a "
        "tensor of their own.",
        SECTION,
        (cosines_of_sines, sines_of_cosines),
        ("https://github.com/huggingface/transformers/pull/11725",),
    ),
    Misconception(
        "pe_sines_alone",
        "Every column holds the same kind of wave. With sines (or cosines) alone a hand is seen from the side only: two "
        "different angles look alike, and a shift of the position is no longer a rotation.",
        PAIR,
        (waves(right_angle, torch.sin, torch.sin), waves(right_angle, torch.cos, torch.cos)),
    ),
    Misconception(
        "pe_from_one",
        "Positions are counted from 1. The first token stands at position 0: its sines are 0 and its cosines 1.",
        SECTION,
        (waves(lambda position, column, d_model: right_angle(position + 1, column, d_model)),),
    ),
    Misconception(
        "pe_position_divided",
        "The position is divided by the length, so that the last one is always about 1. Then the same place looks "
        "different in a long text and in a short one, and the distance between neighbours depends on the length.",
        SECTION,
        (
            waves(lambda position, column, d_model: right_angle(position / len(position), column, d_model)),
            waves(lambda position, column, d_model: right_angle(position / max(len(position) - 1, 1), column, d_model)),
        ),
    ),
    Misconception(
        "pe_circles_for_radians",
        "The angle is multiplied by 2π, so that the fastest hand goes round once a step and always points up. In the "
        "formula the angle is in radians as it stands: pair 0 turns by 1 radian a step.",
        SECTION,
        (
            waves(
                lambda position, column, d_model: 2 * math.pi * right_angle(position, column, d_model),
            ),
        ),
    ),
    Misconception(
        "pe_degrees_for_radians",
        "The angle is taken for degrees and converted. In the formula it is in radians as it stands: pair 0 turns by "
        "1 radian a step, about 57 degrees.",
        SECTION,
        (waves(lambda position, column, d_model: right_angle(position, column, d_model) * math.pi / 180),),
    ),
    Misconception(
        "pe_slow_first",
        "The pairs are in the wrong order: the slowest hand stands in the first columns. In the formula pair 0 has the "
        "exponent 0 and is the fastest.",
        SECTION,
        (
            waves(
                lambda position, column, d_model: (
                    position / 10000 ** ((d_model - d_model % 2 - 2 - even_column(column)).clamp(min=0) / d_model)
                )
            ),
        ),
    ),
    Misconception(
        "pe_transposed",
        "Rows and columns have changed places. A table of vectors has one row for each vector: row p belongs to "
        "position p.",
        SECTION,
        (transposed,),
    ),
    Misconception(
        "pe_batch_axis",
        "The result has an axis for the batch. The table is the same for every example, so it needs none; adding it to "
        "(batch, length, d_model) broadcasts by itself.",
        SECTION,
        (with_batch_axis,),
    ),
    Misconception(
        "pe_float64",
        "The values are right, but their type is float64 (NumPy's usual one). Computing in float64 is a good idea; the "
        "result should be float32, the type of the tokens to which it is added.",
        "positions#low-precision",
        (in_float64,),
    ),
    Misconception(
        "pe_rounded",
        "The values are computed in 16 bits somewhere, or rounded to them. Such a type can't hold a large position or "
        "angle: neighbours far into the text get the same pattern, or a wrong one.",
        "positions#low-precision",
        (in_float16, in_bfloat16, positions_in_float16),
    ),
    Misconception(
        "pe_odd_width",
        "An odd width fails, or its last column is wrong. A width of 7 has four sines and three cosines: the last sine "
        "has no partner, and everything else, the exponent too, stays as the formula says.",
        SECTION,
        (
            even_width_only,
            odd_width_padded,
            odd_width_dropped,
            odd_width_rounded_up,
            odd_width_as_next_even,
            odd_width_as_last_even,
        ),
        (
            "https://github.com/codertimo/BERT-pytorch/issues/78",
            "https://github.com/gc-os-ai/pyaptamer/issues/607",
            "https://github.com/zhouhaoyi/Informer2020/issues/224",
            "https://github.com/hfxunlp/transformer/issues/1",
        ),
    ),
)
OWN_SLIPS = ("pe_transposed", "pe_batch_axis", "pe_float64", "pe_rounded", "pe_odd_width")


def built_on_wrong_tables(build: Callable[[Table], Callable[..., Any]], preface: str) -> tuple[Misconception, ...]:
    """Return what is wrong with tables of the right shape, each in its commonest form, for an exercise that builds on one."""
    return tuple(
        replace(known, explanation=f"{preface} {known.explanation}", wrong=(build(known.wrong[0]),))
        for known in MISCONCEPTIONS
        if known.name not in OWN_SLIPS
    )


EXERCISE = Exercise(
    name="sinusoidal_positions",
    chapter="positions",
    kind="function",
    minutes=15,
    parts=(
        Part(
            "waves", 2, "put the sine and cosine of position / 10000^(2i / d_model) into columns 2i and 2i + 1", SECTION
        ),
        Part("odd width", 1, "end on a sine where the width is odd", SECTION),
    ),
    hints=(
        "Write down the table for three positions and four columns by hand: which angle stands behind each of the twelve "
        "numbers?",
        "Make a column of positions and a row of speeds, one for each pair; their product, by broadcasting, holds all "
        "angles. How many speeds does a width of 7 need?",
        "The speeds are 10000 to the power of -(0, 2, 4, …) / d_model. Fill every second column from 0 on with the sines "
        "of all angles, and every second from 1 on with the cosines; with an odd width, there is one cosine too many.",
    ),
    cases=cases,
    reference=positions.sinusoidal_positions,
    misconceptions=MISCONCEPTIONS,
)

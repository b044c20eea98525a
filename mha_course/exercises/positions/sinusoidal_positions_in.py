"""Exercise: the table of sinusoids in a given type, exact far into the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given
from mha_course.exercises.positions.sinusoidal_positions import Table, built_on_wrong_tables

SECTION = "positions#low-precision"
Answer = Callable[[int, int, torch.dtype], Tensor]
# Two tables that are right may round to different neighbours.
SLACK = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-3, "bfloat16": 6e-3}


def sinusoidal_positions_in(length: int, d_model: int, dtype: torch.dtype) -> Tensor:
    return positions.sinusoidal_positions(length, d_model, dtype)


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the type be given by its name, since a type itself can't be sent to another process."""

    def called(length: int, d_model: int, dtype: str) -> Any:
        return function(length, d_model, getattr(torch, dtype))

    return called


def cases(rng: Generator) -> Iterator[Case]:
    for dtype, length, d_model in (
        ("float32", 3, 4),
        ("bfloat16", 3, 4),
        ("float16", 5, 6),
        ("float64", 7, 10),
        ("float32", 11, 12),
        ("bfloat16", 5, 7),
        ("float16", 2, 3),
    ):
        yield _case("table", length, d_model, dtype)
    for dtype, length, d_model in (
        ("bfloat16", 263, 4),
        ("bfloat16", 1031, 6),
        ("float16", 2111, 4),
        ("float16", 3001, 6),
    ):
        yield _case("far positions", length, d_model, dtype)
    yield _case("far positions", 2111, 4, "float32", tolerance=1e-3)


def _case(part: str, length: int, d_model: int, dtype: str, tolerance: float = 0.0) -> Case:
    return Case(
        part,
        f"length {length}, d_model {d_model}, {dtype}",
        (Call((length, d_model, dtype)),),
        through=given(by_name),
        tolerance=tolerance or SLACK[dtype],
    )


# --- wrong answers -------------------------------------------------------------------------------------------------


def build(
    position: Callable[[Tensor, torch.dtype], Tensor] = lambda position, dtype: position,
    speed: Callable[[Tensor, torch.dtype], Tensor] = lambda speed, dtype: speed,
    angle: Callable[[Tensor, torch.dtype], Tensor] = lambda angle, dtype: angle,
    result: Callable[[Tensor, torch.dtype], Tensor] = lambda table, dtype: table.to(dtype),
) -> Answer:
    """Build the table in steps that round nothing but the result, unless others are given."""

    def table(length: int, d_model: int, dtype: torch.dtype) -> Tensor:
        where = position(torch.arange(length, dtype=torch.float32)[:, None], dtype)
        fast = speed(10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float32) / d_model), dtype)
        turned = angle(where * fast, dtype)
        waves = torch.stack([turned.sin(), turned.cos()], dim=-1).flatten(1)[:, :d_model]
        return result(waves, dtype)

    return table


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def rounded_and_back(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).float()


def counted_in(position: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.arange(len(position), dtype=dtype)[:, None]


# In which ways the speeds are computed, given 0, 2, 4, … and the width; they differ in how they round.
SPEEDS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda even, width: torch.exp(even * (-math.log(10000.0) / width)),
    lambda even, width: torch.exp(-math.log(10000.0) * even / width),
    lambda even, width: 10000.0 ** (-even / width),
    lambda even, width: 1.0 / 10000.0 ** (even / width),
)


def all_in_type(speed: Callable[[Tensor, int], Tensor]) -> Answer:
    """Build the table with every step in the type that is asked for."""

    def table(length: int, d_model: int, dtype: torch.dtype) -> Tensor:
        angle = torch.arange(length, dtype=dtype)[:, None] * speed(torch.arange(0, d_model, 2, dtype=dtype), d_model)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]

    return table


def of_wrong_table(table: Table) -> Answer:
    return lambda length, d_model, dtype: table(length, d_model).to(dtype)


# Where positions, speeds and angles are all rounded, or some of them.
ROUNDED_TABLES: tuple[Answer, ...] = (
    build(position=counted_in, speed=rounded),
    build(position=rounded, speed=rounded, angle=rounded),
    build(position=rounded_and_back, speed=rounded_and_back),
    *map(all_in_type, SPEEDS),
)
MISCONCEPTIONS = (
    Misconception(
        "pe_low_precision",
        "The positions themselves are made in the small type, or rounded to it, before the angle is formed. bfloat16 has "
        "only 8 binary digits, so beyond 256 it can't hold every whole number: 257 becomes 256, and two neighbours get "
        "the same position. (float16 can count up to 2048.) Once rounded, a position doesn't come back by computing the "
        "rest in float32.",
        SECTION,
        (
            build(position=rounded_and_back),
            build(position=rounded),
            build(position=counted_in),
        ),
        (
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/NVIDIA/Megatron-LM/issues/535",
            "https://github.com/nkalyanv99/UNI-D2/pull/6",
        ),
    ),
    Misconception(
        "pe_low_precision_speeds",
        "The speeds are rounded to the small type before they are multiplied by the position. A speed that is off by "
        "1 part in 500 seems harmless, but the position multiplies the error: at position 1000 the angle is off by whole "
        "radians.",
        SECTION,
        (build(speed=rounded_and_back), build(speed=rounded)),
        (
            "https://github.com/sgl-project/sglang-jax/issues/1472",
            "https://github.com/Modalities/modalities/pull/462",
            "https://github.com/huggingface/transformers/issues/29496",
        ),
    ),
    Misconception(
        "pe_low_precision_angles",
        "The angle is rounded to the small type before its sine is taken. At position 1000 neighbouring numbers of "
        "bfloat16 are 4 apart, more than half a turn. What may be rounded without harm is what lies between -1 and 1: the "
        "sines and cosines.",
        SECTION,
        (build(angle=rounded), build(angle=rounded_and_back)),
    ),
    Misconception(
        "pe_everything_in_low_precision",
        "Everything is computed in the small type from the start: positions, speeds and angles, each with its own "
        "rounding, and the position multiplies them. A small type saves memory in what is kept; the way there should be "
        "computed in a wide one.",
        SECTION,
        ROUNDED_TABLES,
        (
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/huggingface/transformers/pull/29285",
        ),
    ),
    Misconception(
        "pe_type_ignored",
        "The result does not have the type that was asked for: the table is returned as it was computed.",
        SECTION,
        (
            build(result=lambda table, dtype: table),
            build(result=lambda table, dtype: table.double()),
            build(result=rounded_and_back),
        ),
        ("https://github.com/huggingface/transformers/pull/24262",),
    ),
    Misconception(
        "pe_type_fixed",
        "The result has one and the same small type, whichever was asked for.",
        SECTION,
        (build(result=lambda table, dtype: table.half()), build(result=lambda table, dtype: table.bfloat16())),
    ),
    Misconception(
        "pe_rounded_on_the_way",
        "The values pass through a smaller type than the one asked for: float32 and float64 come out with the few digits "
        "of a 16-bit type. Round once, to the type that was asked for.",
        SECTION,
        (
            build(result=lambda table, dtype: table.half().to(dtype)),
            build(result=lambda table, dtype: table.bfloat16().to(dtype)),
        ),
    ),
    Misconception(
        "pe_cut_off",
        "The values are turned into whole numbers, or cut off, instead of rounded to the type: nearly all of them are 0.",
        SECTION,
        (
            build(result=lambda table, dtype: table.int().to(dtype)),
            build(result=lambda table, dtype: table.round().to(dtype)),
        ),
    ),
    *built_on_wrong_tables(
        of_wrong_table,
        "It isn't the type, the table itself is wrong; see whether sinusoidal_positions is right, or else the formula that "
        "stands here.",
    ),
)

EXERCISE = Exercise(
    name="sinusoidal_positions_in",
    chapter="positions",
    kind="function",
    minutes=10,
    parts=(
        Part("table", 1, "return the table of sinusoids in the type that was asked for", SECTION),
        Part("far positions", 2, "round nothing but the finished sines and cosines", SECTION),
    ),
    hints=(
        "Which whole numbers can bfloat16 hold? Print torch.arange(254, 264).to(torch.bfloat16).",
        "Three things are computed one after another: positions, angles, waves. Which of them stay between -1 and 1, so "
        "that rounding changes them by a small amount only?",
        "Compute the whole table in float32 or float64, as you have done already, and convert the result in the last step.",
    ),
    cases=cases,
    reference=sinusoidal_positions_in,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: the slope by which each head's scores fall with the distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property

SECTION = "positions#slopes"
Answer = Callable[[int], Any]


def cases(rng: Generator) -> Iterator[Case]:
    for part, heads in (
        ("eight heads", 8),
        ("other numbers", 1),
        ("other numbers", 2),
        ("other numbers", 4),
        ("other numbers", 16),
        ("other numbers", 32),
        ("other numbers", 64),
    ):
        label = f"{heads} head{'s' * (heads > 1)}"
        yield Case(part, label, (Call((heads,)),), holds=(falls,), tolerance=1e-5)


def _not_falling(outputs: Sequence[Any]) -> str | None:
    slopes = outputs[0].tolist()
    shown = ", ".join(f"{slope:.4g}" for slope in slopes[:4]) + ", …" * (len(slopes) > 4)
    if min(slopes) > 0 and all(after < before for before, after in pairwise(slopes)):
        return None
    return f"yours are {shown}"


falls = Property("Slopes are positive, and each is smaller than the one before.", _not_falling)


# --- wrong answers -------------------------------------------------------------------------------------------------


def slopes(exponent: Callable[[Tensor, int], Tensor], base: float = 2.0) -> Answer:
    """Build slopes out of what stands in the exponent, given the head's number from 1 on and how many there are."""

    def answer(num_heads: int) -> Tensor:
        head = torch.arange(1, num_heads + 1, dtype=torch.float64)
        return (base ** exponent(head, num_heads)).float()

    return answer


def changed(change: Callable[[Tensor], Any]) -> Answer:
    """Build slopes by changing the right ones."""
    return lambda num_heads: change(positions.alibi_slopes(num_heads))


MISCONCEPTIONS = (
    Misconception(
        "alibi_exponent",
        "The exponent begins with 0, so that the first head gets a slope of 1 and all are too steep. Head 0 has i + 1 = 1 in "
        "the formula: with eight heads the slopes are 1/2 to 1/256, not 1 to 1/128.",
        SECTION,
        (slopes(lambda head, heads: -8 * (head - 1) / heads),),
        ("https://github.com/paiml/aprender/pull/2143",),
    ),
    Misconception(
        "alibi_halved_from_head_to_head",
        "The slope is halved from head to head, however many there are. That is right for eight heads only. The last head "
        "should always end on 1/256: with more heads the steps are smaller, with fewer they are larger.",
        SECTION,
        (slopes(lambda head, heads: -head), slopes(lambda head, heads: 1 - head)),
    ),
    Misconception(
        "alibi_exponent_inverted",
        "8 and the number of heads have changed places in the exponent: the more heads there are, the larger the steps. It "
        "should be the other way round, so that all numbers of heads end on the same slope, 1/256.",
        SECTION,
        (slopes(lambda head, heads: -head * heads / 8), slopes(lambda head, heads: -8 * heads / head)),
    ),
    Misconception(
        "alibi_without_eight",
        "The 8 is missing from the exponent: the slopes run from nearly 1 to 1/2 only, and no head looks far. The flattest "
        "slope should be 2 to the power of -8.",
        SECTION,
        (slopes(lambda head, heads: -head / heads),),
    ),
    Misconception(
        "alibi_ends_on_both",
        "The exponents are spread from 0, or from -1, to -8, both ends included, so that the first slope is the same for "
        "every number of heads. In the formula the exponent grows by 8 / num_heads from head to head, and the first head "
        "has taken one such step already.",
        SECTION,
        (
            slopes(lambda head, heads: -8 * (head - 1) / max(heads - 1, 1)),
            slopes(lambda head, heads: -1 - 7 * (head - 1) / max(heads - 1, 1)),
        ),
    ),
    Misconception(
        "alibi_evenly_spaced",
        "The slopes themselves are evenly spaced, or 1 divided by the head's number. They should form a geometric sequence: "
        "from head to head the same *ratio*. Otherwise most heads have nearly the same range of sight.",
        SECTION,
        (
            lambda num_heads: 1 / torch.arange(1, num_heads + 1),
            lambda num_heads: torch.linspace(1, 1 / 256, num_heads),
            lambda num_heads: torch.linspace(2 ** (-8 / num_heads), 1 / 256, num_heads),
            lambda num_heads: torch.arange(num_heads, 0, -1) / num_heads,
        ),
    ),
    Misconception(
        "alibi_negative",
        "The slopes are negative. What is *added* to the scores falls with the distance, but the minus belongs to that "
        "bias; the slope is how fast it falls, a positive number.",
        "positions#alibi",
        (changed(lambda right: -right),),
    ),
    Misconception(
        "alibi_rising",
        "The slopes rise from head to head, above 1: the minus in the exponent is missing. A slope of 256 leaves nothing of "
        "any neighbour.",
        SECTION,
        (slopes(lambda head, heads: 8 * head / heads),),
    ),
    Misconception(
        "alibi_reversed",
        "The slopes are right, but in reverse order. The first head gets the steepest. As long as a model is trained from "
        "scratch it makes no difference; with trained weights every head gets another's range of sight.",
        SECTION,
        (changed(lambda right: right.flip(0)),),
    ),
    Misconception(
        "alibi_other_base",
        "The slopes are powers of another number than 2, of e perhaps.",
        SECTION,
        (slopes(lambda head, heads: -8 * head / heads, math.e), slopes(lambda head, heads: -8 * head / heads, 10.0)),
    ),
    Misconception(
        "alibi_integer_division",
        "// in the exponent cuts off what comes after the point. With sixteen heads every second exponent is half a "
        "number: rounded, two heads share one slope, or all have the same.",
        SECTION,
        (
            slopes(lambda head, heads: -8 * head // heads),
            slopes(lambda head, heads: -(8 * head // heads)),
            slopes(lambda head, heads: -(8 // heads) * head),
        ),
    ),
    Misconception(
        "alibi_same_for_all",
        "All heads have the same slope, and so the same range of sight. Some should look at what is near, others almost "
        "everywhere.",
        SECTION,
        (
            slopes(lambda head, heads: -8 / heads + 0 * head),
            slopes(lambda head, heads: -8 + 0 * head),
            slopes(lambda head, heads: -1 + 0 * head),
        ),
    ),
    Misconception(
        "alibi_shape",
        "The slopes are right, but not one axis of num_heads numbers. Axes for query and key, (head, 1, 1), are added where "
        "the slopes meet the distances.",
        SECTION,
        (
            changed(lambda right: right[:, None, None]),
            changed(lambda right: right[None]),
            changed(lambda right: right[:, None]),
            changed(lambda right: right[None, :, None, None]),
            changed(lambda right: right.tolist()),
        ),
    ),
    Misconception(
        "alibi_float64",
        "The slopes are right, but their type is float64 (NumPy's usual one). float32 is asked for, the type of the scores "
        "to which the bias is added.",
        SECTION,
        (changed(lambda right: right.double()),),
    ),
)

EXERCISE = Exercise(
    name="alibi_slopes",
    chapter="positions",
    kind="function",
    minutes=5,
    parts=(
        Part("eight heads", 1, "give eight heads the slopes 1/2, 1/4, …, 1/256", SECTION),
        Part("other numbers", 1, "give head i of h, counted from 0, the slope 2^(-8(i + 1) / h)", SECTION),
    ),
    hints=(
        "Which power of 2 is each of the eight slopes 1/2, 1/4, …, 1/256? With four heads the last one is 1/256 again: how "
        "large are the steps then?",
        "Take the numbers i + 1, from 1 to num_heads, as a tensor, and a power of 2 of something. torch.arange stops before its "
        "second argument.",
        "The exponent is -8 times this number, divided by the number of heads; 2.0 ** tensor works on all at once.",
    ),
    cases=cases,
    reference=positions.alibi_slopes,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: a learning rate that rises in a straight line and then falls with the root of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Generator

from mha_course import training
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property

SECTION = "transformer#warm-up"


def cases(rng: Generator) -> Iterator[Case]:
    for d_model, warmup in ((16, 4), (7, 5), (512, 4000), (64, 1)):
        yield _at("rise", 0, d_model, warmup, moves)
    yield Case("rise", "steps 1 and 3, d_model 16, warm-up 11", _calls(16, 11, 1, 3), holds=(in_a_straight_line,))
    for d_model, warmup in ((16, 4), (512, 400), (7, 3)):
        label = f"the steps around the peak, d_model {d_model}, warm-up {warmup}"
        calls = _calls(d_model, warmup, warmup - 2, warmup - 1, warmup)
        yield Case("rise", label, calls, holds=(peak(warmup),))
    calls = (Call((2, 16, 7)), Call((2, 64, 7)))
    yield Case("rise", "step 2, d_model 16 and 64, warm-up 7", calls, holds=(half_for_four_times_the_width,))
    for d_model, warmup in ((16, 4), (7, 5), (512, 400), (3, 2), (1, 13)):
        for step in sorted({1, warmup // 2, warmup - 1}):
            yield _at("rise", step, d_model, warmup)
    yield Case(
        "fall", "steps 35 and 143, d_model 16, warm-up 4", _calls(16, 4, 35, 143), holds=(half_after_four_times,)
    )
    for d_model, warmup in ((16, 4), (7, 5), (512, 400), (64, 1)):
        for step in (warmup, warmup + 2, 4 * warmup + 1, 100 * warmup):
            yield _at("fall", step, d_model, warmup)


def _at(part: str, step: int, d_model: int, warmup: int, *holds: Property) -> Case:
    return Case(
        part, f"step {step}, d_model {d_model}, warm-up {warmup}", (Call((step, d_model, warmup)),), holds=holds
    )


def _calls(d_model: int, warmup: int, *steps: int) -> tuple[Call, ...]:
    return tuple(Call((step, d_model, warmup)) for step in steps)


def _numbers(outputs: Sequence[Any]) -> list[float]:
    return [float(output) for output in outputs]


def ratio(rule: str, wanted: float, evidence: str) -> Property:
    """Demand that the second rate is a multiple of the first."""

    def broken(outputs: Sequence[Any]) -> str | None:
        one, other = _numbers(outputs[:2])
        found = other / one if one else math.inf
        return None if math.isclose(found, wanted, rel_tol=1e-4) else evidence.format(found=f"{found:.3g}")

    return Property(rule, broken)


def peak(warmup: int) -> Property:
    """Demand that the rate is highest at the last step of the warm-up."""

    def broken(outputs: Sequence[Any]) -> str | None:
        before, at, after = _numbers(outputs[:3])
        if before < at > after:
            return None
        return f"at the steps {warmup - 2}, {warmup - 1} and {warmup} it is {before:.4g}, {at:.4g} and {after:.4g}"

    return Property("The rate is highest at step warmup - 1, the last one of the warm-up.", broken)


half_after_four_times = ratio(
    "After the warm-up the rate falls with the root of the number of the update: four times the number, half the rate.",
    0.5,
    "from the 36th update to the 144th the rate changes by a factor of {found} instead of 0.5",
)
in_a_straight_line = ratio(
    "In the warm-up the rate is proportional to the number of the update.",
    2.0,
    "from the 2nd update to the 4th the rate changes by a factor of {found} instead of 2",
)
half_for_four_times_the_width = ratio(
    "A model four times as wide gets half the rate.",
    0.5,
    "from d_model 16 to 64 the rate changes by a factor of {found} instead of 0.5",
)
moves = Property(
    "Already the first update moves the parameters: its rate is above 0.",
    lambda outputs: None if _numbers(outputs)[0] > 0 else f"the rate is {_numbers(outputs)[0]:g}",
)


# --- wrong answers -------------------------------------------------------------------------------------------------

Rate = Callable[[int, int, int], float]


def noam(number: float, d_model: int, warmup: int) -> float:
    return float(d_model**-0.5 * min(number**-0.5, number * warmup**-1.5))


def counted(number: Callable[[int], float]) -> Rate:
    """Take another number for the update that follows `step` earlier ones."""
    return lambda step, d_model, warmup: noam(number(step), d_model, warmup)


def piecewise(rise: Callable[[float, int], float], fall: Callable[[float, int], float], first: int = 1) -> Rate:
    """Rise up to the update of number `warmup`, then fall; both get the update's number and the warm-up."""

    def rate(step: int, d_model: int, warmup: int) -> float:
        number = step + first
        return float(d_model**-0.5 * (rise(number, warmup) if number <= warmup else fall(number, warmup)))

    return rate


def scaled(factor: Callable[[int, int], float]) -> Rate:
    return lambda step, d_model, warmup: noam(step + 1, d_model, warmup) * factor(d_model, warmup)


def rise(number: float, warmup: int) -> float:
    return float(number * warmup**-1.5)


def fall(number: float, warmup: int) -> float:
    return float(number**-0.5)


def below_warmup(step: int, d_model: int, warmup: int) -> float:
    return float(d_model**-0.5 * (rise(step, warmup) if step < warmup else fall(step, warmup)))


def late_peak(step: int, d_model: int, warmup: int) -> float:
    return noam(step + 1, d_model, warmup + 1)


MISCONCEPTIONS = (
    Misconception(
        "warmup_zero",
        "step, which counts the updates made so far, is used as the number of the next one. So it all happens one update "
        "too late, and the first has a rate of 0: a whole batch is computed, and nothing moves. (Where the root is taken "
        "of it, 0 to a negative power is an error.) The paper counts its steps from 1.",
        SECTION,
        (
            counted(lambda step: step),
            below_warmup,
            piecewise(rise, fall, first=0),
            counted(lambda step: max(step, 1e-8)),
        ),
        (
            "https://github.com/karpathy/nanoGPT/pull/578",
            "https://github.com/EleutherAI/gpt-neox/pull/1379",
            "https://github.com/CUNY-CL/yoyodyne/pull/300",
        ),
    ),
    Misconception(
        "first_step_twice",
        "Only the step 0 is mended, by taking 1 for it. Then the first two updates have the same rate, and from there on "
        "everything happens one update too late. It is the count that is off, at every step.",
        SECTION,
        (counted(lambda step: max(step, 1)), counted(lambda step: step or 1)),
        ("https://github.com/tugstugi/pytorch-saltnet/issues/7",),
    ),
    Misconception(
        "counted_too_far",
        "The number of the update is too large by one: the first update, after 0 earlier ones, is number 1.",
        SECTION,
        (counted(lambda step: step + 2),),
    ),
    Misconception(
        "peak_one_late",
        "The rise takes one update more than asked for: with warmup + 1 the peak comes at step warmup, and is lower.",
        SECTION,
        (late_peak, piecewise(lambda number, warmup: number / (warmup + 1) * warmup**-0.5, fall)),
    ),
    Misconception(
        "larger_of_the_two",
        "The larger of the two is taken. At the beginning that is the falling curve, later the rising line: the rate "
        "starts high, and grows without end. The smaller one is the rising line first and the falling curve later.",
        SECTION,
        (
            lambda step, d_model, warmup: d_model**-0.5 * max((step + 1) ** -0.5, (step + 1) * warmup**-1.5),
            piecewise(fall, rise),
        ),
    ),
    Misconception(
        "no_warmup",
        "There is no rise: the rate starts at its highest and only falls. In the first steps, gradients are large and "
        "Adam's averages rest on a handful of values; that is what the warm-up is for. (If you do take the smaller of a "
        "line and a curve: with the sign of warmup's exponent wrong, the line is never the smaller one.)",
        SECTION,
        (piecewise(fall, fall),),
    ),
    Misconception(
        "never_falls",
        "After the warm-up the rate goes on rising.",
        SECTION,
        (piecewise(rise, rise),),
    ),
    Misconception(
        "constant_after_warmup",
        "After the warm-up the rate stays where it is. Here it falls with the root of the number of the update.",
        SECTION,
        (piecewise(rise, lambda number, warmup: warmup**-0.5),),
    ),
    Misconception(
        "rise_and_fall_do_not_meet",
        "The line and the curve don't meet where the warm-up ends: the exponent of warmup is another one. At the update of "
        "number warmup both must be equal, that is warmup times something must be warmup to the power of -0.5.",
        SECTION,
        (
            piecewise(lambda number, warmup: number / warmup, fall),
            lambda step, d_model, warmup: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) / warmup),
            lambda step, d_model, warmup: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-0.5),
            lambda step, d_model, warmup: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-2),
            piecewise(lambda number, warmup: number * warmup**-0.5, fall),
        ),
    ),
    Misconception(
        "fall_starts_anew",
        "The fall counts its steps from the end of the warm-up. Just after the peak the rate then drops to a fraction of "
        "it within a few updates (or jumps up). The curve goes on from where the warm-up has led: the same number counts for both.",
        SECTION,
        (
            piecewise(rise, lambda number, warmup: (number - warmup) ** -0.5),
            piecewise(rise, lambda number, warmup: (number - warmup + 1) ** -0.5),
            piecewise(rise, lambda number, warmup: (warmup * (number - warmup)) ** -0.5),
            piecewise(rise, lambda number, warmup: (warmup * (number - warmup + 1)) ** -0.5),
        ),
    ),
    Misconception(
        "falls_without_the_root",
        "The rate falls with the number of the update itself, not with its root: four times the number, a quarter of the "
        "rate. It is soon too small to learn anything.",
        SECTION,
        (
            piecewise(rise, lambda number, warmup: warmup**0.5 / number),
            piecewise(rise, lambda number, warmup: 1 / number),
            lambda step, d_model, warmup: d_model**-0.5 * min(1 / (step + 1), (step + 1) * warmup**-1.5),
        ),
    ),
    Misconception(
        "width_left_out",
        "d_model has no effect. A wider model needs a lower rate.",
        SECTION,
        (scaled(lambda d_model, warmup: d_model**0.5),),
    ),
    Misconception(
        "width_multiplied",
        "The rate is multiplied by the root of d_model, where it should be divided by it: a wider model gets a higher rate.",
        SECTION,
        (scaled(lambda d_model, warmup: d_model),),
    ),
    Misconception(
        "width_without_the_root",
        "The rate is divided by d_model, not by its root.",
        SECTION,
        (scaled(lambda d_model, warmup: d_model**-0.5),),
    ),
    Misconception(
        "width_on_one_side_only",
        "d_model acts on the falling curve alone, or on the rising line alone. It belongs in front of both: mind the "
        "brackets.",
        SECTION,
        (
            lambda step, d_model, warmup: min(d_model**-0.5 * (step + 1) ** -0.5, (step + 1) * warmup**-1.5),
            lambda step, d_model, warmup: min((step + 1) ** -0.5, d_model**-0.5 * (step + 1) * warmup**-1.5),
        ),
    ),
    Misconception(
        "scaled_to_the_peak",
        "The curve has the right form and another height: it's multiplied by the root of warmup, so that its peak is 1, or a "
        "rate of one's own. Some libraries do that, and call it by the same name. In the paper the peak follows from d_model "
        "and warmup.",
        SECTION,
        (
            scaled(lambda d_model, warmup: warmup**0.5),
            scaled(lambda d_model, warmup: (warmup * d_model) ** 0.5),
        ),
        (
            "https://github.com/Kyubyong/transformer/issues/89",
            "https://github.com/espnet/espnet/pull/1519",
        ),
    ),
    Misconception(
        "whole_numbers_only",
        "A division by // leaves whole numbers: during the whole warm-up step // warmup is 0.",
        SECTION,
        (piecewise(lambda number, warmup: (number // warmup) * warmup**-0.5, fall),),
    ),
)

EXERCISE = Exercise(
    name="warmup_lr",
    chapter="transformer",
    kind="function",
    minutes=10,
    parts=(
        Part(
            "rise",
            2,
            "rise in a straight line over the first `warmup` updates, the very first of which moves already",
            SECTION,
        ),
        Part("fall", 1, "fall with the root of the number of the update after that", SECTION),
    ),
    hints=(
        "With a warm-up of 4: which number does the very first update have, if step says how many there were before it? "
        "And what should its rate be, as a part of the peak?",
        "There is a line and a curve, and at each update the smaller one counts. Where do they cross? Equation 3 of the "
        "paper counts from 1.",
        "With number = step + 1 the curve is number to the power of -0.5, the line number times warmup to the power of -1.5, "
        "and in front of both stands d_model to the power of -0.5.",
    ),
    cases=cases,
    reference=training.warmup_lr,
    misconceptions=MISCONCEPTIONS,
)

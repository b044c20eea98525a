"""Exercise: turn each pair of features by an angle that grows with the position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.positions.sinusoidal_positions_in import SPEEDS as SPEEDS_COMPUTED
from mha_course.exercises.properties import close, randn, unchanged

SECTION, AXIS = "positions#rotary-positions", "positions#which-axis-is-the-position"
PRECISION, SPEEDS = "positions#low-precision", "positions#sinusoids"
Answer = Callable[[Tensor], Tensor]
TYPE_KEPT = (
    "One thing could be better: what comes in half precision goes out as float32, because the sines and cosines are float32. "
    "Convert them to the type of x before they are multiplied."
)


def in_float32(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Take the result as float32, whatever type it has."""

    def called(x: Tensor) -> Tensor:
        return function(x).float()

    return called


def cases(rng: Generator) -> Iterator[Case]:
    one_zero = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2).clone()
    yield Case(
        "turning",
        "batch 1, 1 head, length 3, d_head 2, every row 1, 0",
        (Call((one_zero,)),),
        holds=(tells_places_apart, first_stays(one_zero), lengths_stay(one_zero), by_distance),
    )
    for batch, heads, length, d_head in (
        (1, 1, 2, 4),
        (2, 1, 3, 2),
        (1, 2, 5, 4),
        (2, 3, 5, 8),
        (2, 5, 3, 6),
        (3, 2, 7, 10),
        (2, 2, 1, 4),
        (1, 3, 3, 4),
        (3, 3, 3, 12),
        (2, 2, 31, 16),
        (1, 1, 401, 4),
    ):
        x = randn(rng, batch, heads, length, d_head)
        yield Case("turning", describe(x), (Call((x,)),), holds=(first_stays(x), lengths_stay(x)))
    row = randn(rng, 2, 3, 1, 6).expand(2, 3, 5, 6).clone()
    yield Case(
        "turning",
        describe(row) + ", all rows of a head alike",
        (Call((row,)),),
        holds=(tells_places_apart, first_stays(row), lengths_stay(row), by_distance),
    )
    x = randn(rng, 2, 3, 5, 4)
    yield Case("turning", describe(x) + ", stored in memory as (batch, length, head, d_head)", (Call((as_split(x),)),))
    other = torch.cat([x[:1], randn(rng, 1, 3, 5, 4)])
    alone = unchanged(
        "The examples of a batch do not affect one another.",
        "when only the second example was changed, the first one's result moved by {change}",
        where=0,
    )
    yield Case("turning", describe(x) + ", the second example changed", (Call((x,)), Call((other,))), holds=(alone,))
    calls = tuple(Call((randn(rng, *shape),)) for shape in ((1, 2, 3, 4), (2, 2, 7, 4), (1, 3, 2, 8)))
    yield Case("turning", "three calls, with other lengths and widths", calls)
    for shape in ((1, 1, 2, 2), (2, 3, 5, 4)):
        x = randn(rng, *shape)
        yield Case("gradients", describe(x) + ", with gradients", (Call((x,), backward=True),))
    x = randn(rng, 2, 3, 5, 4, dtype=torch.float64)
    yield Case("types", describe(x) + ", float64", (Call((x,)),), tolerance=1e-5)
    for dtype, length, slack in ((torch.bfloat16, 7, 2e-2), (torch.bfloat16, 521, 2e-2), (torch.float16, 2111, 3e-3)):
        x = randn(rng, 1, 1, length, 8, dtype=dtype)
        label = f"{describe(x)}, {str(dtype).removeprefix('torch.')}"
        yield Case("types", label, (Call((x,)),), through=given(in_float32), tolerance=slack)
    x = randn(rng, 1, 2, 3, 4, dtype=torch.float16)
    yield Case("types", describe(x) + ", float16", (Call((x,)),), tolerance=4e-3, advice=TYPE_KEPT)


def describe(x: Tensor) -> str:
    batch, heads, length, d_head = x.shape
    return f"batch {batch}, {heads} head{'s' * (heads > 1)}, length {length}, d_head {d_head}"


def as_split(x: Tensor) -> Tensor:
    """Return the same tensor, stored as splitting the heads leaves it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _places_alike(outputs: Sequence[Any]) -> str | None:
    moved = (outputs[0][:, :, 1] - outputs[0][:, :, 0]).abs().amax(dim=-1)
    if moved.min() > 1e-3:
        return None
    example, head = (moved <= 1e-3).nonzero()[0].tolist()
    return f"all rows were alike, and in example {example}, head {head}, the first two still are"


tells_places_apart = Property("Different positions are turned by different angles.", _places_alike)


def first_stays(x: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        moved = (outputs[0][:, :, 0] - x[:, :, 0]).abs().max()
        return None if moved < 1e-4 else f"the row at position 0 was changed by {moved:.3g}"

    return Property("Position 0 is turned by 0: the first token of every head stays as it is.", broken)


def lengths_stay(x: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        before, after = x.norm(dim=-1), outputs[0].norm(dim=-1)
        if close(after, before, 1e-3):
            return None
        example, head, position = ((after - before).abs() == (after - before).abs().max()).nonzero()[0].tolist()
        return (
            f"in example {example}, head {head}, the row at position {position} was {before[example, head, position]:.3g} "
            f"long and is now {after[example, head, position]:.3g}"
        )

    return Property("A rotation changes no lengths.", broken)


def _by_more_than_distance(outputs: Sequence[Any]) -> str | None:
    products = outputs[0][0, 0] @ outputs[0][0, 0].T
    off = (products[1:, 1:] - products[:-1, :-1]).abs() > 1e-3 * products.abs().max()
    if not off.any():
        return None
    one, other = off.nonzero()[0].tolist()
    return (
        f"all rows were alike, but positions {one} and {other} now have the product {products[one, other]:.4g}, and "
        f"positions {one + 1} and {other + 1}, just as far apart, {products[one + 1, other + 1]:.4g}"
    )


by_distance = Property("The product of two turned rows depends on their distance alone.", _by_more_than_distance)


# --- wrong answers -------------------------------------------------------------------------------------------------


def right_speed(half: int) -> Tensor:
    return 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)


def right_position(x: Tensor) -> Tensor:
    return torch.arange(x.size(2), dtype=torch.float64)[:, None]


def right_turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return a * cos - b * sin, b * cos + a * sin


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., : x.size(-1) // 2], x[..., x.size(-1) // 2 :]


def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def behind(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-1)


def in_turn(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a, b], dim=-1).flatten(-2)


def rope(
    speed: Callable[[int], Tensor] = right_speed,
    position: Callable[[Tensor], Tensor] = right_position,
    turn: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = right_turn,
    split: Callable[[Tensor], tuple[Tensor, Tensor]] = halves,
    join: Callable[[Tensor, Tensor], Tensor] = behind,
) -> Answer:
    """Build rotary positions out of their steps; each is right unless another is given."""

    def answer(x: Tensor) -> Tensor:
        angle = position(x) * speed(x.size(-1) // 2)
        return join(*turn(*split(x), angle.cos().to(x), angle.sin().to(x)))

    return answer


def exponent(power: Callable[[Tensor, int], Tensor], base: float = 10000.0) -> Answer:
    """Build rotary positions with another exponent, given the pairs' numbers and how many there are."""
    return rope(speed=lambda half: base ** power(torch.arange(half, dtype=torch.float64), half))


def two_speeds(
    split: Callable[[Tensor], tuple[Tensor, Tensor]],
    join: Callable[[Tensor, Tensor], Tensor],
    spread: Callable[[Tensor, Tensor], Tensor],
) -> Answer:
    """Turn pairs, the speeds of which have been laid out for pairs of the other kind."""

    def answer(x: Tensor) -> Tensor:
        angle = right_position(x) * right_speed(x.size(-1) // 2)
        cos, sin = spread(angle.cos(), angle.cos()).to(x), spread(angle.sin(), angle.sin()).to(x)
        a, b = split(x)
        return x * cos + join(-b, a) * sin

    return answer


def part_of_the_features(x: Tensor) -> Tensor:
    return torch.cat([rope()(x[..., : x.size(-1) // 4 * 2]), x[..., x.size(-1) // 4 * 2 :]], dim=-1)


def with_sinusoids(x: Tensor) -> Tensor:
    return x + positions.sinusoidal_positions(x.size(2), x.size(3)).to(x)


def times_sinusoids(x: Tensor) -> Tensor:
    return x * positions.sinusoidal_positions(x.size(2), x.size(3)).to(x)


def overwritten(x: Tensor) -> Tensor:
    def turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        a = a * cos - b * sin
        return a, b * cos + a * sin

    return rope(turn=turn)(x)


def overwritten_in_place(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    angle = right_position(x) * right_speed(half)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    x.data[..., :half] = x[..., :half] * cos - x[..., half:] * sin
    x.data[..., half:] = x[..., half:] * cos + x[..., :half] * sin
    return x


def turned_in_place(x: Tensor) -> Tensor:
    x.data.copy_(rope()(x.data))
    return x.clone()


def stored_in_place(x: Tensor) -> Tensor:
    x[:] = rope()(x)
    return x


def low(*steps: str) -> Answer:
    """Round positions, speeds or angles to the type of x."""

    def answer(x: Tensor) -> Tensor:
        position, speed = right_position(x).float(), right_speed(x.size(-1) // 2).float()
        position = position.to(x) if "position" in steps else position
        speed = speed.to(x) if "speed" in steps else speed
        angle = position * speed
        angle = angle.to(x) if "angle" in steps else angle
        return behind(*right_turn(*halves(x), angle.cos().to(x), angle.sin().to(x)))

    return answer


def all_low(speed: Callable[[Tensor, int], Tensor]) -> Answer:
    """Compute every step in the type of x."""

    def answer(x: Tensor) -> Tensor:
        even = torch.arange(0, x.size(-1), 2, dtype=x.dtype)
        angle = torch.arange(x.size(2), dtype=x.dtype)[:, None] * speed(even, x.size(-1))
        return behind(*right_turn(*halves(x), angle.cos(), angle.sin()))

    return answer


MISCONCEPTIONS = (
    Misconception(
        "rope_wrong_axis",
        "The positions are counted along another axis: by the head, or by the example. All tokens of a head then turn by the "
        "same angle, which changes no score at all. x comes split already, (batch, head, length, d_head); code that turns "
        "before the heads are moved to axis 1 has the length there.",
        AXIS,
        (
            rope(position=lambda x: torch.arange(x.size(1), dtype=torch.float64)[:, None, None]),
            rope(position=lambda x: torch.arange(x.size(0), dtype=torch.float64)[:, None, None, None]),
            rope(position=lambda x: torch.arange(x.size(1), dtype=torch.float64)[:, None]),
        ),
        (
            "https://github.com/mlfoundations/open_lm/issues/4",
            "https://github.com/facebookresearch/xformers/issues/841",
            "https://github.com/tensorgi/TPA/issues/4",
            "https://github.com/Om-Alve/smolGPT/issues/22",
            "https://github.com/zhenye234/X-Codec-2.0/issues/36",
        ),
    ),
    Misconception(
        "rope_counted_on",
        "The count goes on from one head to the next, or from one example to the next. Every head of every example holds the "
        "same places, which start at 0.",
        AXIS,
        (
            rope(
                position=lambda x: torch.arange(x.size(1) * x.size(2), dtype=torch.float64).view(
                    x.size(1), x.size(2), 1
                )
            ),
            rope(
                position=lambda x: torch.arange(x.size(0) * x.size(2), dtype=torch.float64).view(
                    x.size(0), 1, x.size(2), 1
                )
            ),
            rope(
                position=lambda x: torch.arange(x[..., 0].numel(), dtype=torch.float64).view(*x.shape[:3], 1),
            ),
        ),
    ),
    Misconception(
        "rope_neighbours",
        "Neighbours are turned together: features 0 and 1, 2 and 3. That is the pairing of the paper, and just as good for "
        "training. Here, as in Llama, feature i and feature i + d_head / 2 are a pair; a wrong pairing makes trained weights "
        "useless without an error.",
        SECTION,
        (rope(split=neighbours, join=in_turn),),
        (
            "https://github.com/EleutherAI/gpt-neox/issues/834",
            "https://github.com/NVIDIA-NeMo/Speech/issues/6923",
            "https://github.com/vllm-project/vllm-ascend/issues/12765",
            "https://github.com/karpathy/nanochat/issues/264",
        ),
    ),
    Misconception(
        "rope_mixed_pairing",
        "Two ways of pairing are mixed. In one step neighbours are a pair, in another step features half a width apart: "
        "when the speeds are repeated ([w0, w0, w1, w1] against [w0, w1, w0, w1]), when the pairs are taken apart, or when "
        "they are put together again. The two features of a pair must turn by the same angle, and go back to where they "
        "came from.",
        SECTION,
        (
            two_speeds(halves, behind, in_turn),
            two_speeds(neighbours, in_turn, behind),
            rope(split=neighbours, join=behind),
            rope(split=halves, join=in_turn),
        ),
        ("https://github.com/raiyanyahya/how-to-train-your-gpt/issues/6",),
    ),
    Misconception(
        "rope_sign",
        "A sign is wrong in one of the two lines. A rotation has one minus and one plus; with two of the same kind it "
        "stretches some vectors and shortens others, and the scores depend on more than the distance.",
        SECTION,
        (
            rope(turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos + a * sin)),
            rope(turn=lambda a, b, cos, sin: (a * cos - b * sin, b * cos - a * sin)),
        ),
    ),
    Misconception(
        "rope_backwards",
        "The pairs are turned the other way round: the minus stands in the wrong one of the two lines. The scores of a "
        "model that is trained so are none the worse, but it doesn't fit weights that were trained with the usual direction.",
        SECTION,
        (rope(turn=lambda a, b, cos, sin: (a * cos + b * sin, b * cos - a * sin)),),
        ("https://github.com/karpathy/nanochat/pull/489",),
    ),
    Misconception(
        "rope_sin_cos_exchanged",
        "Sine and cosine have changed places. At position 0 the angle is 0: its cosine, 1, must multiply what stays.",
        SECTION,
        (
            rope(turn=lambda a, b, cos, sin: (a * sin - b * cos, b * sin + a * cos)),
            rope(turn=lambda a, b, cos, sin: (a * sin + b * cos, b * sin - a * cos)),
        ),
    ),
    Misconception(
        "rope_overwritten",
        "The second line uses the result of the first. Both features of a pair are turned from where they were before; as "
        "soon as the first has been overwritten, its old value is gone.",
        SECTION,
        (overwritten, overwritten_in_place),
    ),
    Misconception(
        "input_changed_in_place",
        "The result is right, but it was written into x, the caller's own tensor. Whoever uses it afterwards gets it turned, "
        "and in training PyTorch refuses to change a tensor in place where it needs its gradient.",
        SECTION,
        (turned_in_place, stored_in_place),
        ("https://github.com/NVIDIA-NeMo/Speech/pull/7440",),
    ),
    Misconception(
        "rope_half_turned",
        "Only one feature of each pair is changed. A rotation moves both: what one loses the other gains, so that the length "
        "stays.",
        SECTION,
        (
            rope(turn=lambda a, b, cos, sin: (a * cos - b * sin, b)),
            rope(turn=lambda a, b, cos, sin: (a, b * cos + a * sin)),
        ),
    ),
    Misconception(
        "rope_partial",
        "Only a part of the features is turned, or the pairs are cut out of a half instead of the whole. Some models leave "
        "features unturned on purpose; here every feature has a partner, half of d_head away.",
        SECTION,
        (
            part_of_the_features,
            lambda x: torch.cat([rope(split=neighbours, join=in_turn)(half) for half in x.chunk(2, dim=-1)], dim=-1),
        ),
        ("https://github.com/lucidrains/RETRO-pytorch/issues/12",),
    ),
    Misconception(
        "rope_without_partner",
        "Each feature is multiplied by a cosine (or sine) and its partner is left out. That shortens the vector; a rotation "
        "mixes the two features of a pair.",
        SECTION,
        (
            rope(turn=lambda a, b, cos, sin: (a * cos, b * cos)),
            rope(turn=lambda a, b, cos, sin: (a * cos, b * sin)),
            rope(turn=lambda a, b, cos, sin: (a * cos - a * sin, b * cos + b * sin)),
            rope(turn=lambda a, b, cos, sin: (a * cos + a * sin, b * cos - b * sin)),
            rope(turn=lambda a, b, cos, sin: (a * cos + a * sin, b * cos + b * sin)),
            times_sinusoids,
        ),
        ("https://github.com/vllm-project/vllm-ascend/issues/12723",),
    ),
    Misconception(
        "rope_halves_exchanged",
        "The two halves come back in the wrong order: what was turned first belongs in front.",
        SECTION,
        (rope(join=lambda a, b: torch.cat([b, a], dim=-1)),),
    ),
    Misconception(
        "positions_added",
        "Sinusoids are added, as for tokens at the bottom of a model. Rotary positions add nothing: they turn what is there.",
        SECTION,
        (with_sinusoids,),
    ),
    Misconception(
        "rope_exponent_halved",
        "The speeds fall half as fast as they should: the number of the pair is divided by d_head, but there are only "
        "d_head / 2 pairs. With 2i, the exponent is 2i / d_head; with i, it is i / (d_head / 2).",
        SPEEDS,
        (exponent(lambda pair, half: -pair / (2 * half)),),
        ("https://github.com/rasbt/LLMs-from-scratch/issues/410",),
    ),
    Misconception(
        "rope_exponent_doubled",
        "The speeds fall twice as fast as they should: a range that steps by two already is 2i, and it is divided by half "
        "the width, or doubled once more. The exponent is 2i / d_head.",
        SPEEDS,
        (exponent(lambda pair, half: -2 * pair / half),),
    ),
    Misconception(
        "rope_last_speed",
        "The speeds run to exactly 1 / 10000, as if the last pair had to reach it. The exponent is 2i / d_head, and the last "
        "pair stays just short of it.",
        SPEEDS,
        (exponent(lambda pair, half: -pair / max(half - 1, 1)),),
    ),
    Misconception(
        "rope_exponent_from_one",
        "The pairs are counted from 1 in the exponent, so that even the first turns more slowly than by 1 radian a step. "
        "They count from 0: pair 0 has the speed 1.",
        SPEEDS,
        (
            exponent(lambda pair, half: -(pair + 1) / half),
            exponent(lambda pair, half: -(2 * pair + 1) / (2 * half)),
        ),
        ("https://github.com/stanford-cs336/assignment1-basics/issues/22",),
    ),
    Misconception(
        "rope_one_speed",
        "All pairs turn at the same speed: the exponent is missing or is rounded down to 0 (by // perhaps). One fast hand "
        "comes back to nearly the same place every 44 steps; it takes slow ones to tell far places apart.",
        SPEEDS,
        (exponent(lambda pair, half: 0 * pair), exponent(lambda pair, half: 0 * pair - 1)),
        ("https://github.com/ReaLLMASIC/ReaLLM-Forge/pull/35",),
    ),
    Misconception(
        "rope_missing_minus",
        "The speeds rise from pair to pair instead of falling: the minus in the exponent is missing, or the position is "
        "divided by the speed. A hand that turns by thousands of radians a step points anywhere.",
        SPEEDS,
        (exponent(lambda pair, half: pair / half),),
        (
            "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/313",
            "https://github.com/xlite-dev/LeetCUDA/issues/289",
        ),
    ),
    Misconception(
        "rope_other_base",
        "The speeds fall by another factor: the base of the power is not 10000. (Some models have another base on purpose; "
        "then it is a number of theirs, not of the method.)",
        SPEEDS,
        tuple(exponent(lambda pair, half: -pair / half, base) for base in (1000.0, 500_000.0, math.e)),
    ),
    Misconception(
        "rope_slow_first",
        "The speeds are in the wrong order. Pair 0, which is feature 0 and its partner, is the fastest.",
        SPEEDS,
        (rope(speed=lambda half: right_speed(half).flip(0)),),
    ),
    Misconception(
        "rope_from_one",
        "Positions are counted from 1. Scores don't notice, as only distances count there; but the first token should stay "
        "as it is, and whoever continues a text counts from 0.",
        SECTION,
        (rope(position=lambda x: right_position(x) + 1),),
    ),
    Misconception(
        "rope_counted_back",
        "Positions are counted from the end of the text. Then the first token is turned the furthest, and every token's "
        "angle changes when the text grows.",
        SECTION,
        (rope(position=lambda x: right_position(x).flip(0)),),
    ),
    Misconception(
        "rope_position_divided",
        "The position is divided by the length. Then the angle between neighbours depends on how long the text is.",
        SECTION,
        (
            rope(position=lambda x: right_position(x) / x.size(2)),
            rope(position=lambda x: right_position(x) / max(x.size(2) - 1, 1)),
        ),
    ),
    Misconception(
        "rope_circles_for_radians",
        "The angle is multiplied by 2π, or taken for degrees. In the formula it is in radians as it stands: pair 0 turns by "
        "1 radian a step.",
        SECTION,
        (
            rope(position=lambda x: 2 * math.pi * right_position(x)),
            rope(position=lambda x: math.pi / 180 * right_position(x)),
        ),
    ),
    Misconception(
        "rope_not_turned",
        "Nothing has been turned: x comes back as it was. Where the angle is the same for all, or the result is computed and "
        "not returned, every token looks as if it stood at position 0.",
        "positions#a-layer-that-forgets-its-positions",
        (lambda x: x, rope(position=lambda x: torch.zeros(1, 1)), lambda x: x.clone()),
    ),
    Misconception(
        "rope_axes_moved",
        "The rows are turned rightly, but the result has its axes in another order than x: (batch, length, head, d_head). It "
        "should keep the shape of x, so that scores can be formed of it.",
        "multi_head#shape-ledger",
        (lambda x: rope()(x).transpose(1, 2), lambda x: rope()(x).transpose(1, 2).flatten(2)),
    ),
    Misconception(
        "rope_low_precision",
        "Positions, speeds or angles are rounded to the type of x. In bfloat16 there is no 257, so that neighbours far into "
        "the text are turned alike; and a speed that is off by a little is off by radians when it is multiplied by 1000. "
        "Compute angles in a wide type, and round their sines and cosines.",
        PRECISION,
        (
            low("position"),
            low("speed"),
            low("angle"),
            low("position", "speed"),
            low("position", "angle"),
            low("speed", "angle"),
            low("position", "speed", "angle"),
            *map(all_low, SPEEDS_COMPUTED),
        ),
        (
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/huggingface/transformers/pull/29285",
            "https://github.com/sgl-project/sglang-jax/issues/1472",
            "https://github.com/Modalities/modalities/pull/462",
        ),
    ),
    Misconception(
        "type_changed",
        "The result has another type than x. A product takes the wider type of the two: angles in float64 make the result "
        "float64, and .float() makes float32 of everything. Convert the sines and cosines to the type of x.",
        PRECISION,
        (
            lambda x: rope()(x.double()),
            lambda x: rope()(x.float()),
            lambda x: rope()(x).half(),
        ),
        ("https://github.com/huggingface/transformers/pull/24262",),
    ),
    Misconception(
        "gradient_cut",
        "The result is right, but x gets no gradient: it has been cut off (.detach(), .data, torch.no_grad(), NumPy). The "
        "angles need none, but queries and keys are learned.",
        SECTION,
        (lambda x: rope()(x.detach()),),
        ("https://github.com/d2l-ai/d2l-en/pull/2121",),
    ),
)

EXERCISE = Exercise(
    name="apply_rope",
    chapter="positions",
    kind="function",
    minutes=25,
    parts=(
        Part(
            "turning",
            4,
            "turn features i and i + d_head / 2 at position p by the angle p / 10000^(2i / d_head)",
            SECTION,
        ),
        Part("gradients", 1, "let the right gradient reach x", SECTION),
        Part("types", 1, "keep far positions apart in half precision, and the type float64", PRECISION),
    ),
    hints=(
        "Two features, 1 and 0, at position 1: which two numbers do they become? And which axis of x holds the positions?",
        "Cut the last axis into two halves; partners then stand at the same place in both. The angles are a table with a row "
        "for each position and a column for each pair, and it broadcasts over batch and heads. Turning a pair by an angle "
        "takes four products.",
        "With a and b for the halves: the new first half is a cos - b sin, the new second half b cos + a sin, both from the "
        "old a and b; then put them together again along the last axis. The exponent of pair i is -i / (d_head / 2). Compute "
        "angles in float32 or wider, whatever x is.",
    ),
    cases=cases,
    reference=positions.apply_rope,
    misconceptions=MISCONCEPTIONS,
)

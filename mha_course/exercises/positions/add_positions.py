"""Exercise: add its position's pattern to each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import positions
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.positions.sinusoidal_positions import Table, built_on_wrong_tables
from mha_course.exercises.positions.sinusoidal_positions_in import ROUNDED_TABLES
from mha_course.exercises.properties import randn, sequence_first, unchanged
from mha_course.positions import sinusoidal_positions

SECTION, PRECISION = "positions#sinusoids", "positions#low-precision"
Answer = Callable[[Tensor], Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    zeros = torch.zeros(1, 2, 4)
    yield Case("sum", "batch 1, length 2, d_model 4, all zeros", (Call((zeros,)),), holds=(tells_places_apart,))
    for batch, length, d_model in (
        (1, 3, 4),
        (2, 3, 6),
        (3, 5, 2),
        (5, 1, 4),
        (3, 2, 10),
        (2, 7, 5),
        (3, 3, 8),
        (1, 37, 6),
    ):
        x = randn(rng, batch, length, d_model)
        yield Case("sum", describe(x), (Call((x,)),))
    x = randn(rng, 2, 5, 6)
    yield Case("sum", describe(x) + ", stored sequence first", (Call((sequence_first(x),)),))
    other = torch.cat([x[:1], randn(rng, 1, 5, 6)])
    alone = unchanged(
        "The examples of a batch do not affect one another.",
        "when only the second example was changed, the first one's result moved by {change}",
        where=0,
    )
    yield Case("sum", describe(x) + ", the second example changed", (Call((x,)), Call((other,))), holds=(alone,))
    calls = tuple(Call((randn(rng, *shape),)) for shape in ((2, 3, 4), (3, 7, 4), (1, 2, 6)))
    yield Case("sum", "three calls, with other lengths and widths", calls)
    for batch, length, d_model in ((1, 2, 4), (2, 5, 3)):
        x = randn(rng, batch, length, d_model)
        yield Case("gradients", describe(x) + ", with gradients", (Call((x,), backward=True),))
    for dtype, slack in ((torch.float64, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        x = randn(rng, 2, 3, 4, dtype=dtype)
        yield Case("types", f"{describe(x)}, {str(dtype).removeprefix('torch.')}", (Call((x,)),), tolerance=slack)
    x = randn(rng, 1, 521, 4, dtype=torch.bfloat16)
    yield Case("types", describe(x) + ", bfloat16", (Call((x,)),), tolerance=2e-2)


def describe(x: Tensor) -> str:
    batch, length, d_model = x.shape
    return f"batch {batch}, length {length}, d_model {d_model}"


def _places_alike(outputs: Sequence[Any]) -> str | None:
    one, other = outputs[0][0, :2]
    return None if (one - other).abs().max() > 1e-3 else "the tokens at the places 0 and 1 still have the same vector"


tells_places_apart = Property("Equal tokens at different places get different vectors.", _places_alike)


# --- wrong answers -------------------------------------------------------------------------------------------------


def pattern(x: Tensor) -> Tensor:
    return sinusoidal_positions(x.size(1), x.size(2)).to(x)


def by_table(table: Table) -> Answer:
    return lambda x: x + table(x.size(1), x.size(2)).to(x)


def in_place(x: Tensor) -> Tensor:
    x += pattern(x)
    return x


def written_into(x: Tensor) -> Tensor:
    x.data.add_(pattern(x))
    return x.clone()


def position_of_the_example(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(0), x.size(2)).to(x)[:, None]


def rows_for_the_batch(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(0), x.size(2)).to(x)


def sequence_first_expected(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(5000, x.size(2))[:, None][: x.size(0)].to(x)


def counted_on(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(0) * x.size(1), x.size(2)).to(x).view_as(x)


def along_the_features(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(2), x.size(1)).to(x).T


def sizes_exchanged(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(2), x.size(1)).to(x)


def not_assigned(x: Tensor) -> Tensor:
    x + pattern(x)
    return x


def pattern_alone(x: Tensor) -> Tensor:
    return pattern(x).expand_as(x)


def pattern_without_batch(x: Tensor) -> Tensor:
    return pattern(x)


def first_example_only(x: Tensor) -> Tensor:
    return torch.cat([x[:1] + pattern(x), x[1:]])


def without_batch(x: Tensor) -> Tensor:
    return x[0] + pattern(x)


def last_position_for_all(x: Tensor) -> Tensor:
    return x + pattern(x)[-1]


def scaled(x: Tensor) -> Tensor:
    return x * x.size(-1) ** 0.5 + pattern(x)


def concatenated(x: Tensor) -> Tensor:
    return torch.cat([x, pattern(x).expand_as(x)], dim=-1)


def multiplied(x: Tensor) -> Tensor:
    return x * pattern(x)


def halved(x: Tensor) -> Tensor:
    return (x + pattern(x)) / 2


def twice(x: Tensor) -> Tensor:
    return x + x + pattern(x)


def twice_added(x: Tensor) -> Tensor:
    return x + 2 * pattern(x)


def in_float32(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(1), x.size(2))


def all_in_float32(x: Tensor) -> Tensor:
    return x.float() + sinusoidal_positions(x.size(1), x.size(2))


def table_in_float64(x: Tensor) -> Tensor:
    return x + sinusoidal_positions(x.size(1), x.size(2), torch.float64)


def positions_of_the_type(x: Tensor) -> Tensor:
    position = torch.arange(x.size(1)).to(x)[:, None].double()
    angle = position / 10000 ** (torch.arange(0, x.size(2), 2, dtype=torch.float64) / x.size(2))
    return x + torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, : x.size(2)].to(x)


def by_table_in_the_type(table: Callable[[int, int, torch.dtype], Tensor]) -> Answer:
    return lambda x: x + table(x.size(1), x.size(2), x.dtype)


def detached(x: Tensor) -> Tensor:
    return x.detach() + pattern(x)


MISCONCEPTIONS = (
    Misconception(
        "input_changed_in_place",
        "+= (or add_) changes the caller's own tensor. Whoever uses it afterwards, a residual path or a second call, gets "
        "tokens that have positions in them already; and PyTorch refuses to change a tensor in place where it needs its "
        "gradient.",
        SECTION,
        (in_place, written_into),
        (
            "https://github.com/NVIDIA-NeMo/Speech/pull/7440",
            "https://github.com/NVlabs/VILA/pull/199",
            "https://github.com/thuanz123/enhancing-transformers/issues/11",
        ),
    ),
    Misconception(
        "positions_along_the_batch",
        "The positions run along the first axis, which is the batch: all tokens of an example get the same pattern, and "
        "another example another one. (With as many rows as examples it fails instead, or fits by accident.) Code for "
        "tensors that are stored sequence first, (length, batch, d_model), does so rightly; here the length is axis 1.",
        SECTION,
        (position_of_the_example, rows_for_the_batch, sequence_first_expected),
        (
            "https://github.com/KasperGroesLudvigsen/influenza_transformer/issues/9",
            "https://github.com/AkiRusProd/numpy-transformer/issues/1",
            "https://github.com/songyangco/GETNext/issues/2",
            "https://github.com/tanjimin/C.Origami/issues/42",
            "https://github.com/pytorch/tutorials/issues/1547",
        ),
    ),
    Misconception(
        "positions_counted_on",
        "The count goes on from one example to the next. Each example is a text of its own and starts at position 0.",
        SECTION,
        (counted_on,),
    ),
    Misconception(
        "positions_along_the_features",
        "The positions run along the features, and the waves along the text: length and d_model have changed places.",
        SECTION,
        (along_the_features, sizes_exchanged),
    ),
    Misconception(
        "pe_not_assigned",
        "The sum is computed and thrown away: x + something is a new tensor, which has to be given a name or returned; x "
        "itself stays as it was. So the tokens come back without positions.",
        "positions#a-layer-that-forgets-its-positions",
        (not_assigned,),
        (
            "https://github.com/Lightning-AI/pytorch-lightning/issues/19138",
            "https://github.com/msalhab96/Conformer/issues/2",
        ),
    ),
    Misconception(
        "positions_alone",
        "The patterns are returned without the tokens. Who comes after this function needs both: what stands there, and "
        "where.",
        "positions#added-not-concatenated",
        (pattern_alone, pattern_without_batch),
        ("https://github.com/jiwidi/Behavior-Sequence-Transformer-Pytorch/issues/4",),
    ),
    Misconception(
        "first_example_only",
        "Only the first example gets its positions, or only the first is returned. The table has no batch axis: added to "
        "(batch, length, d_model), it broadcasts to every example by itself.",
        SECTION,
        (first_example_only, without_batch),
    ),
    Misconception(
        "one_position_for_all",
        "All tokens get the pattern of one and the same position. That moves every token by the same vector and says "
        "nothing about their order.",
        "positions#order-is-lost",
        (last_position_for_all,),
    ),
    Misconception(
        "tokens_scaled",
        "The tokens are multiplied by the root of d_model first. The paper does that to its own tokens, which start with "
        "very small numbers; it belongs to the table of tokens, not to this function, which should add positions to "
        "whatever it is given.",
        "positions#how-large-is-each-part",
        (scaled,),
        ("https://github.com/SamLynnEvans/Transformer/issues/10",),
    ),
    Misconception(
        "concatenated",
        "The pattern is put beside the token instead of added to it, which doubles the width. It ends in a sum anyway, as "
        "soon as a matrix multiplies both.",
        "positions#added-not-concatenated",
        (concatenated,),
    ),
    Misconception(
        "multiplied",
        "Token and pattern are multiplied. At position 0 every sine is 0, and what it multiplies is lost.",
        "positions#added-not-concatenated",
        (multiplied,),
    ),
    Misconception(
        "parts_weighted",
        "Token and pattern aren't simply added: one of them counts twice, or the sum is divided. (Adding a layer's result "
        "to its input, when the layer has added it already, has that effect.)",
        "positions#how-large-is-each-part",
        (halved, twice, twice_added),
        (
            "https://github.com/DSPsleeporg/smiles-transformer/pull/22",
            "https://github.com/gaasher/I-JEPA/issues/4",
        ),
    ),
    Misconception(
        "type_changed",
        "The result has another type than the tokens: a sum takes the wider type of the two, so that a float32 table turns "
        "half-precision tokens into float32, and the rest of the model with them (or stops it with an error).",
        PRECISION,
        (in_float32, all_in_float32, table_in_float64),
        ("https://github.com/huggingface/transformers/pull/24262",),
    ),
    Misconception(
        "pe_low_precision",
        "The patterns are computed in the type of the tokens. In bfloat16 whole numbers beyond 256 are rounded, so that "
        "neighbours far into the text get the same pattern. Compute them in a wide type and convert the result.",
        PRECISION,
        (positions_of_the_type, *map(by_table_in_the_type, ROUNDED_TABLES)),
        (
            "https://github.com/EleutherAI/gpt-neox/issues/1003",
            "https://github.com/NVIDIA/Megatron-LM/issues/535",
        ),
    ),
    Misconception(
        "gradient_cut",
        "The tokens get no gradient: they have been cut off (.detach(), .data, torch.tensor(...), torch.no_grad()). The "
        "patterns are fixed and need none, but the tokens are learned, and everything that comes before them too.",
        SECTION,
        (detached,),
        ("https://github.com/d2l-ai/d2l-en/pull/2121",),
    ),
    *built_on_wrong_tables(
        by_table,
        "It isn't the adding, the table itself is wrong; see whether sinusoidal_positions is right, or else the formula "
        "that stands here.",
    ),
)

EXERCISE = Exercise(
    name="add_positions",
    chapter="positions",
    kind="function",
    minutes=10,
    parts=(
        Part("sum", 1, "add row p of the table to token p of every example", SECTION),
        Part("gradients", 1, "let the gradient reach the tokens", SECTION),
        Part("types", 1, "return the type of the tokens, and keep far positions apart in it", PRECISION),
    ),
    hints=(
        "x has three axes and the table two. Which axis of x belongs to which of the table, and what does broadcasting do "
        "with the third?",
        "The table needs as many rows as a sentence has tokens, and as many columns as a token has features: two of the "
        "sizes of x. Which type has the sum of a bfloat16 and a float32 tensor?",
        "Make the table with sinusoidal_positions for the sizes of axis 1 and 2, convert it to the type of x, and return a "
        "new tensor, x plus the table.",
    ),
    cases=cases,
    reference=positions.add_positions,
    misconceptions=MISCONCEPTIONS,
)

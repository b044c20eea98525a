"""Exercise: a test for rotary positions that any right implementation passes, whatever its style, and no wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given

SECTION, AXIS = "positions#rotary-positions", "positions#which-axis-is-the-position"
ORDER, PRECISION = "positions#order-is-lost", "positions#low-precision"
DISTANCE, PAIRING = "positions#distance-not-place", "positions#interleaved-or-side-by-side"
Rope = Callable[[Tensor], Tensor]
SIZES = ((1, 1, 2, 2), (2, 3, 7, 8), (1, 1, 301, 4))


def examine_rope(rope: Rope) -> None:
    """Raise an AssertionError unless `rope` turns rows by their position, and by nothing else."""
    for number, (batch, heads, length, d_head) in enumerate(SIZES):
        query, key = torch.randn(2, batch, heads, 1, d_head, generator=torch.Generator().manual_seed(number))
        queries, keys = (row.repeat(1, 1, length, 1) for row in (query, key))
        before = queries.clone()
        turned, turned_keys = rope(queries), rope(keys)
        assert torch.equal(queries, before), "the input was changed"
        assert turned.shape == queries.shape, "the shape was changed"
        torch.testing.assert_close(turned[:, :, :1], query, rtol=0, atol=1e-3)  # position 0
        torch.testing.assert_close(turned.norm(dim=-1), queries.norm(dim=-1), rtol=1e-3, atol=1e-3)
        moved = (turned[:, :, 1] - query[:, :, 0]).norm(dim=-1)
        assert (moved > 0.01 * query[:, :, 0].norm(dim=-1)).all(), "position 1 is not turned"
        scores = turned @ turned_keys.transpose(-2, -1)
        torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1], rtol=1e-3, atol=1e-2)  # distance alone


def cases(rng: Generator) -> Iterator[Case]:
    for label, right in (
        ("a right implementation, for pairs half a width apart", by_halves),
        ("a right implementation, for pairs of neighbours", by_neighbours),
        ("a right implementation, with complex numbers", by_complex_numbers),
        ("a right implementation, with matrices", by_matrices),
        ("a right implementation, with angles in float32", in_float32),
        ("a right implementation, which turns the other way round", backwards),
        ("a right implementation, with other speeds", with_other_speeds),
    ):
        yield _case("rotations", label, right, accepts=True)
    for number, wrong in enumerate((unturned, adding, shrinking, one_sign_wrong, by_head, with_axes_moved), start=1):
        yield _case("rotations", f"a plainly wrong implementation, number {number} of 6, for every input", wrong)
    for when, wrong in (
        ("from position 2 on", with_growing_steps),
        ("from position 2 on, in another way", by_root),
        ("at position 0 already", from_one),
        ("at position 0 already, in another way", reflecting),
        ("with more than two features", with_speeds_mixed),
    ):
        yield _case("rule of distances", f"an implementation that is wrong {when}", wrong)
    for when, wrong in (
        ("in all examples but the first", in_first_example),
        ("in all heads but the first", in_first_head),
        ("at position 0 of all examples but the first", counting_on),
        ("from position 257 on", in_bfloat16),
        ("in texts of more than 64 tokens", with_table_of_64),
        ("at position 0, where it gives NaN", with_nan),
        ("in what has become of its input", in_place),
        ("when a longer text comes after a shorter one", remembering),
    ):
        yield _case("hiding places", f"an implementation that is wrong {when}", wrong)


def _case(part: str, label: str, rope: Rope, accepts: bool = False) -> Case:
    return Case(part, label, (Call((given(rope, turned_by),)),), accepts=accepts)


# --- implementations to be examined --------------------------------------------------------------------------------


def turned_by(x: Tensor, position: Tensor) -> Tensor:
    """Turn pairs half a width apart by positions that broadcast to (batch, head, length)."""
    half = x.size(-1) // 2
    angle = position.double()[..., None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def by_halves(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2)))


def by_neighbours(x: Tensor) -> Tensor:
    x = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
    return torch.stack(turned_by(x, torch.arange(x.size(2))).chunk(2, dim=-1), dim=-1).flatten(-2)


def by_complex_numbers(x: Tensor) -> Tensor:
    speed = 10000.0 ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    angle = torch.arange(x.size(2), dtype=torch.float64)[:, None] * speed
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


def by_matrices(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    speed = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.size(2), dtype=torch.float64)[:, None] * speed
    cos, sin = torch.diag_embed(angle.cos()), torch.diag_embed(angle.sin())
    matrices = torch.cat([torch.cat([cos, sin], dim=-1), torch.cat([-sin, cos], dim=-1)], dim=-2)
    return (x.double()[..., None, :] @ matrices)[..., 0, :].to(x.dtype)


def in_float32(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    angle = torch.arange(x.size(2)).float()[:, None] / 10000.0 ** (torch.arange(half) / half)
    cos, sin = angle.cos().repeat(1, 2).to(x), angle.sin().repeat(1, 2).to(x)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def backwards(x: Tensor) -> Tensor:
    return turned_by(x, -torch.arange(x.size(2)))


def with_other_speeds(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    angle = torch.arange(x.size(2)).double()[:, None] * 0.7 * 500_000.0 ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def unturned(x: Tensor) -> Tensor:
    return x.clone()


def adding(x: Tensor) -> Tensor:
    angle = torch.arange(x.size(2)).double()[:, None] / 10000 ** (torch.arange(0, x.size(-1), 2) / x.size(-1))
    return x + torch.cat([angle.sin(), 1 - angle.cos()], dim=-1).to(x)


def shrinking(x: Tensor) -> Tensor:
    angle = torch.arange(x.size(2)).double()[:, None] / 10000 ** (torch.arange(0, x.size(-1), 2) / x.size(-1))
    return x * torch.cat([angle.cos(), angle.cos()], dim=-1).to(x)


def one_sign_wrong(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    right = turned_by(x, torch.arange(x.size(2)))
    return torch.cat([turned_by(x, -torch.arange(x.size(2)))[..., :half], right[..., half:]], dim=-1)


def by_head(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(1))[:, None])


def with_axes_moved(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2))).transpose(1, 2)


def with_growing_steps(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2)).cumsum(0))


def by_root(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2)).double().sqrt())


def from_one(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(1, x.size(2) + 1))


def reflecting(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    return turned_by(torch.cat([x[..., :half], -x[..., half:]], dim=-1), torch.arange(x.size(2)))


def with_speeds_mixed(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    speed = (10000.0 ** (-torch.arange(half).double() / half)).repeat_interleave(2)
    angle = torch.arange(x.size(2)).double()[:, None] * speed
    return x * angle.cos().to(x) + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * angle.sin().to(x)


def in_first_example(x: Tensor) -> Tensor:
    return torch.cat([turned_by(x[:1], torch.arange(x.size(2))), x[1:]])


def in_first_head(x: Tensor) -> Tensor:
    return torch.cat([turned_by(x[:, :1], torch.arange(x.size(2))), x[:, 1:]], dim=1)


def counting_on(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(0) * x.size(2)).view(x.size(0), 1, x.size(2)))


def in_bfloat16(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2)).bfloat16())


def with_table_of_64(x: Tensor) -> Tensor:
    return turned_by(x, torch.arange(x.size(2)).clamp(max=63))


def with_nan(x: Tensor) -> Tensor:
    position = torch.arange(x.size(2))
    return turned_by(x, position * (position / position))


def in_place(x: Tensor) -> Tensor:
    x.copy_(turned_by(x, torch.arange(x.size(2))))
    return x


def remembering(x: Tensor, longest: list[int] = []) -> Tensor:  # noqa: B006 (that is what is wrong with it)
    longest.append(x.size(2))
    return turned_by(x, torch.arange(x.size(2)).clamp(max=longest[0] - 1))


# --- tests that are too weak, or too strict ------------------------------------------------------------------------


def examiner(
    sizes: tuple[tuple[int, int, int, int], ...] = SIZES,
    start: bool = True,
    lengths: bool = True,
    moved: bool = True,
    distance: bool = True,
    untouched: bool = True,
    not_nan: bool = True,
) -> Callable[[Rope], None]:
    """Build a test that leaves something out."""

    def far(one: Tensor, other: Tensor) -> bool:
        off = (one - other).abs()
        return bool((off > 1e-2).any()) or (not_nan and bool(off.isnan().any()))

    def examine(rope: Rope) -> None:
        for number, (batch, heads, length, d_head) in enumerate(sizes):
            query, key = torch.randn(2, batch, heads, 1, d_head, generator=torch.Generator().manual_seed(number))
            x, keys = query.repeat(1, 1, length, 1), key.repeat(1, 1, length, 1)
            before, keys_before = x.clone(), keys.clone()
            turned, turned_keys = rope(x), rope(keys)
            assert not untouched or torch.equal(x, before)
            assert turned.shape == before.shape
            assert not start or not far(turned[:, :, 0], before[:, :, 0])
            assert not lengths or not far(turned.norm(dim=-1), before.norm(dim=-1))
            assert not moved or not ((turned[:, :, 1] - before[:, :, 1]).norm(dim=-1) < 1e-3).any()
            scores = turned @ turned_keys.mT
            assert not distance or not far(scores[..., 1:, 1:], scores[..., :-1, :-1])
            del keys_before

    return examine


def shape_alone(rope: Rope) -> None:
    x = torch.randn(2, 3, 5, 8)
    assert rope(x).shape == x.shape


def nothing_asserted(rope: Rope) -> None:
    rope(torch.randn(2, 3, 5, 8))


def with_itself(rope: Rope) -> None:
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(rope(x), rope(x.clone()), equal_nan=True)


def with_own_numbers(rope: Rope) -> None:
    for batch, heads, length, d_head in SIZES:
        x = torch.randn(batch, heads, length, d_head)
        before = x.clone()
        torch.testing.assert_close(rope(x), by_halves(before), rtol=1e-3, atol=1e-3)
        assert torch.equal(x, before)


def with_own_numbers_of_neighbours(rope: Rope) -> None:
    for batch, heads, length, d_head in SIZES:
        x = torch.randn(batch, heads, length, d_head)
        before = x.clone()
        torch.testing.assert_close(rope(x), by_neighbours(before), rtol=1e-3, atol=1e-3)
        assert torch.equal(x, before)


def with_own_numbers_on_one_size(rope: Rope) -> None:
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(rope(x), by_halves(x), rtol=1e-3, atol=1e-3)


def truth_returned(rope: Rope) -> bool:
    try:
        examine_rope(rope)
    except AssertionError:
        return False
    return True


def exactly_equal(rope: Rope) -> None:
    query, key = torch.randn(2, 2, 3, 1, 8)
    scores = rope(query.repeat(1, 1, 7, 1)) @ rope(key.repeat(1, 1, 7, 1)).mT
    assert torch.equal(scores[..., 1:, 1:], scores[..., :-1, :-1])


def with_different_rows(rope: Rope) -> None:
    turned = rope(torch.randn(2, 3, 7, 8))
    scores = turned @ turned.mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1], rtol=1e-3, atol=1e-2)


ONE_LENGTH = ((1, 2, 301, 4), (2, 3, 301, 8))
MISCONCEPTIONS = (
    Misconception(
        "shape_alone",
        "Only the shape is examined, or only that nothing fails. Nearly every wrong implementation of rotary positions "
        "returns the right shape: that is why such bugs live so long.",
        "positions#a-layer-that-forgets-its-positions",
        (shape_alone, nothing_asserted, with_itself),
        ("https://github.com/vllm-project/tpu-inference/pull/185",),
    ),
    Misconception(
        "lengths_alone",
        "Only lengths are examined, and the first position perhaps. Lengths stay when nothing is turned at all, or when the "
        "angle depends on the wrong thing. What rotary positions are for are the scores.",
        DISTANCE,
        (
            examiner(moved=False, distance=False),
            examiner(moved=False, distance=False, start=False),
        ),
    ),
    Misconception(
        "standing_still_accepted",
        "An implementation that turns nothing passes, or one that turns all tokens alike (by the number of the head, say). "
        "Its scores don't depend on anything but the distance, since they don't depend on that either. A test has to ask as "
        "well whether two positions differ at all.",
        ORDER,
        (examiner(moved=False), examiner(moved=False, start=False)),
    ),
    Misconception(
        "distance_not_examined",
        "Nobody asks whether the scores depend on the distance alone. An angle that grows faster and faster, or ever more "
        "slowly, keeps all lengths and tells positions apart, and is no rotary position: “three places back” would be "
        "another turn at each place.",
        DISTANCE,
        (
            examiner(distance=False),
            examiner(distance=False, start=False),
        ),
    ),
    Misconception(
        "start_not_examined",
        "Position 0 may be turned, or even mirrored. Scores don't show it, since they see distances only; it has to be "
        "looked at on its own.",
        SECTION,
        (examiner(start=False),),
    ),
    Misconception(
        "own_numbers_expected",
        "The test compares with the numbers of one implementation. Which features make a pair, in which direction they turn "
        "and at which speeds differs from library to library, and all of them are rotary positions. Ask for what they have "
        "in common: for properties, not for numbers.",
        PAIRING,
        (with_own_numbers, with_own_numbers_of_neighbours, with_own_numbers_on_one_size),
        ("https://github.com/NVIDIA-NeMo/Speech/issues/6923", "https://github.com/karpathy/nanochat/pull/489"),
    ),
    Misconception(
        "right_ones_refused",
        "Everything is refused, right implementations too. Either numbers are compared exactly, which no two ways of "
        "computing survive (torch.equal and == ask for the last bit; torch.testing.assert_close leaves room). Or the rule is "
        "too strict: scores depend on the distance alone only if the *same* query and the *same* key stand at all places.",
        DISTANCE,
        (exactly_equal, with_different_rows),
    ),
    Misconception(
        "truth_value_returned",
        "The test returns True or False, and nobody reads it. A test says no by raising, as assert does; what it returns is "
        "thrown away.",
        SECTION,
        (truth_returned,),
    ),
    Misconception(
        "one_head_one_example",
        "There is only one example and one head. An implementation that goes wrong in the others passes; with one head "
        "“by the head” even looks the same as “not at all”.",
        AXIS,
        (
            examiner(sizes=((1, 1, 2, 2), (1, 1, 7, 8), (1, 1, 301, 4))),
            examiner(sizes=((1, 3, 2, 2), (1, 3, 7, 8), (1, 3, 301, 4))),
            examiner(sizes=((2, 1, 2, 2), (2, 1, 7, 8), (2, 1, 301, 4))),
        ),
    ),
    Misconception(
        "short_texts_alone",
        "Only short texts are tried. A table of angles that ends too early, or positions that are rounded, go wrong in long "
        "ones: bfloat16 can count to 256, and many a table ends at a round number.",
        PRECISION,
        (
            examiner(sizes=((1, 1, 2, 2), (2, 3, 7, 8))),
            examiner(sizes=((1, 1, 2, 2), (2, 3, 97, 8))),
        ),
        ("https://github.com/EleutherAI/gpt-neox/issues/1003",),
    ),
    Misconception(
        "one_call",
        "All texts have one length. An implementation that keeps the angles of its first call only goes wrong when another, "
        "longer text follows.",
        "positions#past-the-trained-length",
        (examiner(sizes=ONE_LENGTH), examiner(sizes=ONE_LENGTH[1:])),
        (
            "https://github.com/lucidrains/rotary-embedding-torch/issues/11",
            "https://github.com/ml-explore/mlx/pull/561",
        ),
    ),
    Misconception(
        "one_short_text",
        "One size is tried, and a short one. Neither does it show what goes wrong in long texts, nor what goes wrong from "
        "the second call on.",
        "positions#past-the-trained-length",
        (examiner(sizes=((2, 3, 7, 8),)),),
    ),
    Misconception(
        "nan_passes",
        "NaN passes. Every comparison with NaN is false: “if the difference is larger than …, raise” doesn't raise then. Ask "
        "the other way round, assert that it is *smaller*, or use torch.testing.assert_close.",
        "self_attention#a-query-that-sees-nothing",
        (examiner(not_nan=False),),
    ),
    Misconception(
        "input_not_examined",
        "Nobody looks at the input afterwards. An implementation that writes its result into x passes every comparison of "
        "results, and spoils what the caller still needs. (Compare with a copy that you made before.)",
        SECTION,
        (examiner(untouched=False),),
        ("https://github.com/NVIDIA-NeMo/Speech/pull/7440",),
    ),
)

EXERCISE = Exercise(
    name="examine_rope",
    chapter="positions",
    kind="function",
    task="catch",
    minutes=30,
    parts=(
        Part(
            "rotations",
            2,
            "accept every right implementation, and refuse what doesn't turn rows by their position",
            SECTION,
        ),
        Part(
            "rule of distances",
            1,
            "ask for scores that depend on the distance alone, and for a position 0 that stays",
            DISTANCE,
        ),
        Part(
            "hiding places",
            2,
            "look into every example and head, at long texts, at several calls and at the input",
            AXIS,
        ),
    ),
    hints=(
        "Put the same vector at every position. After turning, what must be equal, what must have stayed as it was, and what "
        "must differ?",
        "With the same query at all places and the same key, all scores are one matrix. If they depend on the distance "
        "alone, what do you see along its diagonals? And which implementation passes that without doing anything?",
        "Assert: the shape; position 0 as before; the lengths as before; position 1 not as before; scores[1:, 1:] close to "
        "scores[:-1, :-1]; the input equal to a copy. In a loop over sizes from short to long, with several examples and "
        "heads, and with room for rounding.",
    ),
    cases=cases,
    reference=examine_rope,
    misconceptions=MISCONCEPTIONS,
)

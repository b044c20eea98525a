"""Exercise: write a test that tells right implementations of split_heads from wrong ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given
from mha_course.exercises.properties import sequence_first

SECTION, MERGE = "multi_head#why-view-then-transpose", "multi_head#split-and-merge"
MEMORY, WIDTH = "multi_head#view-or-reshape", "multi_head#width-must-divide"
Split = Callable[[Tensor, int], Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for label, implementation in (
        ("reshape, then transpose", by_reshape),
        ("chunks, stacked", by_chunks),
        ("a loop that fills an empty tensor", by_loop),
        ("unflatten, permute and a copy in memory", by_unflatten),
        ("slices, put together along a new axis", by_slices),
    ):
        yield _case("right and wrong", f"a right implementation, {label}", implementation, accepts=True)
    wrong: tuple[tuple[str, str, tuple[Callable[..., Any], ...]], ...] = (
        ("right and wrong", "gives the axes in another order", (not_moved, heads_first, length_last)),
        ("right and wrong", "gives another number of axes", (folded_into_batch, unchanged)),
        ("right and wrong", "gives the right shape and wrong numbers in it", (zeros, first_slice_for_all, noisy)),
        ("places", "gives all the right numbers, in wrong places", (no_transpose, interleaved, transposed_first)),
        (
            "places",
            "gives all the right numbers, some in wrong places",
            (heads_reversed, tokens_reversed, last_two_swapped),
        ),
        ("sizes", "goes wrong only with more than one example", (batch_mixed, first_example_for_all)),
        ("sizes", "goes wrong only with a single token", (one_token_dropped,)),
        ("sizes", "goes wrong only with a single head", (one_head_squeezed,)),
        ("sizes", "goes wrong only where there are as many heads as a head is wide", (square_transposed,)),
        ("sizes", "goes wrong only where there are not as many heads as a head is wide", (sizes_exchanged,)),
        ("memory", "raises if the input is itself a transposed tensor", (viewed,)),
        ("memory", "goes wrong only if the input is itself a transposed tensor", (by_strides,)),
        ("memory", "changes its input", (scales_in_place,)),
        ("width", "takes a width that the heads cannot share out, and drops what is left over", (features_dropped,)),
        ("width", "takes a width that the heads cannot share out, and fills up with zeros", (zeros_added,)),
        ("width", "returns None for a width that the heads cannot share out", (returns_none,)),
    )
    for part, when, implementations in wrong:
        for implementation in implementations:
            yield _case(part, f"an implementation that {when}", implementation, accepts=False)


def _case(part: str, label: str, implementation: Callable[..., Any], *, accepts: bool) -> Case:
    helpers: tuple[Callable[..., Any], ...] = () if implementation is unchanged else (sizes,)
    if implementation in BUILT_ON_IT:
        helpers = (sizes, by_reshape)
    return Case(part, label, (Call((given(implementation, *helpers),)),), accepts=accepts)


# --- right implementations -----------------------------------------------------------------------------------------


def sizes(x: Tensor, num_heads: int) -> tuple[int, int, int]:
    if x.size(-1) % num_heads:
        raise ValueError(f"{num_heads} heads cannot share {x.size(-1)} features")
    return x.size(0), x.size(1), x.size(2) // num_heads


def by_reshape(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head).transpose(1, 2)


def by_chunks(x: Tensor, num_heads: int) -> Tensor:
    sizes(x, num_heads)
    return torch.stack(x.chunk(num_heads, dim=-1), dim=1)


def by_loop(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    result = x.new_empty(batch, num_heads, length, d_head)
    for head in range(num_heads):
        for token in range(length):
            result[:, head, token] = x[:, token, head * d_head : (head + 1) * d_head]
    return result


def by_unflatten(x: Tensor, num_heads: int) -> Tensor:
    _, _, d_head = sizes(x, num_heads)
    return x.unflatten(-1, (num_heads, d_head)).permute(0, 2, 1, 3).contiguous()


def by_slices(x: Tensor, num_heads: int) -> Tensor:
    width = x.shape[-1]
    if width % num_heads != 0:
        raise ValueError("choose a number of heads that divides the width")
    slices = [x[:, None, :, start : start + width // num_heads] for start in range(0, width, width // num_heads)]
    return torch.cat(slices, dim=1)


# --- wrong implementations -----------------------------------------------------------------------------------------


def not_moved(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head)


def heads_first(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads).transpose(0, 1)


def length_last(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads).transpose(2, 3)


def folded_into_batch(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads).flatten(0, 1)


def unchanged(x: Tensor, num_heads: int) -> Tensor:
    return x


def zeros(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads) * 0


def first_slice_for_all(x: Tensor, num_heads: int) -> Tensor:
    heads = by_reshape(x, num_heads)
    return heads[:, :1].expand_as(heads)


def noisy(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads) * 1.01 + 0.01


def no_transpose(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(batch, num_heads, length, d_head)


def interleaved(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(batch, length, d_head, num_heads).permute(0, 3, 1, 2)


def transposed_first(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.transpose(1, 2).reshape(batch, num_heads, length, d_head)


def heads_reversed(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads).flip(1)


def tokens_reversed(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x, num_heads).flip(2)


def last_two_swapped(x: Tensor, num_heads: int) -> Tensor:
    heads = by_reshape(x, num_heads)
    return torch.cat([heads[..., :-2], heads[..., -2:].flip(-1)], dim=-1)


def batch_mixed(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(length, batch, num_heads, d_head).permute(1, 2, 0, 3)


def first_example_for_all(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x[:1].expand_as(x), num_heads)


def one_token_dropped(x: Tensor, num_heads: int) -> Tensor:
    heads = by_reshape(x, num_heads)
    return heads.squeeze(2) if heads.size(2) == 1 else heads


def one_head_squeezed(x: Tensor, num_heads: int) -> Tensor:
    heads = by_reshape(x, num_heads)
    return heads.squeeze(1) if num_heads == 1 else heads


def square_transposed(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    heads = x.reshape(batch, length, num_heads, d_head)
    if num_heads == d_head:
        heads = heads.transpose(2, 3)
    return heads.transpose(1, 2)


def sizes_exchanged(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.reshape(batch, length, d_head, num_heads).transpose(1, 2)


def viewed(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    return x.view(batch * length, num_heads, d_head).view(batch, length, num_heads, d_head).transpose(1, 2)


def by_strides(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = sizes(x, num_heads)
    shape = (batch, num_heads, length, d_head)
    return x.as_strided(shape, (length * num_heads * d_head, d_head, num_heads * d_head, 1))


def scales_in_place(x: Tensor, num_heads: int) -> Tensor:
    heads = by_reshape(x, num_heads).clone()
    x.mul_(0.5)
    return heads


def features_dropped(x: Tensor, num_heads: int) -> Tensor:
    return by_reshape(x[..., : x.size(-1) // num_heads * num_heads], num_heads)


def zeros_added(x: Tensor, num_heads: int) -> Tensor:
    missing = -x.size(-1) % num_heads
    return by_reshape(torch.cat([x, x.new_zeros(*x.shape[:-1], missing)], dim=-1), num_heads)


def returns_none(x: Tensor, num_heads: int) -> Tensor | None:
    return None if x.size(-1) % num_heads else by_reshape(x, num_heads)


BUILT_ON_IT = (
    heads_first,
    length_last,
    folded_into_batch,
    zeros,
    first_slice_for_all,
    noisy,
    heads_reversed,
    tokens_reversed,
    last_two_swapped,
    first_example_for_all,
    one_token_dropped,
    one_head_squeezed,
    scales_in_place,
    features_dropped,
    zeros_added,
    returns_none,
)


# --- a good test ---------------------------------------------------------------------------------------------------


def examine_split_heads(split_heads: Split) -> None:
    for batch, length, num_heads, d_head in ((2, 5, 3, 7), (3, 1, 2, 5), (2, 3, 1, 5), (2, 5, 3, 3)):
        x = numbered(batch, length, num_heads * d_head)
        compare(split_heads, x, num_heads)
        compare(split_heads, sequence_first(x), num_heads)
    refuses(split_heads)


def numbered(*shape: int) -> Tensor:
    """Give every entry a number of its own."""
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def compare(split_heads: Split, x: Tensor, num_heads: int) -> None:
    kept = x.clone()
    heads = split_heads(x, num_heads)
    assert torch.equal(x, kept), "the input was changed"
    assert heads.shape == (x.size(0), num_heads, x.size(1), x.size(2) // num_heads), "wrong shape"
    for head, own in enumerate(kept.chunk(num_heads, dim=-1)):
        assert torch.equal(heads[:, head], own), f"head {head} has other features than its own"


def refuses(split_heads: Split) -> None:
    try:
        split_heads(numbered(2, 3, 10), 4)
    except ValueError:
        return
    raise AssertionError("10 features were shared out among 4 heads")


# --- weak tests ----------------------------------------------------------------------------------------------------


def truth_value(split_heads: Split) -> bool:
    x = numbered(2, 5, 21)
    return torch.equal(split_heads(x, 3), by_reshape(x, 3))


def against_itself(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    assert torch.equal(split_heads(x, 3), split_heads(x, 3))


def only_the_shape(split_heads: Split) -> None:
    assert split_heads(numbered(2, 5, 21), 3).shape == (2, 3, 5, 7)


def shape_with_equal_sizes(split_heads: Split) -> None:
    assert split_heads(numbered(2, 4, 8), 2).shape == (2, 2, 4, 4)


def shape_and_width(split_heads: Split) -> None:
    only_the_shape(split_heads)
    refuses(split_heads)


def same_numbers(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert torch.equal(heads.flatten().sort().values, x.flatten())


def only_the_sum(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert heads.sum() == x.sum()


def round_trip_by_reshape(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    assert torch.equal(split_heads(x, 3).reshape(2, 5, 21), x)


def by_plain_reshape(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    assert torch.equal(split_heads(x, 3), x.reshape(2, 3, 5, 7))


def ones_only(split_heads: Split) -> None:
    x = torch.ones(2, 5, 21)
    assert torch.equal(split_heads(x, 3), torch.ones(2, 3, 5, 7))


def one_number(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert heads[0, 0, 0, 0] == x[0, 0, 0]
    assert heads[1, 2, 4, 6] == x[1, 4, 20]


def first_head_only(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    heads = split_heads(x, 3)
    assert heads.shape == (2, 3, 5, 7)
    assert torch.equal(heads[:, 0], x[..., :7])


def one_head_tried(split_heads: Split) -> None:
    x = numbered(2, 5, 7)
    assert torch.equal(split_heads(x, 1)[:, 0], x)


def one_token_tried(split_heads: Split) -> None:
    compare(split_heads, numbered(2, 1, 21), 3)


def demands_contiguous(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    assert split_heads(x, 3).is_contiguous()
    everything_but(split_heads)


def demands_a_view(split_heads: Split) -> None:
    x = numbered(2, 5, 21)
    assert split_heads(x, 3).data_ptr() == x.data_ptr()
    everything_but(split_heads)


def square_alone(split_heads: Split) -> None:
    compare(split_heads, numbered(2, 5, 9), 3)
    compare(split_heads, sequence_first(numbered(2, 5, 9)), 3)
    refuses(split_heads)


def square_and_no_more(split_heads: Split) -> None:
    x = numbered(2, 5, 9)
    assert torch.equal(split_heads(x, 3), by_reshape(x, 3))


def width_in_vain(split_heads: Split) -> None:
    everything_but(split_heads, width=False)
    with contextlib.suppress(ValueError):
        split_heads(numbered(2, 3, 10), 4)


def everything_but(
    split_heads: Split,
    *,
    company: bool = True,
    token: bool = True,
    head: bool = True,
    square: bool = True,
    memory: bool = True,
    kept: bool = True,
    width: bool = True,
) -> None:
    """Examine all that a good test does, but for what is switched off."""
    batch = 2 if company else 1
    for length, num_heads, d_head in [(5, 3, 7)] + [(1, 2, 5)] * token + [(3, 1, 5)] * head + [(5, 3, 3)] * square:
        x = numbered(batch, length, num_heads * d_head)
        for one in (x, sequence_first(x)) if memory else (x,):
            before = one.clone()
            assert torch.equal(split_heads(one, num_heads), by_reshape(before, num_heads))
            assert not kept or torch.equal(one, before)
    if width:
        refuses(split_heads)


def leaving_out(*parts: str, besides: tuple[str, ...] = ()) -> tuple[Callable[..., None], ...]:
    """Make the tests that leave out some parts, one for every choice of what they leave out besides."""
    switched_off: list[dict[str, Any]] = [
        dict.fromkeys((*parts, *more), False)
        for number in range(len(besides) + 1)
        for more in combinations(besides, number)
    ]
    return tuple(partial(everything_but, **switches) for switches in switched_off)


LATER = ("memory", "kept", "width")  # what the parts after “sizes” ask for


MISCONCEPTIONS = (
    Misconception(
        "truth_value_returned",
        "Your test returns True or False, and nobody reads it. A test says no by raising an error, as assert does, and "
        "says yes by ending without one.",
        MERGE,
        (truth_value,),
    ),
    Misconception(
        "nothing_refused",
        "Your test refuses nothing, or next to nothing. It has to compare the result with something that does not come "
        "from the code under test, and to raise where they differ.",
        MERGE,
        (against_itself,),
    ),
    Misconception(
        "only_the_shape",
        "Your test looks at the shape alone. A tensor of the right shape may hold anything: in this chapter's wrong split "
        "all shapes are right. And where sizes are equal, two heads and two examples, say, not even an exchange of two axes "
        "shows.",
        SECTION,
        (only_the_shape, shape_with_equal_sizes, shape_and_width),
        (
            "https://github.com/reczoo/FuxiCTR/issues/30",
            "https://github.com/tenstorrent/tt-xla/pull/1607",
        ),
    ),
    Misconception(
        "same_numbers_anywhere",
        "Your test finds that no number is lost, by sorting or adding them up. A wrong split loses none either: it puts "
        "them in wrong places. Use an input whose numbers say where they belong, and look where they are.",
        SECTION,
        (same_numbers, only_the_sum),
    ),
    Misconception(
        "expects_the_plain_reshape",
        "Your test expects what a single reshape gives, there or back. So it refuses every right implementation: the head "
        "axis is cut out of the features first and moved in a second step.",
        SECTION,
        (round_trip_by_reshape, by_plain_reshape),
        ("https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10",),
    ),
    Misconception(
        "equal_numbers_only",
        "Your test tries a tensor of equal numbers. Put in other places, they look the same. Give every entry a number of "
        "its own.",
        SECTION,
        (ones_only,),
    ),
    Misconception(
        "few_numbers_compared",
        "Your test looks at a few numbers of the result: a corner, or one head. Those are right in wrong splits too. "
        "Compare all of them.",
        SECTION,
        (one_number, first_head_only),
    ),
    Misconception(
        "one_head_or_token_tried",
        "Your test tries a single head or a single token. With one head there is nothing to share out, and with one token "
        "nothing to mix up: the plain reshape is right then.",
        SECTION,
        (one_head_tried, one_token_tried),
        ("https://github.com/hackiey/QAnet-pytorch/issues/2",),
    ),
    Misconception(
        "memory_prescribed",
        "Your test demands how the result lies in memory: contiguous, or in the input's own memory. Some right "
        "implementations return a view, others a copy. Only the numbers and their places are agreed.",
        MEMORY,
        (demands_contiguous, demands_a_view),
    ),
    Misconception(
        "one_input_only",
        "Your test is good, for a single shape of ordinary sizes. Some implementations go wrong only at the edges, or only "
        "where two sizes are equal. Take several shapes.",
        MERGE,
        leaving_out("token", "head", "square", besides=LATER),
    ),
    Misconception(
        "batch_of_one",
        "Your test tries a single example. Whatever mixes the examples of a batch passes then.",
        "multi_head#batch-first",
        leaving_out("company") + leaving_out("company", "token", "head", "square", *LATER),
        ("https://github.com/lucidrains/graph-transformer-pytorch/pull/2",),
    ),
    Misconception(
        "equal_sizes_only",
        "In your test there are as many heads as a head is wide. Whoever exchanges these two sizes passes then. Take sizes "
        "that are all different, and equal ones only besides.",
        MERGE,
        (square_alone, square_and_no_more),
    ),
    Misconception(
        "edges_not_tried",
        "Your test leaves out the single token, or the single head. Axes of size 1 are where squeeze and its like strike, "
        "and a text that is written word by word has a length of 1.",
        MERGE,
        (
            *leaving_out("token", "head", besides=LATER),
            *leaving_out("token", besides=("square", *LATER)),
            *leaving_out("head", besides=("square", *LATER)),
        ),
        ("https://github.com/NVIDIA/tacotron2/pull/303",),
    ),
    Misconception(
        "equal_sizes_not_tried",
        "In your test there are never as many heads as a head is wide. Some code tells the two axes apart by their sizes, "
        "and can't where these are equal.",
        MERGE,
        leaving_out("square", besides=LATER),
    ),
    Misconception(
        "memory_not_tried",
        "In your test the input always lies in memory in its own order. Real inputs often are transposed tensors, and view "
        "raises for those.",
        MEMORY,
        leaving_out("memory", besides=("kept", "width")),
        (
            "https://github.com/facebookresearch/fairseq/issues/2598",
            "https://github.com/NVIDIA/Megatron-LM/issues/875",
        ),
    ),
    Misconception(
        "input_not_looked_at",
        "Your test doesn't look at what has become of the input. Keep a copy from before the call, and take what you expect "
        "from that copy.",
        MEMORY,
        leaving_out("kept", besides=("width",)),
    ),
    Misconception(
        "width_not_tried",
        "Your test doesn't find out what happens if num_heads does not divide the width. A ValueError is agreed. If the "
        "call returns as if nothing were wrong, the test has to raise an error itself.",
        WIDTH,
        (*leaving_out("width"), width_in_vain),
    ),
)

EXERCISE = Exercise(
    name="examine_split_heads",
    chapter="multi_head",
    kind="function",
    minutes=20,
    parts=(
        Part(
            "right and wrong", 2, "let every right implementation pass, and refuse those that are plainly wrong", MERGE
        ),
        Part("places", 1, "refuse an implementation that puts the right numbers in wrong places", SECTION),
        Part("sizes", 1, "refuse an implementation that goes wrong with some sizes alone", MERGE),
        Part("memory", 1, "refuse an implementation that minds how its input lies in memory, or changes it", MEMORY),
        Part("width", 1, "refuse an implementation that takes a width which the heads cannot share out", WIDTH),
    ),
    hints=(
        "Which input shows, number by number, where each entry of the result came from? And for which sizes is the wrong "
        "split of the chapter, the plain view, right?",
        "Number all entries of x with torch.arange. Head h must hold a certain slice of x, for every example and token: "
        "compare with that slice. Then choose shapes: several, with ones among them, with equal sizes and unequal ones.",
        "For a few shapes, and for each also stored in memory in another order (transpose, contiguous, transpose back): "
        "copy x, call, compare x with the copy, and every head with its slice of the copy. At the end, try 10 features and "
        "4 heads, catch the ValueError, and raise an error yourself if there was none.",
    ),
    cases=cases,
    reference=examine_split_heads,
    misconceptions=MISCONCEPTIONS,
    task="catch",
)

"""Exercise: repair a loop over the heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.multi_head.split_heads import numbered
from mha_course.exercises.properties import randn, unchanged
from mha_course.multi_head import merge_heads, split_heads
from mha_course.self_attention import scaled_dot_product_attention

SECTION, LOOP, SCALE = "multi_head#split-and-merge", "multi_head#a-loop-first", "multi_head#scale"


def cases(rng: Generator) -> Iterator[Case]:
    for label, batch, queries, keys, heads, d_head in (
        ("one example, one token", 1, 1, 1, 2, 3),
        ("one example", 1, 2, 2, 2, 3),
        ("one head", 2, 3, 3, 1, 5),
        ("", 2, 3, 3, 2, 5),
        ("as many heads as examples", 3, 5, 5, 3, 2),
        ("as many heads as tokens", 2, 3, 3, 3, 5),
        ("heads of width 1", 2, 3, 3, 7, 1),
        ("one token", 3, 1, 1, 2, 5),
        ("many heads", 2, 3, 3, 12, 2),
    ):
        given = inputs(rng, batch, queries, keys, heads, d_head)
        text = describe(given) + f", {label}" * bool(label)
        yield Case("side by side", text, (Call(given),))
    for batch, length, heads, d_head in ((1, 2, 2, 2), (2, 3, 2, 3), (2, 2, 3, 5)):
        x, value = own_token_only(batch, length, heads, d_head), numbered(batch, length, heads * d_head)
        label = f"{describe((x, x, value, heads))}, each token looks at itself alone"
        yield Case("side by side", label, (Call((x, x, value, heads)),), holds=(right_origin(d_head),))
    query, key, value, heads = inputs(rng, 3, 5, 5, 2, 7)
    others = torch.cat([value[:1], randn(rng, 2, 5, 14)])
    yield Case(
        "side by side",
        f"{describe((query, key, value, heads))}, all examples but the first changed",
        (Call((query, key, value, heads)), Call((query, key, others, heads))),
        holds=(
            unchanged(
                "The examples of a batch do not affect one another.",
                "when only the other examples were changed, the first one's result moved by {change}",
                where=0,
            ),
        ),
    )
    for batch, queries, keys, heads in ((1, 2, 3, 2), (2, 3, 5, 2), (3, 7, 2, 5)):
        given = inputs(rng, batch, queries, keys, heads, 3)
        yield Case("other lengths", f"{describe(given)}, cross-attention", (Call(given),))
    given = inputs(rng, 2, 3, 5, 2, 7)
    yield Case("other lengths", f"{describe(given)}, with gradients", (Call(given, backward=True),))


def inputs(
    rng: Generator, batch: int, queries: int, keys: int, heads: int, d_head: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    query, key, value = (randn(rng, batch, length, heads * d_head, scale=1.2) for length in (queries, keys, keys))
    return query, key, value, heads


def own_token_only(batch: int, length: int, heads: int, d_head: int) -> Tensor:
    """Make queries, and keys, with which every token gives all its weight to itself, in every head."""
    return 40 * torch.eye(length, d_head).repeat(batch, 1, heads)


def describe(given: tuple[Tensor, Tensor, Tensor, int]) -> str:
    query, key, _, heads = given
    batch, queries, d_model = query.shape
    lengths = f"length {queries}" if queries == key.size(1) else f"{queries} queries, {key.size(1)} keys"
    return f"batch {batch}, {lengths}, d_model {d_model}, {heads} head{'s' * (heads > 1)}"


def right_origin(d_head: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        result = outputs[0]
        batch, length, width = result.shape
        wanted = numbered(batch, length, width)
        if not torch.isin(result, wanted).all() or torch.equal(result, wanted):
            return None
        example, token, place = (result != wanted).nonzero()[0].tolist()
        origin, feature = divmod(int(result[example, token, place]), 10_000)
        home, at = divmod(origin - 1, length)
        return (
            f"in the vector of token {token} in example {example}, place {place} should hold feature {place % d_head} of "
            f"head {place // d_head} for this token, but holds feature {feature % d_head} of head {feature // d_head} "
            f"for token {at} in example {home}"
        )

    return Property("Each token's vector holds what the heads found for this token, head 0 first.", broken)


def heads_in_turn(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    query, key, value = (split_heads(x, num_heads) for x in (query, key, value))
    return merge_heads(scaled_dot_product_attention(query, key, value)[0])


# --- wrong answers -------------------------------------------------------------------------------------------------


def loop(
    join: Callable[[list[Tensor]], Tensor] | None = None,
    divisor: Callable[[int, int], float] = lambda d_head, d_model: math.sqrt(d_head),
    own: Callable[[int, int, int], slice] = lambda head, d_head, num_heads: slice(head * d_head, (head + 1) * d_head),
    axis: int = -1,
) -> Callable[..., Tensor]:
    """Build a loop over the heads out of its steps; each is right unless another is given."""

    def heads_in_turn(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
        d_model = query.size(-1)
        d_head = d_model // num_heads
        results = []
        for head in range(num_heads):
            part = own(head, d_head, num_heads)
            scores = query[..., part] @ key[..., part].transpose(-2, -1) / divisor(d_head, d_model)
            results.append(scores.softmax(dim=axis) @ value[..., part])
        return (join or concatenated)(results)

    return heads_in_turn


def concatenated(results: list[Tensor]) -> Tensor:
    return torch.cat(results, dim=-1)


def viewed(results: list[Tensor], axis: int = 0) -> Tensor:
    batch, length, d_head = results[0].shape
    return torch.stack(results, dim=axis).reshape(batch, length, d_head * len(results))


def stack_heads_view(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    return loop(viewed)(query, key, value, num_heads)


def last_head_alone(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    return loop(lambda results: results[-1])(query, key, value, num_heads)


MISCONCEPTIONS = (
    Misconception(
        "stack_heads_view",
        "The results are stacked with the head axis in front and then viewed as (batch, length, d_model). A view keeps "
        "the order in memory, where head 0 of all examples and tokens comes before head 1 of any: the numbers of "
        "different examples, tokens and heads change places, and the shape is right. With one head it is invisible.",
        SECTION,
        (stack_heads_view,),
        (
            "https://github.com/hackiey/QAnet-pytorch/issues/2",
            "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/7",
        ),
    ),
    Misconception(
        "stacked_behind_the_batch",
        "Now the examples stay apart, but within one example the heads still come before the tokens: head 0 of all "
        "tokens, then head 1. A vector of the result holds one head's findings for several tokens. The head axis has to "
        "stand right before the features when the two are joined.",
        SECTION,
        (loop(lambda results: viewed(results, axis=1)),),
        (
            "https://github.com/jsbaan/transformer-from-scratch/pull/6",
            "https://github.com/zhouhaoyi/Informer2020/issues/100",
        ),
    ),
    Misconception(
        "heads_interleaved",
        "Each vector holds the right numbers in another order: first feature 0 of every head, then feature 1 of every "
        "head. The head axis has landed behind the features, where it should stand before them.",
        SECTION,
        (loop(lambda results: viewed(results, axis=-1)),),
    ),
    Misconception(
        "joined_along_the_length",
        "The results are put one behind the other along the length, as if they were further tokens. They belong side by "
        "side: one vector a token, d_model wide.",
        SECTION,
        (loop(lambda results: torch.cat(results, dim=1)),),
    ),
    Misconception(
        "joined_along_the_batch",
        "The results are put one behind the other along the batch, as if they were further examples. They belong side by "
        "side: one vector a token, d_model wide.",
        SECTION,
        (loop(torch.cat),),
    ),
    Misconception(
        "not_joined",
        "The results are stacked, and the head axis stays an axis of its own. The result is to be (batch, length, "
        "d_model), as the tokens came.",
        SECTION,
        tuple(
            loop(join)
            for join in (
                torch.stack,
                lambda results: torch.stack(results, dim=1),
                lambda results: torch.stack(results, dim=2),
            )
        ),
    ),
    Misconception(
        "heads_added_up",
        "The heads are added up or averaged, so that nothing tells any more what came from which, and the result is only "
        "d_head wide. They are put side by side; it is the output projection that combines them.",
        "multi_head#output-projection",
        (loop(lambda results: torch.stack(results).sum(dim=0)), loop(lambda results: torch.stack(results).mean(dim=0))),
        ("https://github.com/TransformerLensOrg/TransformerLens/pull/666",),
    ),
    Misconception(
        "one_head_returned",
        "A single head's result is returned: the return stands inside the loop, or the results overwrite one another.",
        LOOP,
        (last_head_alone, loop(lambda results: results[0])),
    ),
    Misconception(
        "heads_reversed",
        "The heads stand in reverse order. Head 0 comes first: the output projection has learned which of its columns "
        "belong to which head.",
        SECTION,
        (loop(lambda results: torch.cat(results[::-1], dim=-1)),),
    ),
    Misconception(
        "own_slice_changed",
        "Each head now takes every num_heads-th feature instead of its slice of neighbours. That part was right; the slip "
        "is in what happens after the loop.",
        "multi_head#why-view-then-transpose",
        (loop(own=lambda head, d_head, num_heads: slice(head, None, num_heads)),),
    ),
    Misconception(
        "scale_by_d_model",
        "The scores are now divided by the root of d_model. That part was right: each head's dot product has d_head "
        "terms. The slip is in what happens after the loop.",
        SCALE,
        (loop(divisor=lambda d_head, d_model: math.sqrt(d_model)),),
        ("https://github.com/karpathy/ng-video-lecture/pull/6",),
    ),
    Misconception(
        "softmax_axis_changed",
        "softmax now runs along another axis than the keys. That part was right; the slip is in what happens after the "
        "loop.",
        "self_attention#which-axis-does-softmax-run-along",
        (loop(axis=1), loop(axis=0)),
    ),
)

EXERCISE = Exercise(
    name="heads_in_turn",
    chapter="multi_head",
    kind="function",
    minutes=10,
    parts=(
        Part(
            "side by side",
            2,
            "return one vector a token: what the heads found for it, side by side, head 0 first",
            SECTION,
        ),
        Part("other lengths", 1, "work as well where there are more or fewer keys than queries", LOOP),
    ),
    hints=(
        "It is right with one head, and wrong with two. Give it two tokens of four features and two heads, and values "
        "that say where they come from. Where does each number land?",
        "What shape has one head's result, and in which order do the numbers of all heads lie in memory when they are "
        "stacked? Which numbers should lie side by side in the vector of token 0?",
        "The loop is right. Put the results side by side along the feature axis, instead of stacking and reshaping them.",
    ),
    cases=cases,
    reference=heads_in_turn,
    misconceptions=MISCONCEPTIONS,
    task="repair",
)

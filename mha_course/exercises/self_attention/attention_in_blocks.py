"""Exercise, to be repaired: attention that reads the keys block by block and never holds the whole table of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn, unchanged
from mha_course.self_attention import scaled_dot_product_attention

SECTION, SOFTMAX = "self_attention#cost", "self_attention#why-softmax"
MAXIMUM, FUNCTION = "soft_addressing#why-subtract-the-maximum", "self_attention#one-function"


def attention_in_blocks(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    return summed(query, key, value, block)


def cases(rng: Generator) -> Iterator[Case]:
    for label, leading, keys, block in (
        ("a single block", (), 3, 3),
        ("blocks of 1", (), 2, 1),
        ("blocks of 2", (), 4, 2),
        ("blocks of 3, so that the last one is shorter", (2,), 7, 3),
        ("a block longer than the sentence", (2,), 5, 11),
        ("heads, blocks of 2", (2, 3), 7, 2),
    ):
        q, k, v = inputs(rng, leading, 3, keys)
        yield Case("blocks", f"{describe(k, v)}, {label}", (Call((q, k, v, block)),))
    q, k, v = (x.double() for x in inputs(rng, (2,), 3, 7))
    yield Case("blocks", f"{describe(k, v)}, blocks of 2, float64", (Call((q, k, v, 2)),), tolerance=1e-9)
    yield from _ordered_cases(rng)
    yield from _large_cases(rng)
    q, k, v = inputs(rng, (), 31, 61)
    call = Call((q, k, v, 3))
    label = f"{describe(k, v)}, 31 queries, blocks of 3"
    yield Case("memory", label, (call,), through=given(largest_tensor), compare=False, holds=(one_block_at_a_time,))


def _ordered_cases(rng: Generator) -> Iterator[Case]:
    """Give one query scores that rise, or fall, from block to block, so that it shows when a sum goes wrong."""
    for label, scores in (("falls", (3.0, 2.0, 1.0, 0.0)), ("rises", (0.0, 1.0, 2.0, 3.0))):
        q, k = torch.ones(1, 1), torch.tensor(scores)[:, None]
        text = f"one query with the scores {list(scores)}, so that the highest {label}, blocks of 1"
        yield Case("blocks", text, (Call((q, k, randn(rng, 4, 2), 1)),))
    q, k, v = inputs(rng, (2,), 3, 7)
    yield Case(
        "blocks",
        f"{describe(k, v)}, all keys in one block and then in blocks of 2",
        (Call((q, k, v, 7)), Call((q, k, v, 2))),
        holds=(
            unchanged(
                "Where the blocks are cut makes no difference.",
                "in blocks of 2 the output differs by {change} from that in one block",
            ),
        ),
    )


def _large_cases(rng: Generator) -> Iterator[Case]:
    v = randn(rng, 5, 2)
    for label, scores in (
        ("that rise to 400", (0.0, 100.0, 200.0, 300.0, 400.0)),
        ("that fall from 400", (400.0, 300.0, 200.0, 100.0, 0.0)),
        ("of -400 and lower", (-400.0, -401.0, -403.0, -402.0, -404.0)),
    ):
        q, k = torch.ones(1, 1), torch.tensor(scores)[:, None]
        yield Case("large scores", f"one query with scores {label}, blocks of 2", (Call((q, k, v, 2)),))
    q, k = torch.tensor([[1.0], [-1.0]]), torch.tensor([[400.0], [401.0], [403.0], [402.0], [404.0]])
    yield Case("large scores", "one query with scores near 400 and one near -400, blocks of 2", (Call((q, k, v, 2)),))


def inputs(rng: Generator, leading: tuple[int, ...], queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    # Scores with a spread of about 3, so that the highest often changes from block to block.
    return (
        randn(rng, *leading, queries, 3, scale=1.7),
        randn(rng, *leading, keys, 3, scale=1.7),
        randn(rng, *leading, keys, 2),
    )


def describe(key: Tensor, value: Tensor) -> str:
    return f"key {tuple(key.shape)}, value {tuple(value.shape)}"


def largest_tensor(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a function that runs this one and says how many numbers the largest tensor had that it made."""

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # noqa: SLF001 (there is no public name)
        largest = 0

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operation(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
            return result

    def watched(*args: Any) -> int:
        with Watch() as watch:  # type: ignore[no-untyped-call]
            function(*args)
        return watch.largest

    return watched


def _too_large(outputs: Sequence[Any]) -> str | None:
    queries, keys, block = 31, 61, 3
    if outputs[0] < queries * keys // 2:
        return None
    return (
        f"it made a tensor of {outputs[0]:,} numbers; the scores of one block are {queries * block}, "
        f"those of all keys {queries * keys:,}"
    )


one_block_at_a_time = Property("Only the scores of one block are held at a time.", _too_large)


# --- wrong answers, and the right one ------------------------------------------------------------------------------


def summed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block: int,
    raise_maximum: Callable[[Tensor, Tensor], Tensor] = lambda largest, scores: torch.maximum(
        largest, scores.amax(dim=-1, keepdim=True)
    ),
    shrink: Callable[[Tensor, Tensor], Tensor] = lambda before, largest: (before - largest).exp(),
    total_too: bool = True,
    output_too: bool = True,
) -> Tensor:
    """Sum up block by block; each step is right unless another is given."""
    query = query / math.sqrt(query.size(-1))
    largest = torch.full_like(query[..., :1], -math.inf)
    total, output = torch.zeros_like(largest), torch.zeros_like(query[..., :1] * value[..., :1, :])
    for start in range(0, key.size(-2), block):
        scores = query @ key[..., start : start + block, :].transpose(-2, -1)
        before, largest = largest, raise_maximum(largest, scores)
        weights, factor = (scores - largest).exp(), shrink(before, largest)
        total = total * (factor if total_too else 1) + weights.sum(dim=-1, keepdim=True)
        output = output * (factor if output_too else 1) + weights @ value[..., start : start + block, :]
    return output / total


def with_steps(**steps: Any) -> Callable[..., Tensor]:
    return lambda query, key, value, block: summed(query, key, value, block, **steps)


def overwritten(largest: Tensor, scores: Tensor) -> Tensor:
    """Raise the maximum in place, as in what is handed out: the one before is the same tensor, and nothing ever shrinks."""
    return torch.maximum(largest, scores.amax(dim=-1, keepdim=True), out=largest)


def fixed_maximum(number: float) -> Callable[..., Tensor]:
    return with_steps(
        raise_maximum=lambda largest, scores: torch.full_like(largest, number),
        shrink=lambda before, largest: torch.ones_like(largest),
    )


def by_parts(combine: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attend in each block for itself, and combine the outputs (block, …)."""

    def wrong(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
        return combine(
            torch.stack(
                [
                    scaled_dot_product_attention(
                        query, key[..., start : start + block, :], value[..., start : start + block, :]
                    )[0]
                    for start in range(0, key.size(-2), block)
                ]
            )
        )

    return wrong


def whole_blocks_alone(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    whole = key.size(-2) // block * block
    return summed(query, key[..., :whole, :], value[..., :whole, :], block)


def all_at_once(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    return scaled_dot_product_attention(query, key, value)[0]


def not_divided(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)
    return (scores - scores.amax(dim=-1, keepdim=True)).exp() @ value


def divided_in_every_block(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    query = query / math.sqrt(query.size(-1))
    largest = torch.full_like(query[..., :1], -math.inf)
    total, output = torch.zeros_like(largest), torch.zeros_like(query[..., :1] * value[..., :1, :])
    for start in range(0, key.size(-2), block):
        scores = query @ key[..., start : start + block, :].transpose(-2, -1)
        before, largest = largest, torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
        weights, shrink = (scores - largest).exp(), (before - largest).exp()
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        output = (output * shrink + weights @ value[..., start : start + block, :]) / total
    return output


def scaled_in_every_block(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    factors = math.sqrt(query.size(-1)) ** -(torch.arange(key.size(-2)) // block).to(key.dtype)
    return scaled_dot_product_attention(query, key * factors[:, None], value)[0]


def not_scaled(query: Tensor, key: Tensor, value: Tensor, block: int) -> Tensor:
    return summed(query * math.sqrt(query.size(-1)), key, value, block)


MISCONCEPTIONS = (
    Misconception(
        "maximum_overwritten",
        "`before` and `largest` are two names of one tensor. When the new maximum is written into it, the old one is "
        "lost, and their difference is 0: nothing shrinks, and earlier blocks keep weights from a lower maximum.",
        MAXIMUM,
        (with_steps(raise_maximum=overwritten),),
        ("https://github.com/paiml/aprender/issues/2753",),
    ),
    Misconception(
        "output_not_rescaled",
        "When the maximum rises, the total is brought down to it and the output is not. Both are sums over the same "
        "weights, and both were made with the old maximum: what is done to one has to be done to the other.",
        MAXIMUM,
        (with_steps(output_too=False),),
    ),
    Misconception(
        "total_not_rescaled",
        "When the maximum rises, the output is brought down to it and the total is not. Both are sums over the same "
        "weights, and both were made with the old maximum: what is done to one has to be done to the other.",
        MAXIMUM,
        (with_steps(total_too=False),),
    ),
    Misconception(
        "rescaled_upwards",
        "The factor is turned round: the old sums are made larger when the maximum rises. They hold exp(score - old "
        "maximum) and should hold exp(score - new maximum). Which is the smaller? At the first block the old maximum "
        "is minus infinity: the factor must then be 0, not infinity.",
        MAXIMUM,
        (with_steps(shrink=lambda before, largest: (largest - before).exp()),),
        ("https://github.com/deepseek-ai/FlashMLA/pull/177",),
    ),
    Misconception(
        "no_maximum",
        "Nothing is subtracted from the scores, or a number chosen beforehand. On paper that's right, as every such "
        "number cancels out, and there is nothing to rescale. But exp(89) is beyond the largest 32-bit number, and "
        "exp(-104) is 0: large scores give infinity divided by infinity, very low ones 0 divided by 0. The maximum is "
        "subtracted so that neither can happen.",
        MAXIMUM,
        (fixed_maximum(0.0), fixed_maximum(10.0), fixed_maximum(100.0)),
        ("https://github.com/HabanaAI/vllm-fork/issues/275",),
    ),
    Misconception(
        "maximum_falls",
        "The maximum is that of the newest block, and may be lower than the one before. The factor is then above 1, "
        "and beyond the largest number if the difference is large. The maximum to be subtracted is the highest of ALL "
        "blocks so far: it never falls.",
        MAXIMUM,
        (with_steps(raise_maximum=lambda largest, scores: scores.amax(dim=-1, keepdim=True)),),
    ),
    Misconception(
        "maximum_shared",
        "One maximum serves for all queries together. A query whose own scores lie far below it gets nothing but "
        "weights of 0, and 0 divided by 0. Each row has a maximum of its own.",
        MAXIMUM,
        (
            with_steps(
                raise_maximum=lambda largest, scores: torch.maximum(largest, scores.max()).amax().expand_as(largest)
            ),
        ),
    ),
    Misconception(
        "blocks_normalised_apart",
        "Each block has its weights divided by its own sum, and the blocks' outputs are put together afterwards. That "
        "gives every block the same say, however little its keys fit. A block counts for as much as its weights sum "
        "to, so the division comes last, once, by the sum over all blocks.",
        SOFTMAX,
        (by_parts(lambda parts: parts.mean(dim=0)), by_parts(lambda parts: parts.sum(dim=0))),
    ),
    Misconception(
        "last_block_alone",
        "What the earlier blocks gave is overwritten: the result is that of the last block alone. The sums have to go "
        "on from block to block.",
        SECTION,
        (by_parts(lambda parts: parts[-1]), with_steps(shrink=lambda before, largest: torch.zeros_like(largest))),
    ),
    Misconception(
        "last_block_dropped",
        "The keys left over at the end, too few for a whole block, are not read. A slice may reach beyond the end; "
        "the number of blocks has to be rounded up.",
        SECTION,
        (whole_blocks_alone,),
    ),
    Misconception(
        "divided_in_every_block",
        "The output is divided by the total in every block, and the next block adds to what is divided already. "
        "Divide once, at the end, or undo the division before you add.",
        SOFTMAX,
        (divided_in_every_block,),
    ),
    Misconception(
        "not_divided",
        "The weighted sum of the values is not divided by the sum of the weights, so that it is no mean.",
        SOFTMAX,
        (not_divided,),
    ),
    Misconception(
        "scaled_in_every_block",
        "The query is divided by the root of the width in every block anew, and so comes out ever smaller. Once, "
        "before the loop, is enough.",
        "self_attention#why-scale",
        (scaled_in_every_block,),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the width.",
        "self_attention#why-scale",
        (not_scaled,),
    ),
    Misconception(
        "all_at_once",
        "The result is right, but the scores of all keys are calculated together and held at once. Not to do that is "
        "what this function is for: at 100,000 tokens the table has 10 thousand million entries. The slip is in one "
        "line; the loop can stay.",
        SECTION,
        (all_at_once,),
    ),
)

EXERCISE = Exercise(
    name="attention_in_blocks",
    chapter="self_attention",
    kind="function",
    minutes=20,
    task="repair",
    parts=(
        Part(
            "blocks", 2, "give what attention to all keys at once gives, however the keys are cut into blocks", SECTION
        ),
        Part("large scores", 1, "stay finite where scores are far apart, far above 0 or far below", MAXIMUM),
        Part("memory", 1, "hold the scores of one block at a time", SECTION),
    ),
    hints=(
        "Take one query and blocks of 1. With the scores 3, 2, 1, 0 the result is right; with 0, 1, 2, 3 it is not. "
        "What has to happen in the second case that need not happen in the first?",
        "Print `shrink` in every round. What should it be when the highest score rises from 0 to 1, and what is it?",
        "Where the difference of two tensors is always 0, ask whether they are two. What does `before = largest` "
        "make, and what does `out=` do to it?",
    ),
    cases=cases,
    reference=attention_in_blocks,
    misconceptions=MISCONCEPTIONS,
)

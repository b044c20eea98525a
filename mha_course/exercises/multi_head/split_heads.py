"""Exercise: give each head its own slice of every token's features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import multi_head
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import REFUSALS, randn, sequence_first

SECTION = "multi_head#why-view-then-transpose"
MERGE, WIDTH = "multi_head#split-and-merge", "multi_head#width-must-divide"
CLEARER = (
    "One thing could be better: 10 features for 4 heads are refused by an error that does not say so. "
    "A ValueError that names both numbers tells at once."
)


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, heads, d_head in (
        (1, 2, 2, 3),
        (2, 3, 1, 5),
        (2, 3, 5, 7),
        (3, 11, 7, 2),
        (1, 13, 3, 1),
        (2, 3, 12, 2),
        (7, 2, 4, 3),
        (1, 2, 8, 2),
    ):
        x = numbered(batch, length, heads * d_head)
        yield Case("layout", describe(x, heads), (Call((x, heads)),), holds=(right_origin,))
    x = randn(rng, 5, 1, 6, dtype=torch.float64)
    yield Case("layout", describe(x, 3) + ", float64, one token", (Call((x, 3)),))
    x = randn(rng, 2, 3, 10)
    yield Case("layout", describe(x, 2) + ", with gradients", (Call((x, 2), backward=True),))
    x = sequence_first(numbered(2, 3, 10))
    yield Case("memory", describe(x, 2) + ", stored sequence first", (Call((x, 2)),))
    wide = numbered(3, 5, 28)[..., ::2]
    yield Case("memory", describe(wide, 7) + ", every second feature of a wider tensor", (Call((wide, 7)),))
    for width, heads in ((10, 4), (6, 5), (3, 7)):
        x = numbered(2, 3, width)
        yield Case("width", describe(x, heads), (Call((x, heads)),), expects_error=REFUSALS)
    x = numbered(2, 3, 10)
    yield Case("width", describe(x, 4), (Call((x, 4)),), expects_error=("ValueError",), advice=CLEARER)


def numbered(batch: int, length: int, width: int) -> Tensor:
    """Number the tokens in tens of thousands and their features in ones, so that every number tells its origin."""
    token = torch.arange(1, batch * length + 1, dtype=torch.float32).view(batch, length, 1)
    return token * 10_000 + torch.arange(width)


def describe(x: Tensor, heads: int) -> str:
    batch, length, width = x.shape
    return f"batch {batch}, length {length}, d_model {width}, {heads} head{'s' * (heads > 1)}"


def _misplaced(outputs: Sequence[Any]) -> str | None:
    result = outputs[0].long()
    batch, heads, length, d_head = result.shape
    if torch.equal(result, multi_head.split_heads(numbered(batch, length, heads * d_head), heads).long()):
        return None
    for b, head, row in product(range(batch), range(heads), range(length)):
        tokens, features = result[b, head, row] // 10_000 - 1, result[b, head, row] % 10_000
        wanted = list(range(head * d_head, (head + 1) * d_head))
        if (tokens != b * length + row).any() or features.tolist() != wanted:
            found = [
                (feature, f"{token % length}" + f" of example {token // length}" * (token // length != b))
                for feature, token in zip(features.tolist(), tokens.tolist(), strict=True)
            ]
            return (
                f"in example {b}, row {row} of head {head} should hold the features {wanted} of token {row}, but holds "
                + ", ".join(f"feature {feature} of token {token}" for feature, token in found)
            )
    return None


right_origin = Property(
    "Head h holds the h-th slice of neighbouring features of every token, one token a row.", _misplaced
)


# --- wrong answers -------------------------------------------------------------------------------------------------


def _sizes(x: Tensor, num_heads: int) -> tuple[int, int, int]:
    if x.size(-1) % num_heads:
        raise ValueError("num_heads must divide the width")
    return x.size(0), x.size(1), x.size(2) // num_heads


def no_transpose(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, num_heads, length, d_head)


def heads_last(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, d_head, num_heads).permute(0, 3, 1, 2)


def transposed_first(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.transpose(1, 2).reshape(batch, num_heads, length, d_head)


def chunks_in_front(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return torch.cat(x.chunk(num_heads, dim=-1), dim=0).reshape(batch, num_heads, length, d_head)


def sizes_exchanged(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, d_head, num_heads).transpose(1, 2)


def not_moved(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head)


def head_and_feature_swapped(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head).permute(0, 2, 3, 1)


def batch_and_head_swapped(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head).permute(2, 0, 1, 3)


def folded_into_batch(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.reshape(batch, length, num_heads, d_head).transpose(1, 2).reshape(batch * num_heads, length, d_head)


def viewed(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = _sizes(x, num_heads)
    return x.view(batch * length, num_heads, d_head).view(batch, length, num_heads, d_head).transpose(1, 2)


def features_dropped(x: Tensor, num_heads: int) -> Tensor:
    batch, length, d_head = x.size(0), x.size(1), x.size(2) // num_heads
    return x[..., : num_heads * d_head].reshape(batch, length, num_heads, d_head).transpose(1, 2)


MISCONCEPTIONS = (
    Misconception(
        "split_no_transpose",
        "The tensor is cut straight into the final shape. A reshape keeps the order in memory, where a token's "
        "features lie side by side: the numbers that follow one another then fill the rows of head 0 with pieces of "
        "several tokens. The shape is right, the content is not. The head axis must be made out of the feature axis "
        "first, and moved in a second step.",
        SECTION,
        (no_transpose,),
        (
            "https://github.com/reczoo/FuxiCTR/issues/30",
            "https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10",
            "https://github.com/hyunwoongko/transformer/issues/15",
        ),
    ),
    Misconception(
        "split_interleaved",
        "The feature axis is cut the wrong way round: into d_head groups of num_heads. Head h then gets every "
        "num_heads-th feature instead of a slice of neighbours. Such a model can still be trained, but it agrees with "
        "no other implementation, and pretrained weights come out wrong.",
        MERGE,
        (heads_last,),
    ),
    Misconception(
        "split_transpose_first",
        "Length and features change places before anything is cut. The reshape that follows cuts a row in which one "
        "feature of all tokens comes after another, so that features and tokens are mixed. Cut each token's features "
        "first, then move the head axis.",
        SECTION,
        (transposed_first,),
    ),
    Misconception(
        "split_chunks_in_front",
        "Each head's slice is cut out rightly, and the slices are then put one behind the other in front (cat along "
        "the batch, or stack along axis 0): head 0 of all examples, then head 1 of all. A reshape to (batch, head, …) "
        "reads the same memory as all heads of example 0 first. With one example it is the same; with more, a head of "
        "one example gets the tokens of another. The head axis has to stand behind the batch from the start.",
        SECTION,
        (chunks_in_front,),
        (
            "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/7",
        ),
    ),
    Misconception(
        "split_sizes_exchanged",
        "The number of heads and the width of a head have changed places: there are d_head heads of num_heads features.",
        MERGE,
        (sizes_exchanged,),
    ),
    Misconception(
        "split_axes_not_moved",
        "The features are shared out among the heads, but the head axis stays behind the length. A matrix product "
        "works on the last two axes: here it would compare the heads of one token with one another instead of the "
        "tokens within one head.",
        SECTION,
        (not_moved,),
    ),
    Misconception(
        "split_length_last",
        "The two last axes have changed places: each head holds its features as rows and the tokens as columns. That "
        "is what the keys look like after the transpose inside the product of queries and keys; the split leaves each "
        "token's features together in the last axis.",
        SECTION,
        (head_and_feature_swapped,),
    ),
    Misconception(
        "split_heads_first",
        "The head axis stands before the batch axis. Everything that follows, masks above all, counts on "
        "(batch, head, query, key).",
        "multi_head#shape-ledger",
        (batch_and_head_swapped,),
    ),
    Misconception(
        "split_folded_into_batch",
        "Batch and heads are folded into one axis. Older code does so for the sake of three-dimensional products; "
        "here the head keeps an axis of its own, so that a mask can broadcast over it.",
        "multi_head#shape-ledger",
        (folded_into_batch,),
    ),
    Misconception(
        "split_view_noncontiguous",
        "view only relabels memory that already lies in the right order, so it raises when the input is itself a "
        "transposed tensor (a sequence-first batch, say). reshape relabels where it can and copies where it must.",
        "multi_head#view-or-reshape",
        (viewed,),
        (
            "https://github.com/facebookresearch/fairseq/issues/2598",
            "https://github.com/NVIDIA/Megatron-LM/issues/875",
        ),
    ),
    Misconception(
        "split_drops_features",
        "Where num_heads does not divide the width, the features left over are dropped without a word. The learner of "
        "such a layer never finds out why some features have no effect; an error that names both numbers tells at once.",
        WIDTH,
        (features_dropped,),
    ),
)

EXERCISE = Exercise(
    name="split_heads",
    chapter="multi_head",
    kind="function",
    minutes=10,
    parts=(
        Part("layout", 1, "give head h the features h * d_head to (h + 1) * d_head - 1 of every token", SECTION),
        Part("memory", 1, "work however the input lies in memory", "multi_head#view-or-reshape"),
        Part("width", 1, "refuse a width that the heads cannot share out equally", WIDTH),
    ),
    hints=(
        "Write down x for two tokens of four features, and what each of two heads should get. Which numbers of x lie "
        "side by side in memory, and which should lie side by side in the result?",
        "It takes two steps: one turns the axis of d_model into two axes, the other moves an axis. Neither alone does it.",
        "First (batch, length, d_model) to (batch, length, num_heads, d_head); which two axes are now in the wrong "
        "order? And before all that: what if d_model % num_heads is not 0?",
    ),
    cases=cases,
    reference=multi_head.split_heads,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: put the heads' results side by side again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import multi_head
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.multi_head.split_heads import numbered
from mha_course.exercises.properties import randn

SECTION = "multi_head#split-and-merge"


def cases(rng: Generator) -> Iterator[Case]:
    for batch, heads, length, d_head in (
        (1, 2, 2, 3),
        (2, 1, 3, 5),
        (2, 5, 3, 7),
        (3, 7, 11, 2),
        (1, 3, 13, 1),
        (2, 12, 3, 2),
        (7, 4, 2, 3),
        (1, 8, 2, 2),
    ):
        x = multi_head.split_heads(numbered(batch, length, heads * d_head), heads)
        yield Case("layout", describe(x), (Call((x,)),), holds=(right_origin,))
        yield Case(
            "memory",
            describe(x) + ", fresh in memory",
            (Call((x.contiguous(),)),),
            holds=(right_origin,),
        )
    x = randn(rng, 5, 1, 3, 2, dtype=torch.float64).transpose(1, 2)
    yield Case("layout", describe(x) + ", float64, one token", (Call((x,)),))
    x = randn(rng, 2, 7, 3, 5).transpose(1, 2)
    yield Case("layout", describe(x) + ", with gradients", (Call((x,), backward=True),))
    x = randn(rng, 2, 3, 7, 10)[..., ::2]
    yield Case("memory", describe(x) + ", every second feature of a wider tensor", (Call((x,)),))


def describe(x: Tensor) -> str:
    batch, heads, length, d_head = x.shape
    return f"batch {batch}, {heads} head{'s' * (heads > 1)}, length {length}, d_head {d_head}"


def _misplaced(outputs: Sequence[Any]) -> str | None:
    result = outputs[0].long()
    batch, length, d_model = result.shape
    if torch.equal(result, numbered(batch, length, d_model).long()):
        return None
    for b, row in product(range(batch), range(length)):
        tokens, features = result[b, row] // 10_000 - 1 - b * length, result[b, row] % 10_000
        if (tokens != row).any():
            found = ", ".join(str(token) for token in sorted(set(tokens.tolist())))
            return f"in example {b}, the vector of token {row} is made of features of token {found}"
        if features.tolist() != list(range(d_model)):
            return (
                f"for token {row} you put the features in the order {features.tolist()}, "
                "numbered as they were before the split"
            )
    return None


right_origin = Property(
    "Each vector holds one token's features, those of head 0 first, then those of head 1.", _misplaced
)


# --- wrong answers -------------------------------------------------------------------------------------------------


def no_transpose(x: Tensor) -> Tensor:
    batch, heads, length, d_head = x.shape
    return x.reshape(batch, length, heads * d_head)


def viewed(x: Tensor) -> Tensor:
    batch, heads, length, d_head = x.shape
    return x.transpose(1, 2).view(batch, length, heads * d_head)


def interleaved(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).flatten(2)


def wrong_axes_swapped(x: Tensor) -> Tensor:
    batch, heads, length, d_head = x.shape
    return x.transpose(2, 3).reshape(batch, length, heads * d_head)


def heads_reversed(x: Tensor) -> Tensor:
    return x.flip(1).transpose(1, 2).flatten(2)


def summed(x: Tensor) -> Tensor:
    return x.sum(dim=1)


def averaged(x: Tensor) -> Tensor:
    return x.mean(dim=1)


def only_transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def result_squeezed(x: Tensor) -> Tensor:
    return multi_head.merge_heads(x).squeeze()


def heads_squeezed(x: Tensor) -> Tensor:
    return torch.cat([head.squeeze() for head in x.split(1, dim=1)], dim=-1)


def along_length(x: Tensor) -> Tensor:
    return torch.cat(x.unbind(dim=1), dim=1)


MISCONCEPTIONS = (
    Misconception(
        "merge_no_transpose",
        "The tensor is reshaped straight into the final shape. In memory, head 0 of all tokens comes before head 1 of "
        "any, so each vector of the result is filled from one head of several tokens. The shape is right and easy "
        "tasks still train, which is why this slip lives long. The head axis must first stand next to the features.",
        SECTION,
        (no_transpose,),
        (
            "https://github.com/jsbaan/transformer-from-scratch/pull/6",
            "https://github.com/ajhalthor/Transformer-Neural-Network/pull/4",
            "https://github.com/meta-pytorch/opacus/pull/825",
        ),
    ),
    Misconception(
        "merge_view_noncontiguous",
        "view straight after transpose works only if the heads were themselves a transposed view, as they are right "
        "after split_heads. The output of an attention is fresh in memory: there the transposed axes no longer lie in "
        "order, and view raises. reshape copies where it must; contiguous() before view does the same.",
        "multi_head#view-or-reshape",
        (viewed,),
        (
            "https://github.com/rasbt/LLMs-from-scratch/issues/61",
            "https://github.com/hyunwoongko/transformer/issues/21",
        ),
    ),
    Misconception(
        "merge_interleaved",
        "The heads are interleaved: first feature 0 of every head, then feature 1 of every head. The merge must undo "
        "what the split did, so each head's features stay together.",
        SECTION,
        (interleaved,),
    ),
    Misconception(
        "merge_wrong_axes",
        "Two axes are swapped, but not the right two: the length changed places with the features, where the heads "
        "should change places with the length.",
        SECTION,
        (wrong_axes_swapped,),
    ),
    Misconception(
        "merge_reversed",
        "The heads stand in reverse order. The output projection has learned which of its columns belong to which head.",
        SECTION,
        (heads_reversed,),
    ),
    Misconception(
        "merge_summed",
        "The heads are added up. Then nothing can tell any more what came from which head, and the width is d_head "
        "instead of d_model. The paper concatenates, and leaves it to the output projection to combine them.",
        "multi_head#output-projection",
        (summed,),
        ("https://github.com/TransformerLensOrg/TransformerLens/pull/666",),
    ),
    Misconception(
        "merge_averaged",
        "The heads are averaged. Then nothing can tell any more what came from which head, and the width is d_head "
        "instead of d_model. The paper concatenates, and leaves it to the output projection to combine them.",
        "multi_head#output-projection",
        (averaged,),
    ),
    Misconception(
        "merge_not_joined",
        "The head axis has been moved next to the features, but the two axes have not been joined into one.",
        SECTION,
        (only_transposed,),
    ),
    Misconception(
        "merge_along_length",
        "The heads are concatenated one behind the other along the length, as if they were further tokens. They belong "
        "side by side, in the feature axis: one vector a token.",
        SECTION,
        (along_length,),
    ),
    Misconception(
        "axes_squeezed",
        "Axes of size 1 have been taken away by squeeze() without an axis. It takes all of them: not only the head's, "
        "also the batch axis of a single example and the length of a single token. Name the axis that is to go.",
        "multi_head#shape-ledger",
        (heads_squeezed, result_squeezed),
        (
            "https://github.com/NVIDIA/DeepLearningExamples/pull/765",
            "https://github.com/mead-ml/mead-baseline/pull/703",
        ),
    ),
)

EXERCISE = Exercise(
    name="merge_heads",
    chapter="multi_head",
    kind="function",
    minutes=10,
    parts=(
        Part(
            "layout", 2, "undo split_heads: one vector a token, the heads' features side by side, head 0 first", SECTION
        ),
        Part("memory", 1, "work however the input lies in memory", "multi_head#view-or-reshape"),
    ),
    hints=(
        "Which axis has to stand next to the features before two axes can become one?",
        "Undo the two steps of split_heads in reverse order. What does PyTorch say about the memory of a transposed "
        "tensor, and which way of changing a shape does not mind?",
        "(batch, head, length, d_head) becomes (batch, length, head, d_head), and its last two axes become one of width "
        "head * d_head.",
    ),
    cases=cases,
    reference=multi_head.merge_heads,
    misconceptions=MISCONCEPTIONS,
)

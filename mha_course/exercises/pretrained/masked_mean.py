"""Exercise: one vector for each sentence, the mean of its real tokens' vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given
from mha_course.exercises.properties import randn, sequence_first, unchanged

SECTION, TOKENS = "pretrained#vectors-for-sentences", "pretrained#from-text-to-tokens"


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)


def cases(rng: Generator) -> Iterator[Case]:
    for label, batch, length, width, mask in (
        ("one sentence with padding", 1, 3, 2, _right([2], 3)),
        ("one sentence without padding", 1, 5, 2, _right([5], 5)),
        ("padding on the right", 2, 3, 5, _right([3, 1], 3)),
        ("padding on the left", 3, 7, 5, _right([7, 2, 3], 7).flip(1)),
        ("real tokens with padding between them", 2, 11, 3, _drawn(rng, 2, 11)),
        ("one token each", 5, 1, 3, _right([1] * 5, 1)),
        ("as many sentences as features", 5, 3, 5, _right([3, 1, 2, 3, 1], 3)),
        ("as many tokens as features", 2, 7, 7, _right([7, 4], 7)),
        ("as many sentences as tokens", 3, 3, 2, _right([3, 1, 2], 3)),
    ):
        x = randn(rng, batch, length, width)
        yield Case("mean", _text(x, label), (Call((x, mask)),))
    yield from _padding_cases(rng)
    x, mask = randn(rng, 3, 5, 2), _right([5, 0, 2], 5)
    yield Case("nothing", _text(x, "the second sentence is all padding"), (Call((x, mask)),))
    yield Case("nothing", _text(x, "the second all padding, with gradients"), (Call((x, mask), backward=True),))
    half = randn(rng, 3, 5, 2, dtype=torch.float16)
    label = _text(half, "the second all padding, the type float16")
    yield Case("nothing", label, (Call((half, mask)),), through=given(of_any_type), tolerance=4e-3)
    x, mask = randn(rng, 2, 7, 3), _right([7, 4], 7)
    yield Case("gradients", _text(x, "with gradients"), (Call((x, mask), backward=True),))
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float16, 4e-3)):
        x = randn(rng, 2, 7, 3, dtype=dtype)
        label = _text(x, f"the type {str(dtype).removeprefix('torch.')}")
        yield Case("types", label, (Call((x, mask)),), tolerance=tolerance)


def of_any_type(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let the result have any type: whether it keeps that of x is asked elsewhere."""
    return lambda x, mask: pool(x, mask).float()


def _padding_cases(rng: Generator) -> Iterator[Case]:
    x, mask = randn(rng, 2, 5, 3), _right([5, 2], 5)
    other = torch.where(mask[:, :, None], x, randn(rng, 2, 5, 3, scale=30.0))
    alone = "A sentence's vector is the same whatever stands at its padding places."
    yield Case(
        "mean",
        _text(x, "then with other vectors at the padding places"),
        (Call((x, mask)), Call((other, mask))),
        holds=(unchanged(alone, "when only vectors at padding places were changed, the result moved by {change}"),),
    )
    longer = torch.cat([x, randn(rng, 2, 2, 3)], dim=1)
    yield Case(
        "mean",
        _text(x, "then with two more places of padding"),
        (Call((x, mask)), Call((longer, F.pad(mask, (0, 2))))),
        holds=(
            unchanged(
                "A sentence's vector is the same however long its neighbours in the batch are.",
                "with two more places of padding the result moved by {change}",
            ),
        ),
    )
    other = torch.cat([x[:1], randn(rng, 1, 5, 3)])
    yield Case(
        "mean",
        _text(x, "then with another second sentence"),
        (Call((x, mask)), Call((other, mask))),
        holds=(
            unchanged(
                "The sentences of a batch do not affect one another.",
                "when only the second sentence was changed, the first one's vector moved by {change}",
                where=0,
            ),
        ),
    )
    x = sequence_first(randn(rng, 3, 5, 2))
    yield Case("mean", _text(x, "stored sequence first"), (Call((x, _right([5, 1, 2], 5))),))


def _right(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def _drawn(rng: Generator, batch: int, length: int) -> Tensor:
    mask = torch.rand(batch, length, generator=rng) < 0.5
    mask[:, 1], mask[:, 2], mask[:, 4] = True, False, True
    return mask


def _text(x: Tensor, label: str) -> str:
    batch, length, d_model = x.shape
    return f"batch {batch}, length {length}, d_model {d_model}, {label}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def _pooled(sums: Callable[[Tensor, Tensor], Tensor], count: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Make an answer out of what is summed over the tokens, and what the sum is divided by."""
    return lambda x, mask: sums(x, mask[:, :, None].to(x.dtype)).sum(dim=1) / count(mask[:, :, None].to(x.dtype))


def _real(x: Tensor, keep: Tensor) -> Tensor:
    return x * keep


def _number(keep: Tensor) -> Tensor:
    return keep.sum(dim=1).clamp(min=1)


def plain_mean(x: Tensor, mask: Tensor) -> Tensor:
    return x.mean(dim=1)


def mixed_batch(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].mean(dim=0)


def mixed_batch_repeated(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].mean(dim=0).expand(x.size(0), -1)


def over_features(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[:, :, None]).mean(dim=-1)


def over_batch(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=0) / keep.sum(dim=0).clamp(min=1)


def count_without_axis(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[:, :, None]).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def first_places(x: Tensor, mask: Tensor) -> Tensor:
    rows = [x[i, : int(n)].sum(dim=0) / n.clamp(min=1) for i, n in enumerate(mask.sum(dim=1))]
    return torch.stack(rows)


def without_marks(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask.clone()
    for i, row in enumerate(mask):
        real = row.nonzero()[:, 0]
        keep[i, real[:1]] = keep[i, real[-1:]] = False
    return masked_mean(x, keep)


def without_first(x: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(x[:, 1:], mask[:, 1:])


def unit_length(x: Tensor, mask: Tensor) -> Tensor:
    return F.normalize(masked_mean(x, mask), dim=-1)


def axis_kept(x: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(x, mask)[:, None]


def divided_by_nothing(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=1) / keep.sum(dim=1)


def loop_of_means(x: Tensor, mask: Tensor) -> Tensor:
    return torch.stack([row[real].mean(dim=0) for row, real in zip(x, mask, strict=True)])


def divided_by_almost_nothing(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1e-9)


def nan_to_zero(x: Tensor, mask: Tensor) -> Tensor:
    return divided_by_nothing(x, mask).nan_to_num()


def padding_zeroed_in_place(x: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        x[~mask] = 0
    return masked_mean(x, mask)


def largest(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1)


def softmaxed(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask.to(x.dtype).softmax(dim=1)[:, :, None]).sum(dim=1)


def in_float32(x: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(x.float(), mask)


def mask_as_float32(x: Tensor, mask: Tensor) -> Tensor:
    keep = mask[:, :, None].float()
    return (x * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)


def detached(x: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(x.detach(), mask)


MISCONCEPTIONS = (
    Misconception(
        "padding_in_the_mean",
        "The mean is taken over all places, padding included. Padding places have vectors too, and not zeros: every layer "
        "computes something for them. So the vector of a short sentence depends on how long its neighbours in the batch "
        "are, and the same sentence embedded alone comes out otherwise.",
        SECTION,
        (plain_mean,),
        (
            "https://github.com/huggingface/transformers/issues/17463",
            "https://github.com/jsboige/CoursIA/issues/15045",
            "https://github.com/microsoft/SDR/issues/10",
            "https://github.com/dbiir/UER-py/pull/190",
        ),
    ),
    Misconception(
        "divided_by_padded_length",
        "What is summed is right: padding adds nothing. But the sum is divided by the length of the padded batch, not by the "
        "number of this sentence's real tokens. Every padding place then makes the vector a little shorter. Where the result is "
        "scaled to length 1 afterwards, nobody notices; everywhere else it's wrong.",
        SECTION,
        (_pooled(_real, lambda keep: torch.tensor(float(keep.size(1)))),),
        ("https://github.com/brightmart/text_classification/issues/40",),
    ),
    Misconception(
        "divided_by_the_whole_mask",
        "The sum is divided by the number of real tokens in the *whole batch*: mask.sum() without an axis adds up everything. "
        "Each sentence has a count of its own.",
        SECTION,
        (_pooled(_real, lambda keep: keep.sum().clamp(min=1)),),
        ("https://github.com/SeanLee97/AnglE/issues/101",),
    ),
    Misconception(
        "sum_in_place_of_mean",
        "The real tokens' vectors are added up and not divided by how many there are. Longer sentences get longer "
        "vectors, and a dot product then prefers them.",
        SECTION,
        (_pooled(_real, lambda keep: torch.ones(())),),
    ),
    Misconception(
        "divided_by_root",
        "The sum is divided by the root of the number of real tokens. That too is used somewhere, but it's no mean: a "
        "sentence of four equal tokens gets a vector twice as long as each of them.",
        SECTION,
        (_pooled(_real, lambda keep: _number(keep).sqrt()),),
    ),
    Misconception(
        "mask_inverted",
        "This is the mean of the *padding*. In this mask True stands on real tokens.",
        SECTION,
        (_pooled(lambda x, keep: x * (1 - keep), lambda keep: _number(1 - keep)),),
    ),
    Misconception(
        "mask_in_the_count_only",
        "The count is that of the real tokens, but the sum runs over all places: padding is still added in.",
        SECTION,
        (_pooled(lambda x, keep: x, _number),),
    ),
    Misconception(
        "batch_mixed",
        "x[mask] puts the real tokens of *all* sentences into one long list, and which token came from which sentence is "
        "lost. The mean of that list is the mean of the whole batch.",
        SECTION,
        (mixed_batch, mixed_batch_repeated),
    ),
    Misconception(
        "wrong_axis",
        "The sum runs along the wrong axis. x is (batch, length, d_model); a sentence's tokens lie along the length, and the "
        "batch and the features have to stay.",
        SECTION,
        (over_features, over_batch),
    ),
    Misconception(
        "count_without_axis",
        "The count has the shape (batch,), and the sum (batch, d_model). Broadcasting lines axes up from the end, so sentence "
        "b's count would divide feature b: an error for most sizes, and silently wrong where there are as many sentences "
        "as features. The count needs an axis of size 1 for the features.",
        SECTION,
        (count_without_axis,),
    ),
    Misconception(
        "padding_taken_to_be_last",
        "The real tokens are counted, and that many are taken from the left. That holds while padding stands on the "
        "right. The mask says *where* the real tokens are; use it, and the side doesn't matter.",
        TOKENS,
        (first_places,),
        ("https://github.com/huggingface/peft/pull/3629",),
    ),
    Misconception(
        "marks_left_out",
        "The first real token, or the first and the last, are left out of the mean: [CLS] and [SEP], probably. This model was "
        "trained with them in the mean, and other vectors are other vectors. Besides, nothing says that the first "
        "token of what comes here is a mark.",
        SECTION,
        (without_marks, without_first),
    ),
    Misconception(
        "scaled_to_length_1",
        "The mean is scaled to length 1. That is the next step on the way to a sentence's vector, and a step of its own: a "
        "function named masked_mean returns the mean.",
        SECTION,
        (unit_length,),
    ),
    Misconception(
        "maximum_in_place_of_mean",
        "This takes each feature's largest value. It's another kind of pooling; asked for is the mean.",
        SECTION,
        (largest,),
    ),
    Misconception(
        "softmax_of_the_mask",
        "The mask went through softmax, as scores would. exp(0) is 1, so padding keeps a weight, only smaller by the "
        "factor e = 2.7 than that of a real token.",
        "pretrained#the-mask-on-its-way",
        (softmaxed,),
    ),
    Misconception(
        "length_axis_kept",
        "The result still has an axis for the length, of size 1. One vector a sentence has two axes: (batch, d_model).",
        SECTION,
        (axis_kept,),
    ),
    Misconception(
        "input_changed",
        "The vectors at padding places are set to 0 in the caller's own tensor. The mean comes out right, and whoever uses x "
        "afterwards finds it changed. Make a new tensor: a product with the mask is one.",
        SECTION,
        (padding_zeroed_in_place,),
    ),
    Misconception(
        "no_tokens_nan",
        "A sentence without real tokens gets NaN, which is 0 divided by 0. In a search a single such row is enough: every "
        "comparison with NaN is false, and the mean of all results is NaN. Here such a sentence gets zeros.",
        SECTION,
        (divided_by_nothing, loop_of_means),
    ),
    Misconception(
        "too_small_for_float16",
        "What keeps the division from being one by 0 is too small a number: 1e-9, say. In float16 the smallest number above "
        "0 is 6e-8, so it *is* 0 there, and a sentence without real tokens gets 0 / 0 = NaN. In float32 all seems well. "
        "Think of what is divided by: it's a count.",
        "self_attention#half-precision",
        (divided_by_almost_nothing,),
    ),
    Misconception(
        "no_tokens_nan_gradient",
        "The NaN of a sentence without real tokens is replaced by 0 after the division. The result is right, but the division "
        "by 0 has happened all the same, and in the backward pass it gives its NaN to the gradient. Divide by "
        "something that is never 0.",
        "self_attention#a-query-that-sees-nothing",
        (nan_to_zero,),
    ),
    Misconception(
        "gradient_cut",
        "The result is right, but no gradient comes back to x: it was cut off by .detach(), .data, torch.tensor(...) or a "
        "detour over NumPy. Nothing below could be trained with such a mean.",
        "self_attention#gradients",
        (detached,),
    ),
    Misconception(
        "type_changed",
        "The result has another type than x. A mask made into float32 pulls a half-precision x up with it, and a float32 "
        "computation loses digits of a float64 x. Give the mask the type of x: mask.to(x.dtype).",
        "pretrained#vectors-for-sentences",
        (in_float32, mask_as_float32),
    ),
)

EXERCISE = Exercise(
    name="masked_mean",
    chapter="pretrained",
    kind="function",
    minutes=10,
    parts=(
        Part("mean", 1.5, "return for each sentence the mean of its real tokens' vectors", SECTION),
        Part("nothing", 0.5, "give zeros, with finite gradients, to a sentence without real tokens", SECTION),
        Part("gradients", 0.5, "let the right gradients reach x", "self_attention#gradients"),
        Part("types", 0.5, "keep the type of x", SECTION),
    ),
    hints=(
        "A mean is a sum divided by a count. Which of the two must leave padding out?",
        "A product with 1 or 0 keeps a vector or makes it zeros. Which shape must the mask have for that, next to (batch, "
        "length, d_model)?",
        "Give the mask a third axis and the type of x; multiply; sum along the length; divide by the mask's own sum along "
        "the length, which must not be 0.",
    ),
    cases=cases,
    reference=masked_mean,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: turn scores into weights that are positive and sum to 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import soft_addressing
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, unchanged

SECTION, WHY = "soft_addressing#why-softmax", "soft_addressing#why-the-exponential"
AXIS, MAXIMUM = "soft_addressing#which-axis", "soft_addressing#why-subtract-the-maximum"
HARD, SLOPES = "soft_addressing#soft-against-hard-maximum", "soft_addressing#saturation"


def cases(rng: Generator) -> Iterator[Case]:
    for label, shape, dim in (
        ("", (3,), 0),
        ("", (2, 3), 1),
        ("", (2, 3), 0),
        ("as many rows as columns", (3, 3), 1),
        ("as many rows as columns", (3, 3), 0),
        ("", (2, 5, 3), -1),
        ("", (2, 5, 3), 1),
        ("", (2, 5, 3), -3),
        ("all sizes equal", (3, 3, 3), 1),
        ("one score in each row", (5, 1), 1),
    ):
        x = randn(rng, *shape, scale=1.5)
        yield _case("shares", x, dim, label, holds=(shares_of_one(dim),))
    x = -randn(rng, 2, 3).abs()
    yield _case("shares", x, -1, "all scores negative", holds=(shares_of_one(-1),))
    x = randn(rng, 3, 2, scale=1.5).t()
    yield _case("shares", x, 1, "itself a transposed tensor", holds=(shares_of_one(1),))
    x = randn(rng, 2, 3)
    yield Case(
        "shares",
        f"{describe(x, 1)}, then with the number 2 added to every score",
        (Call((x, 1)), Call((x + 2.0, 1))),
        holds=(
            unchanged(
                "Only the differences between scores count.",
                "with the same number added to every score the weights moved by {change}",
            ),
        ),
    )
    other = torch.cat([x[:1], randn(rng, 1, 3)])
    yield Case(
        "shares",
        f"{describe(x, 1)}, then with another second row",
        (Call((x, 1)), Call((other, 1))),
        holds=(
            unchanged(
                "Each row shares out its own 1, whatever stands in the others.",
                "when only the second row was changed, the weights of the first moved by {change}",
                where=0,
            ),
        ),
    )
    yield from _extreme_cases(rng)
    for shape, dim in (((3,), 0), ((2, 5), 1), ((2, 5), 0)):
        x = randn(rng, *shape)
        yield Case("gradients", describe(x, dim) + ", with gradients", (Call((x, dim), backward=True),))


def _extreme_cases(rng: Generator) -> Iterator[Case]:
    x = torch.tensor([1000.0, 999.0, 998.0])
    yield _case("extremes", x, 0, "scores 1000, 999 and 998", holds=(shares_of_one(0),))
    yield _case("extremes", x.neg(), 0, "scores -1000, -999 and -998", holds=(shares_of_one(0),))
    for dim, part in ((1, "row"), (0, "column")):
        x = randn(rng, 2, 3) if dim else randn(rng, 3, 2)
        x = x + torch.tensor([1000.0, -1000.0]).unsqueeze(dim)
        label = f"scores near 1000 in one {part} and near -1000 in the other"
        yield _case("extremes", x, dim, label, holds=(shares_of_one(dim),))
    x = randn(rng, 5, 7, scale=200.0)
    yield _case("extremes", x, 1, "scores in the hundreds, of both signs", holds=(shares_of_one(1),))
    for dim in (1, 0):
        x = randn(rng, 3, 5)
        x[0, 1] = x[2, 1] = x[2, 4] = -math.inf
        yield _case("extremes", x, dim, "some scores -inf, which asks for the weight 0", holds=(shares_of_one(dim),))
    x = (randn(rng, 3, 5) + 20).half()
    yield _case("extremes", x, 1, "float16, scores near 20", tolerance=1.5e-2)
    x = randn(rng, 3, 5, dtype=torch.float64)
    yield _case("extremes", x, 0, "float64", tolerance=1e-9)


def _case(
    part: str, x: Tensor, dim: int, label: str, holds: tuple[Property, ...] = (), tolerance: float = 1e-4
) -> Case:
    return Case(
        part, describe(x, dim) + f", {label}" * bool(label), (Call((x, dim)),), holds=holds, tolerance=tolerance
    )


def describe(x: Tensor, dim: int) -> str:
    return f"scores of shape {tuple(x.shape)}, dim={dim}"


def shares_of_one(dim: int) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        weights = outputs[0].double()
        if (weights < 0).any():
            return f"one of your weights is {weights.min():.3g}"
        sums = weights.sum(dim=dim).flatten()
        worst = float(sums[(sums - 1).abs().nan_to_num(math.inf).argmax()])
        return None if abs(worst - 1) < 1e-3 else f"along dim={dim} some of yours sum to {worst:.3g}"

    return Property("Weights are positive, and sum to 1 along the axis dim.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def share(
    shift: Callable[[Tensor, int], Tensor] | None = None,
    raised: Callable[[Tensor], Tensor] = torch.exp,
    total: Callable[[Tensor, int], Tensor] | None = None,
    axis: Callable[[int], int] = lambda dim: dim,
) -> Callable[[Tensor, int], Tensor]:
    """Build a softmax out of its steps; each is right unless another is given."""

    def softmax(x: Tensor, dim: int) -> Tensor:
        dim = axis(dim)
        parts = raised(x - (shift or largest)(x, dim))
        return parts / (total or kept_sum)(parts, dim)

    return softmax


def largest(x: Tensor, dim: int) -> Tensor:
    return x.amax(dim=dim, keepdim=True)


def kept_sum(x: Tensor, dim: int) -> Tensor:
    return x.sum(dim=dim, keepdim=True)


def nothing(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x)


def nan_patched(x: Tensor, dim: int) -> Tensor:
    return share(nothing)(x, dim).nan_to_num(0.0)


def clamped(x: Tensor, dim: int) -> Tensor:
    return share(nothing)(x.clamp(-50.0, 50.0), dim)


def scores_as_shares(x: Tensor, dim: int) -> Tensor:
    return x / kept_sum(x, dim)


def sum_of_the_scores(x: Tensor, dim: int) -> Tensor:
    return x.exp() / kept_sum(x, dim)


def never_divided(x: Tensor, dim: int) -> Tensor:
    return (x - largest(x, dim)).exp()


def one_hot(x: Tensor, dim: int) -> Tensor:
    return (x == largest(x, dim)).to(x.dtype)


def in_float32(x: Tensor, dim: int) -> Tensor:
    return share()(x.float(), dim).to(x.dtype)


def in_place(x: Tensor, dim: int) -> Tensor:
    x -= largest(x, dim)
    return share()(x, dim)


def index_only(x: Tensor, dim: int) -> Tensor:
    return x.argmax(dim=dim)


MISCONCEPTIONS = (
    Misconception(
        "softmax_no_max",
        "The exponential is taken of the scores as they are. It passes the largest number that the computer holds at "
        "e^88.7 (at e^11.1 in float16); beyond stands infinity, and infinity divided by infinity is not a number. Very "
        "negative scores come out as 0, and a row of them as 0 divided by 0. Since only differences between scores "
        "count, they may all be moved first, to where exp is safe.",
        MAXIMUM,
        (share(nothing),),
        (
            "https://github.com/pyg-team/pytorch_geometric/issues/53",
            "https://github.com/deeplearning4j/deeplearning4j-examples/issues/730",
            "https://github.com/uTensor/uTensor/issues/175",
        ),
    ),
    Misconception(
        "softmax_global_max",
        "The number subtracted is the largest of the whole tensor. That stops the overflow, but a row whose scores all "
        "lie far below that number is pushed down so far that every exp in it is 0, and 0 divided by 0 is not a "
        "number. Each row has to be moved by a number of its own.",
        MAXIMUM,
        (share(lambda x, dim: x.max()),),
        ("https://github.com/apache/singa/pull/540",),
    ),
    Misconception(
        "softmax_max_at_least_zero",
        "What is subtracted never falls below 0: the search for the largest score starts at 0 instead of at the first "
        "score. Rows of very negative scores are then not moved at all, every exp in them is 0, and 0 divided by 0 is "
        "not a number.",
        MAXIMUM,
        (share(lambda x, dim: largest(x, dim).clamp(min=0.0)),),
        ("https://github.com/FluxML/NNlib.jl/pull/43",),
    ),
    Misconception(
        "softmax_wrong_shift",
        "Something else than the largest score is subtracted, the mean or the smallest, say. Any number leaves the "
        "weights as they are, so ordinary scores come out right. But only after the largest is subtracted is no score "
        "above 0, and that is what keeps exp from overflowing. A score of -inf shows it too: it is the smallest, and "
        "makes the mean -inf.",
        MAXIMUM,
        (share(lambda x, dim: x.mean(dim=dim, keepdim=True)), share(lambda x, dim: x.amin(dim=dim, keepdim=True))),
    ),
    Misconception(
        "softmax_scores_clamped",
        "Scores beyond some bound are cut off. That keeps exp finite, but makes unequal scores equal: 1000 and 999 get "
        "the same weight, where the first should get 2.7 times that of the second. (And in float16 exp overflows at 11 "
        "already.)",
        MAXIMUM,
        (clamped, lambda x, dim: share()(x.clamp(-50.0, 50.0), dim)),
    ),
    Misconception(
        "softmax_nan_patched",
        "NaN is replaced after it has arisen. It arose where a score was so large that exp overflowed: the score that "
        "should get nearly all the weight gets 0. The overflow itself must not happen.",
        MAXIMUM,
        (nan_patched,),
        ("https://github.com/open-edge-platform/geti/pull/1507",),
    ),
    Misconception(
        "softmax_dim_ignored",
        "The axis is a fixed one, whatever dim says. With that axis all is well; with any other, the weights sum to 1 "
        "along the wrong one, and nothing complains, since the shape is right.",
        AXIS,
        (share(axis=lambda dim: -1), share(axis=lambda dim: 0), share(axis=lambda dim: 1)),
        (
            "https://github.com/paiml/aprender/pull/2152",
            "https://github.com/JuliaGPU/CUDA.jl/issues/599",
        ),
    ),
    Misconception(
        "softmax_sum_of_everything",
        "The exponentials are divided by the sum of all of them, over the whole tensor. With one row that is the same; "
        "with several, all rows together share a single 1. Each row should share out a 1 of its own.",
        AXIS,
        (share(total=lambda x, dim: x.sum()), share(nothing, total=lambda x, dim: x.sum())),
        (
            "https://github.com/uTensor/uTensor/pull/171",
            "https://github.com/rickwierenga/MLFundamentals/issues/1",
        ),
    ),
    Misconception(
        "softmax_keepdim_missing",
        "A sum (or maximum) along an axis loses that axis, unless it is told to keep it. Broadcasting lines shapes up "
        "from the right, so the sums of the rows then meet the columns: an error for most shapes, and with as many rows "
        "as columns wrong numbers and no error.",
        AXIS,
        (
            share(total=lambda x, dim: x.sum(dim=dim)),
            share(lambda x, dim: x.amax(dim=dim)),
            share(lambda x, dim: x.amax(dim=dim), total=lambda x, dim: x.sum(dim=dim)),
            share(nothing, total=lambda x, dim: x.sum(dim=dim)),
        ),
        (
            "https://github.com/triton-lang/triton/issues/11406",
            "https://github.com/sahandsafizadeh/qeep/pull/29",
        ),
    ),
    Misconception(
        "softmax_without_exponential",
        "The scores themselves are shared out, without the exponential. Scores may be negative: then so are the "
        "weights, and where they sum to 0 there is a division by 0. The exponential is positive everywhere and keeps "
        "the order.",
        WHY,
        (scores_as_shares, lambda x, dim: x.abs() / kept_sum(x.abs(), dim)),
    ),
    Misconception(
        "softmax_sum_of_the_scores",
        "The exponentials are divided by the sum of the scores. Shares sum to 1 only when each part is divided by the "
        "sum of these same parts: the sum of the exponentials.",
        SECTION,
        (sum_of_the_scores,),
        ("https://github.com/keras-team/keras-io/pull/320",),
    ),
    Misconception(
        "softmax_never_divided",
        "The exponentials are returned as they are. To be shares, they have to be divided by their sum along dim.",
        SECTION,
        (never_divided, lambda x, dim: x.exp()),
    ),
    Misconception(
        "softmax_sigmoid",
        "Each score is squeezed into the range from 0 to 1 on its own (a sigmoid). Such numbers do not sum to 1: "
        "nothing makes one entry lose what another gains.",
        SECTION,
        (lambda x, dim: x.sigmoid(),),
    ),
    Misconception(
        "softmax_hard",
        "The largest score gets everything. That is the hard maximum, which softmax only comes close to when the "
        "differences are large; in between it shares, and this is where its slope comes from.",
        HARD,
        (one_hot,),
    ),
    Misconception(
        "softmax_index",
        "What is returned is the place of the largest score. Softmax returns a weight for each score, in the shape of x.",
        HARD,
        (index_only,),
    ),
    Misconception(
        "softmax_logarithm",
        "What is returned is the logarithm of the weights, as log_softmax gives it: numbers of 0 and below. Here the "
        "weights themselves are wanted.",
        SECTION,
        (lambda x, dim: x.log_softmax(dim),),
        ("https://github.com/IINemo/lm-polygraph/pull/157",),
    ),
    Misconception(
        "softmax_twice",
        "Softmax is applied to what is already a softmax. The weights still sum to 1, but they have become nearly even, "
        "since the scores of the second time all lie between 0 and 1.",
        SECTION,
        (lambda x, dim: x.softmax(dim).softmax(dim),),
        ("https://github.com/runame/laplace-redux/pull/1",),
    ),
    Misconception(
        "softmax_other_base",
        "Another base than e is raised to the scores. It is a softmax at another temperature, with the right sum and "
        "the right order. But one point more must be e = 2.718 times the weight, or no two libraries would agree.",
        WHY,
        (share(raised=torch.exp2),),
    ),
    Misconception(
        "softmax_in_float32",
        "Everything is computed in float32, whatever comes in. For half precision that helps. But numbers in float64 lose "
        "half of their digits on the way, and are then stored as if they still had them.",
        MAXIMUM,
        (in_float32,),
    ),
    Misconception(
        "softmax_in_place",
        "The largest score is subtracted in place (-=), which changes the caller's own tensor: whoever uses the scores "
        "afterwards gets others.",
        MAXIMUM,
        (in_place,),
    ),
    Misconception(
        "softmax_detached",
        "The weights are right to the last bit, but no gradient flows back through them: they have been rebuilt from "
        "raw data (.data, .detach(), .numpy(), torch.tensor(...)). Nothing before this step would ever learn.",
        SLOPES,
        (lambda x, dim: share()(x.detach(), dim),),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
)

EXERCISE = Exercise(
    name="softmax",
    chapter="soft_addressing",
    kind="function",
    minutes=10,
    parts=(
        Part("shares", 2, "return positive weights that sum to 1 along the axis dim, whatever axes there are", SECTION),
        Part(
            "extremes",
            1,
            "be right for scores of any size and precision, and give the weight 0 to a score of -inf",
            MAXIMUM,
        ),
        Part("gradients", 1, "pass the right gradients to the scores", SLOPES),
    ),
    hints=(
        "Write down the scores 2, 1 and -1. What do you do to each of them, and what do you divide by? With two rows of "
        "three scores: how many sums are there, and what shape must they have so that each row meets its own?",
        "e to the score, over the sum of these along dim. Most of PyTorch's functions that sum or search along an axis "
        "can keep it, with size 1. And what happens to e to the 1000?",
        "Three steps: take from each score the largest one along dim; exp; divide by the sum along dim. Both the largest "
        "and the sum need keepdim=True.",
    ),
    cases=cases,
    reference=soft_addressing.softmax,
    misconceptions=MISCONCEPTIONS,
)

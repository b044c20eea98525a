"""Exercise: write a test that tells right implementations of softmax from wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given

SECTION, WHY = "soft_addressing#why-softmax", "soft_addressing#why-the-exponential"
AXIS, MAXIMUM = "soft_addressing#which-axis", "soft_addressing#why-subtract-the-maximum"
SLOPES = "soft_addressing#saturation"
Softmax = Callable[[Tensor, int], Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for label, implementation in (
        ("less the maximum, exp, over the sum", textbook),
        ("PyTorch's own", built_in),
        ("written with logsumexp", by_logsumexp),
        ("that computes in float64 and rounds at the end", in_float64),
        ("with a loop over the slices", by_loop),
    ):
        yield Case(
            "right and wrong", f"a right implementation, {label}", (Call((given(implementation),)),), accepts=True
        )
    for part, when, implementations in (
        (
            "right and wrong",
            "goes wrong on nearly every input",
            (zeros, scores_as_they_are, without_exponential, never_divided, sigmoid, one_hot, logarithm, total),
        ),
        (
            "numbers",
            "returns positive numbers that sum to 1, but not those of softmax",
            (even_shares, squares_of_one_more, base_two, two_degrees, twice, some_to_all),
        ),
        ("axes", "goes wrong only along another axis than the last", (always_the_last,)),
        ("axes", "goes wrong only along another axis than the first", (always_the_first, without_keepdim)),
        ("axes", "goes wrong only with more than one row", (over_everything,)),
        ("axes", "goes wrong only where dim is negative and not -1", (last_if_negative,)),
        ("axes", "goes wrong only with three axes", (two_axes_at_most,)),
        ("extremes", "goes wrong only with large scores", (no_maximum, clamped)),
        ("extremes", "goes wrong only where the scores of a row lie hundreds apart", (less_the_mean,)),
        (
            "extremes",
            "goes wrong only where scores are large in one row and very negative in another",
            (global_maximum,),
        ),
        ("extremes", "goes wrong only where all scores of a row are very negative", (maximum_at_least_zero,)),
        ("extremes", "goes wrong only with a score of -inf", (infinity_as_zero,)),
        ("what is left", "changes the tensor that it was given", (shifts_in_place, overwrites)),
        ("what is left", "lets no gradient through", (detached,)),
    ):
        for implementation in implementations:
            helpers = () if implementation in STANDING_ALONE else (textbook,)
            yield Case(
                part, f"an implementation that {when}", (Call((given(implementation, *helpers),)),), accepts=False
            )


# --- right implementations -----------------------------------------------------------------------------------------


def textbook(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.amax(dim=dim, keepdim=True)).exp()
    return parts / parts.sum(dim=dim, keepdim=True)


def built_in(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim=dim)


def by_logsumexp(x: Tensor, dim: int) -> Tensor:
    y = x - x.amax(dim=dim, keepdim=True)
    return (y - y.logsumexp(dim=dim, keepdim=True)).exp()


def in_float64(x: Tensor, dim: int) -> Tensor:
    y = x.double()
    parts = torch.exp(y - y.amax(dim=dim, keepdim=True))
    return (parts / parts.sum(dim=dim, keepdim=True)).to(x.dtype)


def by_loop(x: Tensor, dim: int) -> Tensor:
    slices = x.unbind(dim=dim)
    largest = torch.stack(slices).max(dim=0).values
    raised = [torch.exp(one - largest) for one in slices]
    total = sum(raised, start=torch.zeros_like(largest))
    return torch.stack([one / total for one in raised], dim=dim)


# --- wrong implementations -----------------------------------------------------------------------------------------


def zeros(x: Tensor, dim: int) -> Tensor:
    return x * 0.0


def scores_as_they_are(x: Tensor, dim: int) -> Tensor:
    return x.clone()


def without_exponential(x: Tensor, dim: int) -> Tensor:
    return x / x.sum(dim=dim, keepdim=True)


def never_divided(x: Tensor, dim: int) -> Tensor:
    return (x - x.amax(dim=dim, keepdim=True)).exp()


def sigmoid(x: Tensor, dim: int) -> Tensor:
    return x.sigmoid()


def one_hot(x: Tensor, dim: int) -> Tensor:
    return (x == x.amax(dim=dim, keepdim=True)).to(x.dtype)


def logarithm(x: Tensor, dim: int) -> Tensor:
    return x.log_softmax(dim=dim)


def total(x: Tensor, dim: int) -> Tensor:
    return textbook(x, dim).sum(dim=dim)


def base_two(x: Tensor, dim: int) -> Tensor:
    return textbook(x * math.log(2.0), dim)


def twice(x: Tensor, dim: int) -> Tensor:
    return textbook(textbook(x, dim), dim)


def two_degrees(x: Tensor, dim: int) -> Tensor:
    return textbook(x / 2, dim)


def squares_of_one_more(x: Tensor, dim: int) -> Tensor:
    y = x - x.amax(dim=dim, keepdim=True)
    parts = 1 / (1 - y).square()
    return parts / parts.sum(dim=dim, keepdim=True)


def even_shares(x: Tensor, dim: int) -> Tensor:
    return textbook(x * 0.0, dim)


def some_to_all(x: Tensor, dim: int) -> Tensor:
    return 0.99 * textbook(x, dim) + 0.01 / x.size(dim)


def always_the_last(x: Tensor, dim: int) -> Tensor:
    return textbook(x, -1)


def always_the_first(x: Tensor, dim: int) -> Tensor:
    return textbook(x, 0)


def over_everything(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.amax(dim=dim, keepdim=True)).exp()
    return parts / parts.sum()


def last_if_negative(x: Tensor, dim: int) -> Tensor:
    return textbook(x, dim if dim >= 0 else -1)


def two_axes_at_most(x: Tensor, dim: int) -> Tensor:
    return textbook(x, dim if x.dim() <= 2 else 1)


def without_keepdim(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.amax(dim=dim, keepdim=True)).exp()
    return parts / parts.sum(dim=dim)


def no_maximum(x: Tensor, dim: int) -> Tensor:
    return x.exp() / x.exp().sum(dim=dim, keepdim=True)


def less_the_mean(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.nan_to_num(neginf=0.0).mean(dim=dim, keepdim=True)).exp()
    return parts / parts.sum(dim=dim, keepdim=True)


def global_maximum(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.max()).exp()
    return parts / parts.sum(dim=dim, keepdim=True)


def maximum_at_least_zero(x: Tensor, dim: int) -> Tensor:
    parts = (x - x.amax(dim=dim, keepdim=True).clamp(min=0.0)).exp()
    return parts / parts.sum(dim=dim, keepdim=True)


def clamped(x: Tensor, dim: int) -> Tensor:
    return textbook(x.clamp(-50.0, 50.0).where(x.isfinite(), x), dim)


def infinity_as_zero(x: Tensor, dim: int) -> Tensor:
    return textbook(x.nan_to_num(neginf=0.0), dim)


def shifts_in_place(x: Tensor, dim: int) -> Tensor:
    with torch.no_grad():
        x -= x.amax(dim=dim, keepdim=True)
    return textbook(x, dim)


def overwrites(x: Tensor, dim: int) -> Tensor:
    weights = textbook(x, dim)
    with torch.no_grad():
        x.copy_(weights)
    return weights


def detached(x: Tensor, dim: int) -> Tensor:
    return textbook(x.detach(), dim)


STANDING_ALONE = (zeros, scores_as_they_are, without_exponential, never_divided, sigmoid, one_hot, logarithm)


# --- a good test ---------------------------------------------------------------------------------------------------


def examine_softmax(softmax: Softmax) -> None:
    mixed = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    hidden = mixed[0].clone()
    hidden[1, 2] = hidden[1, 4] = -math.inf
    far = torch.tensor([[1000.0, 999.0, 998.0], [-1000.0, -999.0, -1001.0]])
    for x in (mixed, hidden, far, far.t()):
        for dim in range(-x.dim(), x.dim()):
            compare(softmax, x, dim)
    trained = mixed.clone().requires_grad_()
    softmax(trained, -1)[..., 0].sum().backward()
    assert trained.grad is not None and trained.grad.abs().max() > 0, "no gradient reaches the scores"


def compare(softmax: Softmax, x: Tensor, dim: int, tolerance: float = 1e-5) -> None:
    before = x.clone()
    weights = softmax(x, dim)
    assert torch.equal(x, before), "the scores were changed"
    assert torch.allclose(weights, before.softmax(dim=dim), atol=tolerance), f"wrong for dim={dim}"


# --- weak tests ----------------------------------------------------------------------------------------------------


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def truth_value(softmax: Softmax) -> bool:
    x = numbers(2, 3)
    return torch.allclose(softmax(x, -1), x.softmax(dim=-1), atol=1e-5)


def against_itself(softmax: Softmax) -> None:
    x = numbers(2, 3)
    assert torch.equal(softmax(x, -1), softmax(x, -1))


def printed(softmax: Softmax) -> None:
    try:
        examine_softmax(softmax)
    except AssertionError:
        print("wrong")


def only_the_shape(softmax: Softmax) -> None:
    x = numbers(2, 3)
    assert softmax(x, -1).shape == x.shape


def only_the_sum(softmax: Softmax) -> None:
    sums = softmax(numbers(2, 3), -1).sum(dim=-1)
    assert torch.allclose(sums, torch.ones(2), atol=1e-5)


def sum_and_sign(softmax: Softmax) -> None:
    weights = softmax(numbers(2, 3), -1)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2), atol=1e-5)


def only_the_order(softmax: Softmax) -> None:
    x = numbers(2, 3)
    assert torch.equal(softmax(x, -1).argsort(dim=-1), x.argsort(dim=-1))


def one_even_row(softmax: Softmax) -> None:
    assert torch.allclose(softmax(torch.zeros(4), 0), torch.full((4,), 0.25))


def equal_to_own(softmax: Softmax) -> None:
    everything_but(softmax, equal=textbook)


def equal_to_built_in(softmax: Softmax) -> None:
    everything_but(softmax, equal=built_in)


def dim_left_out(softmax: Callable[..., Tensor]) -> None:
    x = numbers(2, 3)
    assert torch.allclose(softmax(x), x.softmax(dim=-1), atol=1e-5)


def named_axis(softmax: Callable[..., Tensor]) -> None:
    x = numbers(2, 3)
    assert torch.allclose(softmax(x, axis=-1), x.softmax(dim=-1), atol=1e-5)


def tolerance_too_wide(softmax: Softmax) -> None:
    for x in (numbers(2, 3, 5), 100 * numbers(2, 3), torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]])):
        for dim in range(-x.dim(), x.dim()):
            compare(softmax, x, dim, tolerance=0.02)


def one_row(softmax: Softmax) -> None:
    compare(softmax, torch.tensor([2.0, 1.0, -1.0]), 0)


def one_row_and_a_large_one(softmax: Softmax) -> None:
    compare(softmax, torch.tensor([2.0, 1.0, -1.0]), 0)
    compare(softmax, torch.tensor([1000.0, 999.0, 998.0]), 0)


def one_large_row(softmax: Softmax) -> None:
    everything_but(softmax, extremes=False)
    compare(softmax, torch.tensor([1000.0, 999.0, 998.0]), 0)


def everything_but(
    softmax: Softmax,
    *,
    others: bool = True,
    three: bool = True,
    from_the_end: bool = True,
    extremes: bool = True,
    rows: bool = True,
    apart: bool = True,
    hidden: bool = True,
    kept: bool = True,
    gradient: bool = True,
    equal: Softmax | None = None,
) -> None:
    """Examine all that a good test does, but for what is switched off."""
    inputs = [numbers(2, 3, 5) if three else numbers(3, 5)]
    if extremes:
        near, far = torch.tensor([1000.0, 999.0, 998.0]), torch.tensor([-1000.0, -999.0, -1001.0])
        inputs += [torch.stack([near, far])] if rows else [near, far]
        inputs += [torch.tensor([300.0, 0.0, 0.0])] * apart
        inputs += [torch.tensor([[1.0, 2.0, -math.inf], [0.5, 1.0, 1.5]])] * hidden
    for x in inputs:
        last = -1 if from_the_end else x.dim() - 1
        every = range(-x.dim() * from_the_end, x.dim())
        for dim in every if others and x.dim() != 2 else (last,):
            right, before = x.softmax(dim=dim), x.clone()
            weights = softmax(x, dim)
            assert (
                torch.allclose(weights, right, atol=1e-5) if equal is None else torch.equal(weights, equal(before, dim))
            )
            assert not kept or torch.equal(x, before)
    if others and not three:
        for dim in (0, 1, -2) if from_the_end else (0, 1):
            compare(softmax, numbers(3, 5), dim)
    if gradient:
        x = numbers(2, 3).requires_grad_()
        softmax(x, -1 if from_the_end else 1)[:, 0].sum().backward()
        assert x.grad is not None


def leaving_out(*parts: str, besides: tuple[str, ...] = ()) -> tuple[Callable[..., None], ...]:
    """Make the tests that leave out some parts, one for every choice of what they leave out besides."""
    switched_off: list[dict[str, Any]] = [
        dict.fromkeys((*parts, *more), False)
        for number in range(len(besides) + 1)
        for more in combinations(besides, number)
    ]
    return tuple(partial(everything_but, **switches) for switches in switched_off)


LAST = ("kept", "gradient")  # what the last part asks for


MISCONCEPTIONS = (
    Misconception(
        "truth_value_returned",
        "Your test returns True or False, and nobody reads it. A test says no by raising an error, as assert does, and "
        "says yes by ending without one.",
        SECTION,
        (truth_value,),
    ),
    Misconception(
        "nothing_refused",
        "Your test refuses nothing, or next to nothing. A test has to compare with something that does not come from the "
        "code under test, and must raise (assert) if it differs: not print, and not catch its own error. Give it a "
        "softmax that you know to be wrong, and see whether it says so.",
        SECTION,
        (against_itself, printed),
    ),
    Misconception(
        "only_the_shape",
        "Your test looks at the shape alone. The shape is right in nearly every wrong softmax, be it all zeros.",
        SECTION,
        (only_the_shape,),
    ),
    Misconception(
        "only_the_sum",
        "Your test looks at whether the weights are positive or sum to 1. Many wrong functions do both: one that gives "
        "everything to the largest score, say. Compare with the numbers that should come out.",
        WHY,
        (only_the_sum, sum_and_sign),
    ),
    Misconception(
        "only_the_order",
        "Your test looks at whether larger scores get larger weights. Every rising function keeps the order: the scores "
        "themselves do.",
        WHY,
        (only_the_order,),
    ),
    Misconception(
        "equal_scores_only",
        "Your test tries equal scores alone. They get equal weights from nearly every wrong softmax too; take scores "
        "that differ.",
        WHY,
        (one_even_row,),
    ),
    Misconception(
        "exact_equality",
        "Your test demands equality to the last bit. Decimal numbers are rounded at every step, and another order of "
        "steps, just as right, rounds otherwise. Allow a difference of about a hundred-thousandth, as torch.allclose "
        "does.",
        MAXIMUM,
        (equal_to_own, equal_to_built_in),
    ),
    Misconception(
        "called_otherwise",
        "Your test calls the function otherwise than was agreed: it is softmax(x, dim), with the axis always given. So "
        "it refuses every right one.",
        AXIS,
        (dim_left_out, named_axis),
    ),
    Misconception(
        "tolerance_too_wide",
        "Your test lets differences of a hundredth or more pass. A softmax that takes one hundredth from the largest "
        "weight and gives it to the others is wrong, and rounding alone stays below a hundred-thousandth.",
        SECTION,
        (tolerance_too_wide,),
    ),
    Misconception(
        "one_row_only",
        "Your test tries a single row of scores. With one row there is only one axis, so the wrong one can't be taken, "
        "and a sum over everything is the same as a sum over the row.",
        AXIS,
        (one_row, one_row_and_a_large_one),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "last_axis_only",
        "Your test runs softmax along one axis alone. A function that ignores dim and always takes that axis passes.",
        AXIS,
        leaving_out("others", besides=("three", "extremes", *LAST)),
        ("https://github.com/paiml/aprender/pull/2152",),
    ),
    Misconception(
        "tables_only",
        "Your test tries tables alone, with two axes. Attention has scores with four; a function may be right for two "
        "and wrong for more.",
        AXIS,
        leaving_out("three", besides=("from_the_end", "extremes", *LAST)),
        ("https://github.com/FudanNLP/fastNLP/issues/254",),
    ),
    Misconception(
        "axes_from_the_front",
        "Your test counts axes from the front alone. dim may be negative, and -1 is the one that is used most.",
        AXIS,
        leaving_out("from_the_end", besides=("extremes", *LAST)),
    ),
    Misconception(
        "ordinary_scores_only",
        "Your test tries scores of ordinary size alone. There every way of computing softmax agrees; it is with large "
        "ones that exp overflows, and with very negative ones that all of it becomes 0.",
        MAXIMUM,
        leaving_out("extremes", besides=LAST),
        ("https://github.com/pyg-team/pytorch_geometric/issues/53",),
    ),
    Misconception(
        "large_rows_alike",
        "Your test tries large scores, but only rows of the same size together, or one alone. What is subtracted must "
        "come from each row itself: try a row near 1000 beside one near -1000.",
        MAXIMUM,
        (one_large_row, *leaving_out("rows", besides=("apart", "hidden", *LAST))),
        ("https://github.com/FluxML/NNlib.jl/pull/43",),
    ),
    Misconception(
        "never_far_apart",
        "Your test tries large scores, but never such as lie far apart in one row. Whoever subtracts the mean instead of "
        "the largest passes then: it takes a row such as 300, 0, 0 for exp to overflow all the same.",
        MAXIMUM,
        leaving_out("apart", besides=("hidden", *LAST)),
    ),
    Misconception(
        "never_minus_infinity",
        "Your test never gives a score of -inf. This is how masks hide an entry: it must get the weight 0, and the others "
        "share as if it were not there.",
        MAXIMUM,
        leaving_out("hidden", besides=LAST),
    ),
    Misconception(
        "input_not_looked_at",
        "Your test doesn't look at what has become of the scores. A function that subtracts the maximum in place returns "
        "the right weights and leaves its caller with other scores. Keep a copy from before the call, and take what you "
        "expect from that copy.",
        MAXIMUM,
        leaving_out("kept", besides=("gradient",)),
    ),
    Misconception(
        "gradient_not_looked_at",
        "Your test doesn't look at gradients. Weights that were rebuilt from raw data are right to the last bit, and "
        "nothing before them can learn.",
        SLOPES,
        leaving_out("gradient"),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
)

EXERCISE = Exercise(
    name="examine_softmax",
    chapter="soft_addressing",
    kind="function",
    minutes=20,
    parts=(
        Part(
            "right and wrong",
            2,
            "let every right implementation pass, and refuse those that are plainly wrong",
            SECTION,
        ),
        Part("numbers", 1, "refuse shares that are not the shares of softmax", WHY),
        Part("axes", 1, "refuse an implementation that goes wrong along one axis or another", AXIS),
        Part("extremes", 1, "refuse an implementation that goes wrong with very large or very small scores", MAXIMUM),
        Part("what is left", 1, "refuse an implementation that changes its input or lets no gradient through", SLOPES),
    ),
    hints=(
        "Name five ways in which a softmax can be wrong although its result has the right shape and sums to 1. Which "
        "input would show each of them?",
        "Compare with numbers that you know to be right, worked out by hand or by PyTorch, and allow for rounding. Then "
        "choose inputs: several axes, each as dim, from the front and from the end; large, very negative and -inf "
        "scores; rows that differ.",
        "Loop over a few tensors and over every dim from -x.dim() to x.dim() - 1. Copy x first; after the call, x must "
        "equal the copy, and the result be close to the copy's softmax. One of the tensors has a row near 1000 beside one "
        "near -1000, one scores that lie hundreds apart, one a -inf. At the end, a call with requires_grad, and backward.",
    ),
    cases=cases,
    reference=examine_softmax,
    misconceptions=MISCONCEPTIONS,
    task="catch",
)

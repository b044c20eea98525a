"""Exercise: write a test that tells right weighted averages from wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, given

AVERAGE, WEIGHTS = "attention_intuition#a-weighted-average", "attention_intuition#where-the-weights-come-from"
SOFT, WORTH = "attention_intuition#soft-or-hard", "attention_intuition#what-attention-is-worth"
Average = Callable[[Tensor, Tensor], Any]


def examine_weighted_average(average: Average) -> None:
    rng = torch.Generator().manual_seed(0)
    for shape in ((3, 5), (4, 4), (1, 2), (2, 3, 5), (3, 3, 3), (1, 3, 5), (2, 4, 1), (2, 3, 4, 5)):
        weights, values = torch.rand(shape[:-1], generator=rng), torch.randn(shape, generator=rng)
        for factor in (0.1, 1.0, 10.0):
            _agree(average, weights * factor, values)
    weights = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    _agree(average, weights, torch.ones(2, 2, 3))


def _agree(average: Average, weights: Tensor, values: Tensor) -> None:
    before = weights.clone(), values.clone()
    found = average(weights, values)
    assert torch.equal(weights, before[0])
    assert torch.equal(values, before[1])
    torch.testing.assert_close(found, right(weights, values), rtol=1e-4, atol=1e-5)


def cases(rng: Generator) -> Iterator[Case]:
    for accepted in (shares_first, sum_first, by_einsum, one_place_at_a_time, in_float64):
        yield case("plain", "a right implementation, " + accepted.__name__.replace("_", " "), accepted, True)
    for part, label, wrong in (
        ("plain", "on nearly every input", zeros),
        ("plain", "on nearly every input", plain_mean),
        ("plain", "on nearly every input", best_alone),
        ("plain", "on nearly every input", first_value),
        ("plain", "on nearly every input", softmaxed),
        ("plain", "in the shape of its result", kept_axis),
        ("weights", "only where the weights do not sum to 1", not_divided),
        ("weights", "only where the weights sum to less than 1", bounded),
        ("weights", "only where the weights are not 1 on average", divided_by_count),
        ("weights", "only where the weights differ", squares),
        ("weights", "only where the last place has some weight", last_left_out),
        ("batch", "only with several examples", one_total),
        ("batch", "only with several examples", first_weights),
        ("batch", "only with several examples", over_first_axis),
        ("batch", "only with two axes of examples", from_the_front),
        ("edges", "only where no place has any weight", nan_for_nothing),
        ("edges", "only where no place has any weight", mean_for_nothing),
        ("edges", "in what it leaves behind: the weights themselves", weights_changed),
        ("edges", "in what it leaves behind: the values themselves", values_changed),
        ("edges", "only with an axis of size 1", squeezed),
    ):
        yield case(part, f"an implementation that goes wrong {label}", wrong, False)


def case(part: str, label: str, implementation: Average, accepts: bool) -> Case:
    return Case(part, label, (Call((given(implementation, right),)),), accepts=accepts)


# --- what is to be examined: right ones ----------------------------------------------------------------------------


def right(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    shares = weights / torch.where(total == 0, torch.ones_like(total), total)
    return (shares.unsqueeze(-1) * values).sum(dim=-2)


def shares_first(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights, values)


def sum_first(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    mixture = (weights.unsqueeze(-2) @ values).squeeze(-2)
    return torch.where(total == 0, torch.zeros_like(mixture), mixture / torch.where(total == 0, 1.0, total))


def by_einsum(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    return torch.einsum("...p,...pf->...f", weights / total.masked_fill(total == 0, 1.0), values)


def one_place_at_a_time(weights: Tensor, values: Tensor) -> Tensor:
    mixture, total = torch.zeros_like(values[..., 0, :]), torch.zeros_like(weights[..., :1])
    for place in reversed(range(weights.size(-1))):
        mixture = mixture + weights[..., place, None] * values[..., place, :]
        total = total + weights[..., place, None]
    return mixture / (total + (total == 0))


def in_float64(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights.double(), values.double()).to(values.dtype)


# --- and wrong ones ------------------------------------------------------------------------------------------------


def zeros(weights: Tensor, values: Tensor) -> Tensor:
    return torch.zeros_like(values[..., 0, :])


def plain_mean(weights: Tensor, values: Tensor) -> Tensor:
    return values.mean(dim=-2)


def best_alone(weights: Tensor, values: Tensor) -> Tensor:
    best = weights.argmax(dim=-1)[..., None, None].expand(*weights.shape[:-1], 1, values.size(-1))
    return values.gather(-2, best).squeeze(-2)


def first_value(weights: Tensor, values: Tensor) -> Tensor:
    return values[..., 0, :]


def softmaxed(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights.softmax(dim=-1), values)


def kept_axis(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights, values).unsqueeze(-2)


def not_divided(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).sum(dim=-2)


def bounded(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).sum(dim=-2) / weights.sum(dim=-1, keepdim=True).clamp(min=1.0)


def divided_by_count(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).mean(dim=-2)


def squares(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights.square(), values)


def last_left_out(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights[..., :-1], values[..., :-1, :])


def one_total(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum()
    return (weights.unsqueeze(-1) * values).sum(dim=-2) / (total + (total == 0))


def first_weights(weights: Tensor, values: Tensor) -> Tensor:
    while weights.dim() > 1:
        weights = weights[0]
    return right(weights.expand(values.shape[:-1]), values)


def over_first_axis(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=0)
    return (weights.unsqueeze(-1) * values).sum(dim=0) / (total + (total == 0)).unsqueeze(-1)


def from_the_front(weights: Tensor, values: Tensor) -> Tensor:
    places = 0 if weights.dim() == 1 else 1
    total = weights.sum(dim=places).unsqueeze(-1)
    return (weights.unsqueeze(-1) * values).sum(dim=places) / (total + (total == 0))


def nan_for_nothing(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights, values) + 0 / weights.sum(dim=-1, keepdim=True)


def mean_for_nothing(weights: Tensor, values: Tensor) -> Tensor:
    nothing = weights.sum(dim=-1, keepdim=True) == 0
    return torch.where(nothing, values.mean(dim=-2), right(weights, values))


def weights_changed(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    weights /= total + (total == 0)
    return right(weights, values)


def values_changed(weights: Tensor, values: Tensor) -> Tensor:
    found = right(weights, values)
    values *= weights.unsqueeze(-1)
    return found


def squeezed(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights, values).squeeze()


# --- tests that are too weak, or too strict ------------------------------------------------------------------------


def trying(
    shapes: tuple[tuple[int, ...], ...] = ((3, 5), (2, 3, 5), (1, 4, 3), (2, 1, 3), (2, 3, 4, 5)),
    weigh: Callable[[Tensor], Tensor] = lambda weights: weights,
    factors: tuple[float, ...] = (0.1, 1.0, 10.0),
    none: bool = True,
    watch: bool = True,
    agree: Callable[[Tensor, Tensor], Any] = torch.testing.assert_close,
) -> Callable[[Average], Any]:
    """Build a test out of what it tries and what it looks at; with all that's there by default it misses nothing."""

    def examine(average: Average) -> Any:
        rng = torch.Generator().manual_seed(1)
        told = None
        for shape in shapes:
            weights, values = torch.rand(shape[:-1], generator=rng), torch.randn(shape, generator=rng)
            for factor in factors:
                told = tried(average, weigh(weights) * factor, values)
        if none:
            told = tried(average, torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.randn(2, 2, 3, generator=rng))
        return told

    def tried(average: Average, weights: Tensor, values: Tensor) -> Any:
        before = weights.clone(), values.clone()
        told = agree(average(weights.clone(), values.clone()), right(weights, values))
        if watch:
            average(weights, values)
            assert torch.equal(weights, before[0])
            assert torch.equal(values, before[1])
        return told

    return examine


ONE, BATCH = ((3, 5), (2, 4)), ((3, 5), (2, 3, 5), (1, 4, 3), (2, 1, 3))


def same_shape(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape


def equal(found: Tensor, wanted: Tensor) -> None:
    assert torch.equal(found, wanted)


def with_itself(average: Average) -> None:
    weights, values = torch.rand(2, 3), torch.randn(2, 3, 5)
    torch.testing.assert_close(average(weights, values), average(weights, values))


def runs(average: Average) -> None:
    average(torch.rand(3), torch.randn(3, 5))


def lies_among(average: Average) -> None:
    weights, values = torch.rand(2, 3) + 0.1, torch.randn(2, 3, 5)
    found = average(weights, values)
    assert found.shape == (2, 5)
    assert (found <= values.amax(dim=1) + 1e-5).all()
    assert (found >= values.amin(dim=1) - 1e-5).all()


def returns_opinion(average: Average) -> bool:
    weights, values = torch.rand(2, 3), torch.randn(2, 3, 5)
    return torch.allclose(average(weights, values), right(weights, values))


def on_the_first(weights: Tensor) -> Tensor:
    return torch.zeros_like(weights).index_fill(-1, torch.tensor([0]), 1.0)


def shares(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=-1, keepdim=True)


MISCONCEPTIONS = (
    Misconception(
        "returns_a_truth_value",
        "The test returns True or False. Nobody reads that: a test says no by raising an error, which is what assert does. "
        "As it is, everything passes.",
        AVERAGE,
        (returns_opinion,),
    ),
    Misconception(
        "only_that_it_runs",
        "The test calls the implementation, but looks at nothing that comes back, or compares it with a second result of the "
        "same implementation. A wrong average is equally wrong both times. Compare with something that you calculated "
        "yourself.",
        AVERAGE,
        (with_itself, runs),
    ),
    Misconception(
        "only_the_shape",
        "The test looks at the shape of the result, and not at the numbers. Zeros have the right shape too.",
        AVERAGE,
        (trying(agree=same_shape), trying(agree=same_shape, shapes=ONE, none=False, watch=False)),
    ),
    Misconception(
        "only_that_it_lies_among_the_values",
        "The test checks something that is true of every average: that it lies among the values. It's true of the plain "
        "average too, and of a single value. The weights must make a difference.",
        AVERAGE,
        (lies_among,),
    ),
    Misconception(
        "bit_for_bit",
        "The test demands exactly equal numbers. Adding in another order, or dividing at the end instead of at the start, "
        "changes the last digit, so right implementations are refused. Allow for rounding, as torch.testing.assert_close "
        "and torch.allclose do.",
        AVERAGE,
        (trying(agree=equal), trying(agree=equal, shapes=ONE, none=False, watch=False)),
    ),
    Misconception(
        "equal_weights",
        "All weights in the test are the same. There the weighted average is the plain one, so that an implementation that "
        "ignores the weights passes.",
        WORTH,
        (
            trying(weigh=torch.ones_like, none=False),
            trying(weigh=torch.ones_like, factors=(1.0,), none=False, watch=False),
        ),
    ),
    Misconception(
        "all_weight_on_one",
        "In the test one place has all the weight. There an average that mixes and a choice of the best place are the same.",
        SOFT,
        (
            trying(weigh=on_the_first, none=False),
            trying(
                weigh=on_the_first,
                factors=(1.0,),
                none=False,
                watch=False,
            ),
        ),
    ),
    Misconception(
        "weights_that_sum_to_one",
        "The weights in the test already sum to 1. There it makes no difference whether an implementation divides by their "
        "sum. Only the proportions may count: try weights such as 5, 3 and 2 as well, and small ones.",
        WEIGHTS,
        (
            trying(weigh=shares, factors=(1.0,), none=False),
            trying(weigh=shares, factors=(1.0,), none=False, watch=False, shapes=BATCH),
            trying(weigh=shares, factors=(1.0,), none=False, watch=False, shapes=ONE),
        ),
    ),
    Misconception(
        "only_large_weights",
        "The sum of the weights is above 1 in every input of the test. An implementation that divides only by a sum above 1 "
        "passes. Weights such as 0.2 and 0.1 have proportions too.",
        WEIGHTS,
        (
            trying(weigh=lambda weights: weights + 1, factors=(1.0,), none=False, watch=False, shapes=ONE),
            trying(weigh=lambda weights: weights + 1, factors=(1.0,)),
            trying(weigh=lambda weights: weights + 1, factors=(1.0,), none=False, watch=False, shapes=BATCH),
        ),
    ),
    Misconception(
        "a_single_example",
        "The test tries one example at a time. An implementation that mixes the examples of a batch up is right there, and "
        "that's where most slips are made. Try (batch, place) and (batch, place, width) as well.",
        WEIGHTS,
        (trying(shapes=ONE, none=False, watch=False), trying(shapes=ONE, none=False)),
    ),
    Misconception(
        "a_single_batch_axis",
        "The test tries batches, but only with one axis of examples. An implementation that counts its axes from the front "
        "is right there, and wrong as soon as there are two (sentences and heads, say).",
        WEIGHTS,
        (trying(shapes=BATCH), trying(shapes=BATCH, none=False, watch=False)),
    ),
    Misconception(
        "usual_inputs_only",
        "The test tries usual inputs only. It has none in which all weights are 0, and doesn't look whether weights and "
        "values are still the same afterwards.",
        AVERAGE,
        (trying(none=False, watch=False), trying(none=False, watch=False, shapes=((3, 5), (2, 3, 5), (2, 3, 4, 5)))),
    ),
    Misconception(
        "no_input_without_weight",
        "The test has no input in which all weights are 0. Some implementations divide by 0 there.",
        AVERAGE,
        (trying(none=False),),
    ),
    Misconception(
        "inputs_not_looked_at",
        "The test looks at what comes back, but not at what was handed in. An implementation that changes the caller's "
        "weights or values passes.",
        AVERAGE,
        (trying(watch=False),),
    ),
    Misconception(
        "no_axis_of_size_1",
        "No axis in the test has the size 1. An implementation that loses such an axis (squeeze without a number) passes.",
        AVERAGE,
        (trying(shapes=((3, 5), (2, 3, 5), (2, 3, 4, 5))),),
        ("https://github.com/NVIDIA/tacotron2/pull/303",),
    ),
)

EXERCISE = Exercise(
    name="examine_weighted_average",
    chapter="attention_intuition",
    kind="function",
    minutes=15,
    task="catch",
    parts=(
        Part("plain", 2, "let right averages pass and refuse those that are wrong nearly everywhere", AVERAGE),
        Part("weights", 1, "refuse averages that are right for certain weights only", WEIGHTS),
        Part("batch", 1, "refuse averages that mix up the examples of a batch", WEIGHTS),
        Part("edges", 1, "refuse averages that go wrong in rare cases, or change what they are given", AVERAGE),
    ),
    hints=(
        "For which weights would an average that ignores its weights still be right? Would your test notice?",
        "Calculate the right answer yourself, for a few inputs that differ in kind: weights that sum to 1 and others, one "
        "example and several, all weights 0. Compare with a tolerance.",
        "A loop over shapes such as (3, 5), (1, 3, 5), (2, 3, 5) and (2, 3, 4, 5): draw weights and values, keep a clone of "
        "both, call, assert_close with your own weighted_average, and assert that the inputs equal their clones. Then once "
        "more with small weights, and with a row of zeros among the weights.",
    ),
    cases=cases,
    reference=examine_weighted_average,
    misconceptions=MISCONCEPTIONS,
)

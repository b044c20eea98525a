"""Exercise: mix vectors in proportion to their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import attention_intuition
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn, sequence_first, unchanged

AVERAGE, SHARES = "attention_intuition#a-weighted-average", "attention_intuition#where-the-weights-come-from"
LEARNS, SOFT = "attention_intuition#it-learns-where-to-look", "attention_intuition#soft-or-hard"


def cases(rng: Generator) -> Iterator[Case]:
    yield from _one_average(rng)
    for leading in ((2,), (3, 2), (5,), (1,)):
        weights, values = inputs(rng, *leading, 5, 3)
        yield Case("batch", describe(weights, values), (Call((weights, values)),), holds=(among(values),))
    weights, values = inputs(rng, 3, 3, 3)
    yield Case("batch", describe(weights, values), (Call((weights, values)),))
    weights, values = inputs(rng, 2, 5, 1)
    yield Case("batch", describe(weights, values), (Call((weights, values)),))
    weights, values = (x.double() for x in inputs(rng, 2, 5, 3))
    yield Case("batch", describe(weights, values) + ", float64", (Call((weights, values)),), tolerance=1e-9)
    weights, values = (sequence_first(x) for x in inputs(rng, 2, 7, 3))
    yield Case("batch", describe(weights, values) + ", stored places first", (Call((weights, values)),))
    weights, values = inputs(rng, 2, 5, 3)
    other = weights.clone()
    other[1] = other[1].flip(0) * 3
    yield Case(
        "batch",
        describe(weights, values) + ", the second example's weights changed",
        (Call((weights, values)), Call((other, values))),
        holds=(
            unchanged(
                "The examples of a batch do not affect one another.",
                "when only the second example's weights were changed, the first one's average moved by {change}",
                where=0,
            ),
        ),
    )
    for shape in ((5, 3), (2, 5, 3)):
        weights, values = inputs(rng, *shape)
        text = describe(weights, values) + ", with gradients"
        yield Case("gradients", text, (Call((weights, values), backward=True),))
    yield from _no_weight(rng)


def _one_average(rng: Generator) -> Iterator[Case]:
    for weights, values, label in (
        (torch.tensor([3.0, 1.0]), torch.tensor([[4.0, 0.0], [0.0, 8.0]]), "weights 3 and 1, values (4, 0) and (0, 8)"),
        (torch.tensor([2.0]), torch.tensor([[5.0, -3.0]]), "one place of weight 2"),
        (torch.tensor([0.0, 6.0, 0.0]), randn(rng, 3, 2), "3 places, of which one has all the weight"),
        (torch.full((7,), 0.5), randn(rng, 7, 3), "7 places of weight 0.5 each"),
    ):
        yield Case("average", label, (Call((weights, values)),), holds=(among(values),))
    for places, width in ((3, 5), (5, 5), (11, 2)):
        weights, values = inputs(rng, places, width)
        yield Case("average", describe(weights, values), (Call((weights, values)),), holds=(among(values),))
    yield times(100.0, "average", *inputs(rng, 5, 3))


def times(factor: float, part: str, weights: Tensor, values: Tensor) -> Case:
    return Case(
        part,
        describe(weights, values) + f", then all weights times {factor:g}",
        (Call((weights, values)), Call((weights * factor, values))),
        holds=(
            unchanged(
                "Only the proportions of the weights count.",
                f"when all weights were multiplied by {factor:g}, the average moved by {{change}}",
            ),
        ),
    )


def _no_weight(rng: Generator) -> Iterator[Case]:
    yield times(1e-9, "no weight", *inputs(rng, 5, 3))
    _, values = inputs(rng, 3, 2)
    yield Case("no weight", "3 places, all of weight 0", (Call((torch.zeros(3), values)),), holds=(nothing_is_zero,))
    weights, values = inputs(rng, 3, 5, 2)
    weights[1] = 0
    text = describe(weights, values) + ", the second example without any weight"
    yield Case("no weight", text, (Call((weights, values)),))
    yield Case("no weight", text + ", its gradients", (Call((weights, values)),), through=given(gradients))


def gradients(average: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], str]:
    def tried(weights: Tensor, values: Tensor) -> str:
        weights, values = weights.clone().requires_grad_(), values.clone().requires_grad_()
        average(weights, values).sum().backward()
        found = [x.grad for x in (weights, values) if x.grad is not None]
        if len(found) < 2:
            return "no gradient"
        return "finite gradients" if all(bool(x.isfinite().all()) for x in found) else "gradients that are NaN"

    return tried


def inputs(rng: Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """Draw weights from 0.1 to 4.1, and values, for (…, place, width)."""
    weights = (torch.rand(shape[:-1], generator=rng, dtype=torch.float64) * 4 + 0.1).float()
    return weights, randn(rng, *shape)


def describe(weights: Tensor, values: Tensor) -> str:
    return f"weights {tuple(weights.shape)}, values {tuple(values.shape)}"


def among(values: Tensor) -> Property:
    """An average lies among what was averaged."""
    lowest, highest = values.amin(dim=-2), values.amax(dim=-2)

    def broken(outputs: Sequence[Any]) -> str | None:
        slack = 1e-4 * (1 + values.abs().max())
        outside = (outputs[0] > highest + slack) | (outputs[0] < lowest - slack)
        if not outside.any():
            return None
        at = tuple(outside.nonzero()[0].tolist())
        return (
            f"at {list(at)} the values lie between {lowest[at]:.4g} and {highest[at]:.4g}, "
            f"but your result is {outputs[0][at]:.4g}"
        )

    return Property("An average lies among the values that were averaged.", broken)


def _nothing(outputs: Sequence[Any]) -> str | None:
    found = outputs[0]
    if found.isfinite().all() and found.abs().max() < 1e-6:
        return None
    return f"it gave {[round(number, 4) for number in found.flatten().tolist()]}"


nothing_is_zero = Property("Where no place has any weight, there is nothing to mix, and the result is zeros.", _nothing)


# --- wrong answers -------------------------------------------------------------------------------------------------


def mixed(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).sum(dim=-2)


def safe(total: Tensor) -> Tensor:
    return torch.where(total == 0, torch.ones_like(total), total)


def divided_by(total: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Build an average that takes something else for the sum of the weights."""

    def average(weights: Tensor, values: Tensor) -> Tensor:
        return mixed(weights / total(weights), values)

    return average


def right(weights: Tensor, values: Tensor) -> Tensor:
    return mixed(weights / safe(weights.sum(dim=-1, keepdim=True)), values)


def divided_by_count(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).mean(dim=-2)


def softmaxed(weights: Tensor, values: Tensor) -> Tensor:
    return mixed(weights.softmax(dim=-1), values)


def plain_mean(weights: Tensor, values: Tensor) -> Tensor:
    return values.mean(dim=-2)


def best_alone(weights: Tensor, values: Tensor) -> Tensor:
    best = weights.argmax(dim=-1)[..., None, None].expand(*weights.shape[:-1], 1, values.size(-1))
    return values.gather(-2, best).squeeze(-2)


def over_features(weights: Tensor, values: Tensor) -> Tensor:
    return (values @ weights.unsqueeze(-1)).squeeze(-1) / safe(weights.sum(dim=-1, keepdim=True))


def over_first_axis(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * values).sum(dim=0) / weights.sum(dim=0).unsqueeze(-1)


def squeezed(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights, values).squeeze()


def float32(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights.float(), values.float())


def in_place(weights: Tensor, values: Tensor) -> Tensor:
    weights /= safe(weights.sum(dim=-1, keepdim=True))
    return mixed(weights, values)


def detached(weights: Tensor, values: Tensor) -> Tensor:
    return right(weights.detach(), values)


def from_numbers(weights: Tensor, values: Tensor) -> Tensor:
    return torch.tensor(right(weights, values).tolist(), dtype=values.dtype)


def replaced_afterwards(weights: Tensor, values: Tensor) -> Tensor:
    return divided_by(lambda weights: weights.sum(dim=-1, keepdim=True))(weights, values).nan_to_num()


def chosen_afterwards(weights: Tensor, values: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    return mixed(torch.where(total == 0, torch.zeros_like(weights), weights / total), values)


MISCONCEPTIONS = (
    Misconception(
        "sum_not_divided",
        "The sum of weight times value is returned as it is. That is an average only if the weights already sum to 1. "
        "With weights such as 5, 3 and 2 the result is ten times too large: it's the shares of the weights that count.",
        AVERAGE,
        (mixed,),
    ),
    Misconception(
        "divided_by_count",
        "The sum of weight times value is divided by the number of places (which is also what mean does). In a plain "
        "average every value counts once, so that the number of values is what was counted in all. Here a value of weight 3 "
        "counts three times. How many have been counted in all?",
        AVERAGE,
        (divided_by_count,),
        (
            "https://github.com/weisscharlesj/SciCompforChemists/issues/1",
            "https://github.com/meta-pytorch/torchrec/pull/1886",
            "https://github.com/JuliaML/LossFunctions.jl/issues/149",
        ),
    ),
    Misconception(
        "softmax_of_weights",
        "The weights go through softmax. That is made for scores, which may be negative and of which only differences "
        "matter. These are weights already, of which only proportions matter: 3 and 1 are to count as three quarters and "
        "one quarter, and a weight of 0 as nothing at all.",
        SHARES,
        (softmaxed,),
    ),
    Misconception(
        "weights_ignored",
        "Every value counts alike, whatever its weight: it is the plain average.",
        AVERAGE,
        (plain_mean,),
    ),
    Misconception(
        "best_alone",
        "The value with the largest weight is returned alone. That is a choice, not a mixture. The others are to count "
        "too, each in proportion to its weight.",
        SOFT,
        (best_alone,),
    ),
    Misconception(
        "over_features",
        "The sum runs along the features instead of along the places. A weight belongs to a place, that is, to a whole row "
        "of the values, and the result has one number for each feature. With as many places as features no shape gives "
        "this away.",
        AVERAGE,
        (over_features,),
    ),
    Misconception(
        "total_of_the_whole_batch",
        "The weights are divided by the sum of all weights in the batch. Each example's weights then add up to a part of 1, "
        "and its average shrinks the more examples there are. Each example has a sum of its own.",
        SHARES,
        (divided_by(lambda weights: safe(weights.sum())),),
    ),
    Misconception(
        "batch_axis_mixed",
        "The sum runs along the first axis. For a single example that is the axis of places; with a batch in front it's the "
        "axis of examples, which must never be mixed. Counted from the end, an axis is the right one in both cases.",
        SHARES,
        (over_first_axis,),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "squeeze_everything",
        "squeeze() without a number takes out every axis of size 1, also that of a batch of one example, or of values one "
        "number wide. It works until such an input comes. Name the axis that you mean.",
        AVERAGE,
        (squeezed,),
        (
            "https://github.com/NVIDIA/tacotron2/pull/303",
            "https://github.com/KrishnaDN/Attentive-Statistics-Pooling-for-Deep-Speaker-Embedding/issues/3",
        ),
    ),
    Misconception(
        "always_float32",
        "The result is float32, whatever came in. Numbers of double precision lose half of their digits, and the next "
        "product with a tensor of the old type raises an error. Let the inputs decide the type.",
        AVERAGE,
        (float32,),
    ),
    Misconception(
        "changed_in_place",
        "The weights are divided in place (/=), which changes the caller's own tensor. Whoever uses it afterwards finds "
        "other numbers in it.",
        AVERAGE,
        (in_place,),
    ),
    Misconception(
        "weights_detached",
        "The average is right, but the weights get no gradient: they have been cut off on the way (.detach(), .item(), "
        ".tolist(), torch.tensor(...)). A model that mixes like this can never learn where to look.",
        LEARNS,
        (detached, from_numbers),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
    Misconception(
        "small_number_added",
        "A small number is added to the sum of the weights, or the sum is not let below one, so that nothing is divided "
        "by 0. But it also changes averages that were right: where all weights are small, the result is drawn towards 0. "
        "Only proportions may count, so only a sum of exactly 0 needs care.",
        AVERAGE,
        (
            divided_by(lambda weights: weights.sum(dim=-1, keepdim=True) + 1e-8),
            divided_by(lambda weights: weights.sum(dim=-1, keepdim=True) + 1e-6),
            divided_by(lambda weights: weights.sum(dim=-1, keepdim=True).clamp(min=1e-6)),
        ),
    ),
    Misconception(
        "nan_without_weight",
        "Where no place has any weight, 0 is divided by 0, and the result is NaN, not a number. One such example (a "
        "sentence of padding, say) makes the loss of a whole batch NaN.",
        AVERAGE,
        (divided_by(lambda weights: weights.sum(dim=-1, keepdim=True)),),
        (
            "https://github.com/tensorflow/tensorflow/issues/51792",
            "https://github.com/mila-iqia/blocks/pull/581",
        ),
    ),
    Misconception(
        "nan_gradient",
        "The result is 0 where no place has any weight, as it should be, but the gradients are NaN. 0 was divided by 0 "
        "first, and the NaN replaced afterwards (nan_to_num, or torch.where on the quotient). On the way back the gradient "
        "passes the division all the same. The 0 must be replaced before anything is divided by it.",
        LEARNS,
        (replaced_afterwards, chosen_afterwards),
        ("https://github.com/mila-iqia/blocks/pull/581",),
    ),
)

EXERCISE = Exercise(
    name="weighted_average",
    chapter="attention_intuition",
    kind="function",
    minutes=10,
    parts=(
        Part("average", 2, "mix the values in proportion to their weights", AVERAGE),
        Part(
            "batch",
            1,
            "do the same for each example, whatever axes stand in front and of whatever type they are",
            SHARES,
        ),
        Part("gradients", 1, "pass the right gradients to weights and values", LEARNS),
        Part("no weight", 1, "give zeros, with finite gradients, where all weights are 0, and nowhere else", AVERAGE),
    ),
    hints=(
        "Two exams count three times and once, with the grades 4 and 8. Which grade comes out, and what did you divide by?",
        "There are two steps: turn the weights into shares that sum to 1, then add up share times value. A weight needs an "
        "axis of size 1 to meet a whole row of values. Count axes from the end.",
        "weights.sum(dim=-1, keepdim=True) is the total of each example. Replace it where it is 0, by any number that can be "
        "divided by, before you divide. Then multiply with unsqueeze(-1), and sum along the places, dim=-2.",
    ),
    cases=cases,
    reference=attention_intuition.weighted_average,
    misconceptions=MISCONCEPTIONS,
)

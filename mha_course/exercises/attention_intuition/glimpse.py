"""Exercise: look at a picture softly, by scores that stand in rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import attention_intuition
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, unchanged

LOOK, PLACES = "attention_intuition#look-then-read", "attention_intuition#places-and-patches"
WEIGHTS, AVERAGE = "attention_intuition#where-the-weights-come-from", "attention_intuition#a-weighted-average"
LEARNS, SOFT = "attention_intuition#it-learns-where-to-look", "attention_intuition#soft-or-hard"
OVERFLOW = "soft_addressing#why-subtract-the-maximum"
Result = tuple[Tensor, Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for shape in ((1, 2, 3, 2, 5), (3, 2, 5, 3, 2), (1, 1, 3, 2, 2), (2, 3, 1, 2, 3), (5, 3, 3, 2, 2), (3, 3, 2, 7, 5)):
        scores, patches = inputs(rng, *shape)
        yield Case("mixing", describe(patches), (Call((scores, patches)),), holds=(weights_sum_to_one,))
    scores, patches = inputs(rng, 2, 2, 3, 3, 2)
    yield Case("mixing", describe(patches) + ", all scores 7", (Call((torch.full_like(scores, 7.0), patches)),))
    scores, patches = inputs(rng, 2, 3, 2, 3, 2)
    brighter = scores.clone()
    brighter[:, 0] += 5
    yield Case(
        "mixing",
        describe(patches) + ", the first row's scores much higher",
        (Call((brighter, patches)),),
        holds=(weights_sum_to_one,),
    )
    other = scores.clone()
    other[1] = randn(rng, 3, 2)
    yield Case(
        "mixing",
        describe(patches) + ", the second picture's scores changed",
        (Call((scores, patches)), Call((other, patches))),
        holds=(
            weights_sum_to_one,
            unchanged(
                "The pictures of a batch do not affect one another.",
                "when only the second picture's scores were changed, the glimpse of the first one moved by {change}",
                where=0,
            ),
        ),
    )
    scores, patches = inputs(rng, 2, 2, 3, 2, 5)
    yield Case("gradients", describe(patches) + ", with gradients", (Call((scores, patches), backward=True),))
    scores, patches = (x.double() for x in inputs(rng, 3, 3, 2, 2, 2))
    yield Case("layouts", describe(patches) + ", float64", (Call((scores, patches)),), tolerance=1e-9)
    scores, patches = inputs(rng, 2, 3, 5, 2, 3)
    turned = (scores.transpose(1, 2).contiguous().transpose(1, 2), patches.transpose(1, 2).contiguous().transpose(1, 2))
    yield Case("layouts", describe(patches) + ", stored column by column", (Call(turned),))
    picture = randn(rng, 2, 9, 11)
    patches = picture.unfold(1, 5, 2).unfold(2, 5, 3)
    yield Case(
        "layouts", describe(patches) + ", cut out of pictures", (Call((randn(rng, *patches.shape[:3]), patches)),)
    )
    scores, patches = inputs(rng, 1, 1, 1, 2, 3)
    yield Case("layouts", describe(patches) + ": one place", (Call((scores, patches)),))
    for shift in (500.0, -500.0):
        scores, patches = inputs(rng, 2, 2, 3, 2, 2)
        text = describe(patches) + f", scores about {shift:g}"
        yield Case("large scores", text, (Call((scores + shift, patches)),), holds=(weights_sum_to_one,))
    scores, patches = inputs(rng, 2, 2, 3, 2, 2)
    text = describe(patches) + ", scores about 500 in one and about -500 in the other"
    shifts = torch.tensor([500.0, -500.0]).view(2, 1, 1)
    yield Case("large scores", text, (Call((scores + shifts, patches)),), holds=(weights_sum_to_one,))


def inputs(rng: Generator, batch: int, rows: int, columns: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    return randn(rng, batch, rows, columns), randn(rng, batch, rows, columns, height, width)


def describe(patches: Tensor) -> str:
    batch, rows, columns, height, width = patches.shape
    return (
        f"{batch} picture{'s' * (batch > 1)}, {rows} row{'s' * (rows > 1)} of {columns} place{'s' * (columns > 1)}, "
        f"patches of {height} by {width}"
    )


def _total(outputs: Sequence[Any]) -> str | None:
    for _, weights in outputs:
        totals = weights.flatten(1).sum(dim=1)
        if not torch.allclose(totals, torch.ones_like(totals), atol=1e-4):
            return f"the weights of the pictures sum to {[round(total, 3) for total in totals.tolist()]}"
        if (weights < 0).any():
            return f"there is a weight of {weights.min():.3g}"
    return None


weights_sum_to_one = Property(
    "The weights are 0 or above, and sum to 1 over all the places of a picture, rows and columns together.", _total
)


# --- wrong answers -------------------------------------------------------------------------------------------------


def weighing(weigh: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Result]:
    """Build a glimpse out of another way from scores to weights, both (batch, row, column)."""

    def seen(scores: Tensor, patches: Tensor) -> Result:
        weights = weigh(scores)
        return mixed(weights, patches), weights

    return seen


def mixed(weights: Tensor, patches: Tensor) -> Tensor:
    return (weights[..., None, None] * patches).sum(dim=(1, 2))


def right(scores: Tensor) -> Tensor:
    return scores.flatten(1).softmax(dim=1).view(scores.shape)


def unshifted(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(dim=(1, 2), keepdim=True)


def one_maximum(scores: Tensor) -> Tensor:
    raised = (scores - scores.max()).exp()
    return raised / raised.sum(dim=(1, 2), keepdim=True)


def chosen(scores: Tensor) -> Tensor:
    flat = scores.flatten(1)
    return torch.zeros_like(flat).scatter(1, flat.argmax(dim=1, keepdim=True), 1.0).view(scores.shape)


def mean_of_weighted(scores: Tensor, patches: Tensor) -> Result:
    return (right(scores)[..., None, None] * patches).mean(dim=(1, 2)), right(scores)


def columns_first(scores: Tensor, patches: Tensor) -> Result:
    weights = right(scores)
    lined_up = weights.transpose(1, 2).flatten(1)[..., None, None] * patches.flatten(1, 2)
    return lined_up.sum(dim=1), weights


def in_one_row(scores: Tensor, patches: Tensor) -> Result:
    return mixed(right(scores), patches), right(scores).flatten(1)


def glimpse_in_one_row(scores: Tensor, patches: Tensor) -> Result:
    return mixed(right(scores), patches).flatten(1), right(scores)


def swapped(scores: Tensor, patches: Tensor) -> Result:
    return right(scores), mixed(right(scores), patches)


def glimpse_alone(scores: Tensor, patches: Tensor) -> Tensor:
    return mixed(right(scores), patches)


def scores_returned(scores: Tensor, patches: Tensor) -> Result:
    return mixed(right(scores), patches), scores


def viewed(scores: Tensor, patches: Tensor) -> Result:
    weights = scores.view(len(scores), -1).softmax(dim=1)
    flat = patches.view(len(patches), weights.size(1), -1)
    return (weights[..., None] * flat).sum(dim=1).view(-1, *patches.shape[3:]), weights.view(scores.shape)


def float32(scores: Tensor, patches: Tensor) -> Result:
    return mixed(right(scores.float()), patches.float()), right(scores.float())


def squeezed(scores: Tensor, patches: Tensor) -> Result:
    return mixed(right(scores), patches).squeeze(), right(scores).squeeze()


def in_place(scores: Tensor, patches: Tensor) -> Result:
    scores -= scores.amax(dim=(1, 2), keepdim=True)
    return mixed(right(scores), patches), right(scores)


def rebuilt(scores: Tensor, patches: Tensor) -> Result:
    weights = torch.tensor(right(scores).tolist(), dtype=scores.dtype)
    return mixed(weights, patches), weights


MISCONCEPTIONS = (
    Misconception(
        "each_row_for_itself",
        "Softmax runs along the last axis alone. Each row of places then gets a total of 1, a row without anything in it as "
        "much as the row with the digit. All places of a picture are to compete with one another, so they must lie along one "
        "axis first.",
        LOOK,
        (
            weighing(lambda scores: scores.softmax(dim=-1)),
            weighing(lambda scores: scores.softmax(dim=-1) / scores.size(1)),
        ),
        ("https://github.com/gjylt/DoubleAttentionNet/issues/3",),
    ),
    Misconception(
        "each_column_for_itself",
        "Softmax runs along the rows' axis alone, so that each column of places gets a total of 1. All places of a picture "
        "are to compete with one another.",
        LOOK,
        (
            weighing(lambda scores: scores.softmax(dim=1)),
            weighing(lambda scores: scores.softmax(dim=1) / scores.size(2)),
        ),
    ),
    Misconception(
        "rows_times_columns",
        "One softmax along the rows and one along the columns do not make one over both. Multiplied, their weights do not "
        "sum to 1; one after the other, the second undoes the first. Line all places up, and let one softmax do it.",
        LOOK,
        (
            weighing(lambda scores: scores.softmax(dim=1) * scores.softmax(dim=2)),
            weighing(lambda scores: scores.softmax(dim=1).softmax(dim=2)),
            weighing(lambda scores: scores.softmax(dim=2).softmax(dim=1)),
        ),
    ),
    Misconception(
        "softmax_over_batch",
        "Softmax runs along the pictures of the batch: the same place in different pictures competes. With a single picture, "
        "every place gets the weight 1.",
        WEIGHTS,
        (weighing(lambda scores: scores.softmax(dim=0)),),
        (
            "https://github.com/cardwing/Codes-for-Lane-Detection/issues/235",
            "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
        ),
    ),
    Misconception(
        "one_softmax_for_all_pictures",
        "All places of all pictures share one softmax. Each picture's weights then sum to less than 1, and what is seen in "
        "one picture depends on the others.",
        WEIGHTS,
        (weighing(lambda scores: scores.flatten().softmax(dim=0).view(scores.shape)),),
    ),
    Misconception(
        "no_softmax",
        "The scores serve as weights as they are, or divided by their sum. But a score may be negative, and the sum of the "
        "scores may be 0 or below it: the result is no average.",
        WEIGHTS,
        (
            weighing(lambda scores: scores),
            weighing(lambda scores: scores / scores.sum(dim=(1, 2), keepdim=True)),
        ),
    ),
    Misconception(
        "gates",
        "Each place gets a weight between 0 and 1 of its own (sigmoid), without regard to the others. The places are to "
        "share a total of 1.",
        WEIGHTS,
        (weighing(torch.sigmoid),),
    ),
    Misconception(
        "best_alone",
        "The place with the highest score is taken alone. That is hard attention: no gradient reaches the scores, so where to "
        "look could not be learned like this.",
        SOFT,
        (weighing(chosen),),
    ),
    Misconception(
        "divided_once_more",
        "The weights are right, but the mean of the weighted patches divides by the number of places once more. The weights "
        "sum to 1 already: their sum is the average.",
        AVERAGE,
        (mean_of_weighted,),
    ),
    Misconception(
        "rows_and_columns_exchanged",
        "The weights were lined up column by column, and the patches row by row, so that weights meet the wrong patches. "
        "With one row or one column it doesn't show. Line up both in the same order.",
        PLACES,
        (columns_first,),
    ),
    Misconception(
        "left_in_one_row",
        "The numbers are right, but they are still lined up. The weights come back in rows and columns, like the scores, and "
        "the glimpse in rows and columns of pixels, like a patch, so that both can be drawn.",
        PLACES,
        (in_one_row, glimpse_in_one_row),
    ),
    Misconception(
        "results_swapped",
        "The two results are returned in the wrong order: the glimpse comes first, then the weights.",
        LOOK,
        (swapped,),
    ),
    Misconception(
        "weights_not_returned",
        "Only the glimpse is returned. The weights are wanted too, so that one can draw where the model looks.",
        LOOK,
        (glimpse_alone,),
    ),
    Misconception(
        "scores_returned",
        "The second result are the scores. The weights are what softmax makes of them.",
        LOOK,
        (scores_returned,),
    ),
    Misconception(
        "weights_detached",
        "The glimpse is right, but the scores get no gradient: the weights have been cut off on the way (.detach(), "
        ".tolist(), torch.tensor(...)). Where to look is then never learned.",
        LEARNS,
        (weighing(lambda scores: right(scores).detach()), rebuilt),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
    Misconception(
        "view_of_what_is_not_in_a_row",
        "view only reads memory in another way, so it raises an error where the numbers don't lie in the order that is asked "
        "for. Patches that were cut out of a picture share its memory, and never do. reshape and flatten copy where they must.",
        PLACES,
        (viewed,),
        ("https://github.com/facebookresearch/fairseq/issues/2598",),
    ),
    Misconception(
        "squeeze_everything",
        "squeeze() without a number takes out every axis of size 1, also that of a batch of one picture, or of one row of "
        "places. Name the axis that you mean.",
        PLACES,
        (squeezed,),
        ("https://github.com/NVIDIA/tacotron2/pull/303", "https://github.com/omertov/encoder4editing/pull/100"),
    ),
    Misconception(
        "always_float32",
        "The results are float32, whatever came in. Let the inputs decide the type.",
        PLACES,
        (float32,),
    ),
    Misconception(
        "changed_in_place",
        "The scores are changed in place (-=), in the caller's own tensor. Whoever uses them afterwards finds other numbers.",
        LOOK,
        (in_place,),
    ),
    Misconception(
        "exponential_overflows",
        "e is raised to the scores as they are. Beyond a score of 88 that is more than float32 can hold, infinity divided by "
        "infinity is not a number; and where all scores are far below 0, it is 0 divided by 0. Only differences of scores "
        "count, so the largest may be subtracted first.",
        OVERFLOW,
        (weighing(unshifted),),
    ),
    Misconception(
        "one_maximum_for_all_pictures",
        "The largest score of the whole batch is subtracted, instead of each picture's own. Beside a picture with very high "
        "scores, those of another one all become so low that e raised to them is 0, and 0 divided by 0 is not a number.",
        OVERFLOW,
        (weighing(one_maximum),),
    ),
)

EXERCISE = Exercise(
    name="glimpse",
    chapter="attention_intuition",
    kind="function",
    minutes=15,
    parts=(
        Part(
            "mixing",
            3,
            "return the average of the patches, weighted over all places of a picture, and the weights",
            LOOK,
        ),
        Part("gradients", 1, "pass the right gradients to scores and patches", LEARNS),
        Part("layouts", 1, "work for patches of any type, number and order in memory", PLACES),
        Part("large scores", 1, "give finite weights for scores of any size", OVERFLOW),
    ),
    results=("glimpse", "weights"),
    hints=(
        "A picture has two rows of three places. How many weights are there, and which of them sum to 1?",
        "softmax works along one axis, and the places lie along two. What if they were all in one row? Afterwards the weights "
        "go back into rows and columns.",
        "scores.flatten(1) lines up the places of each picture. After the softmax, put the weights back into the scores' "
        "shape; give them two more axes of size 1, so that each meets a whole patch; and sum over rows and columns.",
    ),
    cases=cases,
    reference=attention_intuition.glimpse,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: mend a model that gives every place the weight 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, unchanged

WEIGHTS, READ = "attention_intuition#where-the-weights-come-from", "attention_intuition#look-then-read"
AVERAGE, LEARNS = "attention_intuition#a-weighted-average", "attention_intuition#it-learns-where-to-look"
SOFT = "attention_intuition#soft-or-hard"


def look(patches: Tensor, scorer: Tensor) -> Tensor:
    weights = (patches @ scorer).softmax(dim=1)
    return (weights * patches).sum(dim=1)


def cases(rng: Generator) -> Iterator[Case]:
    patches = torch.tensor([[[4.0, 0.0], [8.0, 0.0]]])
    yield Case(
        "glimpse",
        "one picture with two patches, (4, 0) and (8, 0), both with the score 0",
        (Call((patches, torch.tensor([[0.0], [1.0]]))),),
        holds=(among(patches),),
    )
    for batch, places, pixels, label in (
        (1, 7, 5, ""),
        (3, 5, 2, ""),
        (2, 5, 5, "as many places as pixels"),
        (5, 5, 3, "as many pictures as places"),
    ):
        patches, scorer = inputs(rng, batch, places, pixels)
        text = describe(patches) + f", {label}" * bool(label)
        yield Case("glimpse", text, (Call((patches, scorer)),), holds=(among(patches),))
    patches, scorer = inputs(rng, 2, 5, 3)
    yield Case(
        "glimpse",
        describe(patches) + ", then with all scores of opposite sign",
        (Call((patches, scorer)), Call((patches, -scorer))),
        holds=(among(patches), depends_on_scores),
    )
    patches, scorer = inputs(rng, 3, 5, 2)
    other = patches.clone()
    other[1:] = randn(rng, 2, 5, 2)
    yield Case(
        "glimpse",
        describe(patches) + ", the other pictures changed",
        (Call((patches, scorer)), Call((other, scorer))),
        holds=(
            among(patches),
            unchanged(
                "The pictures of a batch do not affect one another.",
                "when only the other pictures were changed, the glimpse of the first one moved by {change}",
                where=0,
            ),
        ),
    )
    patches, scorer = inputs(rng, 2, 5, 3)
    yield Case("learning", describe(patches) + ", with gradients", (Call((patches, scorer), backward=True),))
    patches, scorer = inputs(rng, 3, 1, 2)
    yield Case("edges", describe(patches) + ": a single place", (Call((patches, scorer)),))
    patches, scorer = inputs(rng, 1, 1, 2)
    yield Case("edges", describe(patches) + ": a single picture with a single place", (Call((patches, scorer)),))
    patches, scorer = inputs(rng, 2, 5, 1)
    yield Case("edges", describe(patches) + ": patches of one pixel", (Call((patches, scorer)),))
    patches, scorer = inputs(rng, 2, 5, 3)
    yield Case("edges", describe(patches) + ", scores in the hundreds", (Call((patches, 200 * scorer)),))


def inputs(rng: Generator, batch: int, places: int, pixels: int) -> tuple[Tensor, Tensor]:
    return randn(rng, batch, places, pixels), randn(rng, pixels, 1)


def describe(patches: Tensor) -> str:
    batch, places, pixels = patches.shape
    counted = ((batch, "picture"), (places, "place"), (pixels, "pixel"))
    return ", ".join(f"{number} {name}{'s' * (number > 1)}" for number, name in counted)


def among(patches: Tensor) -> Property:
    """A glimpse is an average of the patches, so it lies among them."""
    lowest, highest = patches.amin(dim=1), patches.amax(dim=1)

    def broken(outputs: Sequence[Any]) -> str | None:
        slack = 1e-4 * (1 + patches.abs().max())
        outside = (outputs[0] > highest + slack) | (outputs[0] < lowest - slack)
        if not outside.any():
            return None
        picture, pixel = outside.nonzero()[0].tolist()
        return (
            f"in picture {picture}, pixel {pixel} of the glimpse is {outputs[0][picture, pixel]:.4g}, but in its patches "
            f"that pixel is between {lowest[picture, pixel]:.4g} and {highest[picture, pixel]:.4g}"
        )

    return Property("A glimpse is an average of the patches, so it lies among them.", broken)


def _blind(outputs: Sequence[Any]) -> str | None:
    one, other = outputs
    return None if (one - other).abs().max() > 1e-3 else "with all scores turned round, the glimpse stayed the same"


depends_on_scores = Property("What is seen depends on the scores.", _blind)


# --- wrong answers -------------------------------------------------------------------------------------------------


def over_one(patches: Tensor, scorer: Tensor) -> Tensor:
    weights = (patches @ scorer).softmax(dim=-1)
    return (weights * patches).sum(dim=1)


def weighing(weigh: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Build a look out of another way from scores, (batch, place, 1), to weights."""

    def looked(patches: Tensor, scorer: Tensor) -> Tensor:
        return (weigh(patches @ scorer) * patches).sum(dim=1)

    return looked


def chosen(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(1, scores.argmax(dim=1, keepdim=True), 1.0)


def plain_mean(patches: Tensor, scorer: Tensor) -> Tensor:
    return patches.mean(dim=1)


def mean_of_weighted(patches: Tensor, scorer: Tensor) -> Tensor:
    return ((patches @ scorer).softmax(dim=1) * patches).mean(dim=1)


def after_the_product(patches: Tensor, scorer: Tensor) -> Tensor:
    return ((patches @ scorer) * patches).softmax(dim=1).sum(dim=1)


def softmax_of_patches(patches: Tensor, scorer: Tensor) -> Tensor:
    return ((patches @ scorer) * patches.softmax(dim=1)).sum(dim=1)


def squeezed(patches: Tensor, scorer: Tensor) -> Tensor:
    weights = (patches @ scorer).squeeze().softmax(dim=-1)
    return (weights.unsqueeze(1) @ patches).squeeze(1)


def squeezed_at_the_end(patches: Tensor, scorer: Tensor) -> Tensor:
    return look(patches, scorer).squeeze()


def over_pixels(patches: Tensor, scorer: Tensor) -> Tensor:
    return ((patches @ scorer).softmax(dim=1) * patches).sum(dim=-1)


MISCONCEPTIONS = (
    Misconception(
        "softmax_over_one",
        "Softmax runs along the last axis, which has the size 1: each score is alone there, and gets the weight 1 whatever "
        "it is. It has to run along the axis of places, among which the weight is to be shared out.",
        WEIGHTS,
        (over_one,),
        (
            "https://github.com/phanideepgampa/stacked-capsule-networks/pull/5",
            "https://github.com/Amshaker/SwiftFormer/issues/2",
            "https://github.com/localminimum/R-net/issues/8",
        ),
    ),
    Misconception(
        "softmax_over_batch",
        "Softmax runs along the pictures of the batch. The same place in different pictures then competes, and what is seen "
        "in one picture depends on the others. With a single picture in the batch, every place gets the weight 1.",
        WEIGHTS,
        (weighing(lambda scores: scores.softmax(dim=0)),),
        (
            "https://github.com/cardwing/Codes-for-Lane-Detection/issues/235",
            "https://github.com/PetrochukM/PyTorch-NLP/issues/2",
        ),
    ),
    Misconception(
        "one_softmax_for_all_pictures",
        "All places of all pictures share one softmax. The weights of a single picture then sum to less than 1, and its "
        "glimpse fades as the batch grows. Each picture has a total of 1 of its own.",
        WEIGHTS,
        (weighing(lambda scores: scores.flatten().softmax(dim=0).view_as(scores)),),
    ),
    Misconception(
        "weights_ignored",
        "The sum has become a plain average of the patches. Its size is right now, but each place still counts alike, "
        "whatever its score: the model looks everywhere and nowhere. The slip is not in the sum, but in how the weights "
        "are made.",
        AVERAGE,
        (plain_mean,),
    ),
    Misconception(
        "divided_once_more",
        "The weights are right, but mean divides by the number of places once more. The weights sum to 1 already, so "
        "the glimpse has become too faint.",
        AVERAGE,
        (mean_of_weighted,),
    ),
    Misconception(
        "gates",
        "Each place gets a weight between 0 and 1 of its own (sigmoid). But the places are to compete for one total of 1: "
        "so as it is, a picture with many good places gives a bright glimpse, and one with none a dark one.",
        WEIGHTS,
        (weighing(torch.sigmoid),),
    ),
    Misconception(
        "no_softmax",
        "The scores serve as weights as they are, or divided by their sum. Scores may be negative, and their sum may be 0: "
        "the result is no average. Softmax has its place here; the question is along which axis.",
        WEIGHTS,
        (weighing(lambda scores: scores), weighing(lambda scores: scores / scores.sum(dim=1, keepdim=True))),
    ),
    Misconception(
        "best_alone",
        "The place with the highest score is taken alone. That is hard attention: a small change of a score changes "
        "nothing, so the scorer gets no gradient and can't learn. The code mixed, and mixing was meant.",
        SOFT,
        (weighing(chosen),),
    ),
    Misconception(
        "softmax_of_something_else",
        "Softmax is applied to patches, or to scores times patches, instead of to the scores. Each pixel then has weights "
        "of its own. Scores are turned into weights first, and only then meet the patches.",
        READ,
        (after_the_product, softmax_of_patches),
    ),
    Misconception(
        "sum_over_pixels",
        "The sum runs along the pixels, so that one number a place is left instead of one picture. It's the places that are "
        "mixed.",
        AVERAGE,
        (over_pixels,),
    ),
    Misconception(
        "weights_detached",
        "The glimpse is right, but the scorer gets no gradient: the weights have been cut off on the way. It would never "
        "learn where to look.",
        LEARNS,
        (weighing(lambda scores: scores.softmax(dim=1).detach()),),
        ("https://github.com/facebookresearch/inversecooking/issues/3",),
    ),
    Misconception(
        "squeeze_everything",
        "squeeze() without a number takes out every axis of size 1: the last one, which was meant, and also that of a "
        "single place or a single picture. Then softmax runs along another axis. Name the axis that you mean.",
        WEIGHTS,
        (squeezed, squeezed_at_the_end),
        (
            "https://github.com/KrishnaDN/Attentive-Statistics-Pooling-for-Deep-Speaker-Embedding/issues/3",
            "https://github.com/NVIDIA/tacotron2/pull/303",
        ),
    ),
)

EXERCISE = Exercise(
    name="look",
    chapter="attention_intuition",
    kind="function",
    minutes=10,
    task="repair",
    parts=(
        Part(
            "glimpse",
            2,
            "return the average of each picture's patches, weighted by what softmax makes of the scores",
            WEIGHTS,
        ),
        Part("learning", 1, "pass the right gradients to the scorer and the patches", LEARNS),
        Part(
            "edges", 1, "work with a single picture, a single place and a single pixel, and with large scores", WEIGHTS
        ),
    ),
    hints=(
        "Print the weights for one picture with three places. What do they sum to, and what should they sum to?",
        "The scores have three axes. Which sizes have they, and along which of them do the places of one picture lie?",
        "Softmax makes the numbers along one axis sum to 1. Along an axis of size 1, every number becomes 1. Name the axis "
        "of the places instead.",
    ),
    cases=cases,
    reference=look,
    misconceptions=MISCONCEPTIONS,
)

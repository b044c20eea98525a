"""Exercise: rule out all but the k best tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import generation
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, sequence_first

SECTION = "transformer#drawing-lots"
CLAMP = (
    "One thing could be better: a k larger than the vocabulary ends in an error. There is nothing to rule out then, and "
    "min(k, logits.size(-1)) makes it so."
)


def cases(rng: Generator) -> Iterator[Case]:
    for size, k, scale in ((5, 2, 1.0), (3, 1, 1.0), (7, 5, 9.0), (11, 10, 1.0), (2, 2, 1.0)):
        yield case("one row", scores(rng, size, scale=scale), k)
    yield case("one row", -scores(rng, 7).abs() - 1, 3, "all scores below 0")
    yield case("one row", scores(rng, 1, 7), 3)
    yield case("one row", scores(rng, 7, dtype=torch.float64), 2, "float64")
    yield case("one row", torch.tensor([0.5, 2.0, -1.0, 0.0, 7.0, -0.25, 1.0]).half(), 3, "float16")
    ruled_out = scores(rng, 7)
    ruled_out[[1, 4]] = -math.inf
    yield case("one row", ruled_out, 2, "two tokens already ruled out")
    shapes: tuple[tuple[tuple[int, ...], int], ...]
    shapes = (((2, 5), 3), ((3, 7), 1), ((5, 3), 2), ((7, 11), 10), ((3, 2, 5), 2), ((3, 3), 2))
    for shape, k in shapes:
        yield case("batch", scores(rng, *shape), k)
    far_apart = scores(rng, 3, 7) + torch.tensor([[0.0], [50.0], [-50.0]])
    yield case("batch", far_apart, 3, "one row's scores far above the others'")
    yield case("batch", sequence_first(scores(rng, 3, 5)), 2, "stored with its axes exchanged")
    x = scores(rng, 5)
    yield Case("one row", label(x, 9), (Call((x, 9)),), advice=CLAMP)


def case(part: str, logits: Tensor, k: int, note: str = "") -> Case:
    return Case(part, label(logits, k, note), (Call((logits, k)),), holds=(keeps_the_best(logits, k),))


def label(logits: Tensor, k: int, note: str = "") -> str:
    return f"logits {tuple(logits.shape)}, k = {k}" + f", {note}" * bool(note)


def scores(rng: Generator, *shape: int, scale: float = 2.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw scores of which no two are nearly equal."""
    while True:
        logits = randn(rng, *shape, scale=scale, dtype=dtype)
        if shape[-1] == 1 or logits.sort(dim=-1).values.diff(dim=-1).min() > 1e-3 * scale:
            return logits


def keeps_the_best(logits: Tensor, k: int) -> Property:
    best = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.topk(k, dim=-1).indices, True)
    best &= logits.isfinite()

    def broken(outputs: Sequence[Any]) -> str | None:
        kept = outputs[0].isfinite()
        if kept.all() and not best.all():
            return "none of your scores is -inf"
        for row, (found, right) in enumerate(zip(by_rows(kept), by_rows(best), strict=True)):
            if not torch.equal(found, right):
                where = f"in row {row} " if logits.dim() > 1 else ""
                return f"{where}you kept {ids(found)}, where it should be {ids(right)}"
        return None

    return Property("The k tokens with the highest scores stay, in each row; all others get -inf.", broken)


def by_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.size(-1))


def ids(kept: Tensor) -> str:
    found = kept.nonzero().flatten().tolist()
    return "no token" if not found else f"token{'s' * (len(found) > 1)} {', '.join(map(str, found))}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def keeping(wanted: Callable[[Tensor, int], Tensor], fill: float = -math.inf) -> Callable[[Tensor, int], Tensor]:
    """Build a filter that keeps what `wanted` says, and fills the rest."""

    def top_k_filter(logits: Tensor, k: int) -> Tensor:
        return logits.masked_fill(~wanted(logits, min(k, logits.size(-1))), fill)

    return top_k_filter


def rank(logits: Tensor) -> Tensor:
    return logits.argsort(dim=-1, descending=True).argsort(dim=-1)


def the_best(logits: Tensor, k: int) -> Tensor:
    return rank(logits) < k


def one_too_many(logits: Tensor, k: int) -> Tensor:
    return rank(logits) <= k


def one_too_few(logits: Tensor, k: int) -> Tensor:
    return rank(logits) < k - 1


def the_worst(logits: Tensor, k: int) -> Tensor:
    return rank(-logits) < k


def all_but_the_best(logits: Tensor, k: int) -> Tensor:
    return rank(logits) >= k


def above_the_lowest_limit(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.topk(k, dim=-1).values.min()


def above_the_first_rows_limit(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.topk(k, dim=-1).values.flatten(0, -2)[0, -1] if logits.dim() > 1 else the_best(logits, k)


def above_each_columns_limit(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.topk(k, dim=-1).values[..., -1]


def above_the_best(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.amax(dim=-1, keepdim=True)


def above_the_kth_worst(logits: Tensor, k: int) -> Tensor:
    return rank(-logits) >= k - 1


def best_of_the_batch(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.flatten().topk(k).values[-1]


def above_the_best_limit(logits: Tensor, k: int) -> Tensor:
    return logits >= logits.topk(k, dim=-1).values[..., -1].max()


def chosen_by_any_row(logits: Tensor, k: int) -> Tensor:
    return (
        the_best(logits, k).flatten(0, -2).any(dim=0).expand(logits.shape) if logits.dim() > 1 else the_best(logits, k)
    )


def along_the_batch(logits: Tensor, k: int) -> Tensor:
    order = logits.argsort(dim=0, descending=True).argsort(dim=0)
    return order < k


def by_size_without_sign(logits: Tensor, k: int) -> Tensor:
    return rank(logits.abs()) < k


def first_columns(logits: Tensor, k: int) -> Tensor:
    return (torch.arange(logits.size(-1)) < k).expand(logits.shape)


def only_the_kept(logits: Tensor, k: int) -> Tensor:
    return logits.topk(min(k, logits.size(-1)), dim=-1).values


def left_sorted(logits: Tensor, k: int) -> Tensor:
    return keeping(the_best)(logits.sort(dim=-1, descending=True).values, k)


def indices(logits: Tensor, k: int) -> Tensor:
    return logits.topk(min(k, logits.size(-1)), dim=-1).indices


def probabilities(logits: Tensor, k: int) -> Tensor:
    return keeping(the_best)(logits, k).softmax(dim=-1)


def log_probabilities(logits: Tensor, k: int) -> Tensor:
    return keeping(the_best)(logits, k).log_softmax(dim=-1)


def in_place(logits: Tensor, k: int) -> Tensor:
    return logits.masked_fill_(rank(logits) >= k, -math.inf)


def mask_alone(logits: Tensor, k: int) -> Tensor:
    return the_best(logits, k)


MISCONCEPTIONS = (
    Misconception(
        "topk_keeps_extra",
        "One token too many stays: k + 1 of them. Counted from 0, the k best have the ranks 0 to k - 1, so rank k must go "
        "too. It shows at k = 1, which should leave nothing to chance, as greedy decoding does, and still draws between "
        "two tokens.",
        SECTION,
        (keeping(one_too_many),),
        ("https://github.com/kingoflolz/mesh-transformer-jax/issues/164",),
    ),
    Misconception(
        "keeps_one_too_few",
        "One token too few stays: the k-th best has gone too. It is the last one that belongs to the k best; only what is "
        "*below* its score goes. At k = 1 nothing at all would be left.",
        SECTION,
        (keeping(one_too_few),),
    ),
    Misconception(
        "best_score_as_limit",
        "Only the best token stays, whatever k is: its score has been taken for the limit. topk gives the k best scores from "
        "high to low, so that the first of them is the very best, and the last one is the limit.",
        SECTION,
        (keeping(above_the_best),),
    ),
    Misconception(
        "kth_lowest_as_limit",
        "The limit is the k-th score counted from the *lowest*. kthvalue, sort and argsort go from small to large unless they "
        "are told otherwise. Nearly everything stays.",
        SECTION,
        (keeping(above_the_kth_worst),),
    ),
    Misconception(
        "keeps_the_worst",
        "The choice is upside down: what should be ruled out stays, or the worst tokens are kept in place of the best. "
        "masked_fill fills where its mask is True, so its mask says what goes; and the best are the *largest* scores.",
        SECTION,
        (keeping(all_but_the_best), keeping(the_worst)),
        ("https://github.com/EricLBuehler/mistral.rs/pull/1316",),
    ),
    Misconception(
        "ruled_out_with_zero",
        "What is ruled out gets a score of about 0. But 0 is an ordinary score: softmax turns it into exp(0) = 1 before "
        "dividing, and where most scores are negative that makes the ruled-out tokens the most probable ones. A score "
        "that gives probability 0 is needed. (0 is right for probabilities, and these are not yet probabilities.)",
        SECTION,
        (keeping(the_best, 0.0), keeping(the_best, 1e-10)),
        ("https://github.com/karpathy/minGPT/issues/10",),
    ),
    Misconception(
        "large_negative_number",
        "What is ruled out gets a large negative number, where -inf is asked for. After softmax both are 0 in most cases. "
        "But that number is still a score: at a high temperature it comes nearer, float16 has no -1e9, and nothing that "
        "comes later can tell what was ruled out.",
        SECTION,
        tuple(keeping(the_best, fill) for fill in (-1e9, -1e10, -1e4, torch.finfo(torch.float32).min)),
    ),
    Misconception(
        "one_limit_for_the_batch",
        "All rows are measured by one limit. With a single row that is the same; in a batch the rows have nothing to do "
        "with one another, and where the scores of one text lie higher than those of another it keeps too many tokens in "
        "the one and none in the other. Each row needs its own k-th best score, with an axis of size 1 left in the last "
        "place so that it broadcasts along the row.",
        SECTION,
        (
            keeping(above_the_lowest_limit),
            keeping(above_the_first_rows_limit),
            keeping(best_of_the_batch),
            keeping(above_the_best_limit),
            keeping(above_each_columns_limit),
        ),
        ("https://github.com/huggingface/transformers/pull/338",),
    ),
    Misconception(
        "chosen_by_any_row",
        "A token that is among the best in one row is kept in all rows. Indices of one row say nothing about another: "
        "they have to be applied row by row.",
        SECTION,
        (keeping(chosen_by_any_row),),
    ),
    Misconception(
        "along_the_batch",
        "The tokens are ranked along axis 0, among the texts of the batch. The scores of one text's next token stand along "
        "the *last* axis.",
        SECTION,
        (keeping(along_the_batch),),
    ),
    Misconception(
        "ranked_without_sign",
        "The scores are ranked by their size without the sign. A score far below 0 is a very bad one.",
        SECTION,
        (keeping(by_size_without_sign),),
    ),
    Misconception(
        "first_k_columns",
        "The first k columns of the vocabulary are kept. That would be right after sorting; here the tokens stand in the "
        "order of their ids.",
        SECTION,
        (keeping(first_columns),),
    ),
    Misconception(
        "left_sorted",
        "The scores come back in sorted order. The place of a score says which token it belongs to, so every token now has "
        "the score of another one. What is kept has to stay where it was.",
        SECTION,
        (left_sorted,),
    ),
    Misconception(
        "only_the_k_scores",
        "Only the k best scores are returned. Then the place of a score no longer says which token it belongs to: all "
        "tokens keep their places, and what is ruled out stands there with -inf.",
        SECTION,
        (only_the_kept,),
    ),
    Misconception(
        "indices_returned",
        "The ids of the k best tokens are returned, where scores are asked for: one for each token of the vocabulary.",
        SECTION,
        (indices,),
    ),
    Misconception(
        "mask_returned",
        "The result says which tokens stay, but has no scores in it. Apply the mask to the logits.",
        SECTION,
        (mask_alone,),
    ),
    Misconception(
        "probabilities_returned",
        "The result has been through softmax. A filter takes scores and gives scores, so that another filter, or a "
        "temperature, can come after it; whoever draws applies softmax once, at the end.",
        SECTION,
        (probabilities, log_probabilities),
    ),
    Misconception(
        "logits_changed",
        "The result is right, but the logits that were handed in have been changed. The caller may need them again: for "
        "the probability of what was drawn, say, or to filter them in another way.",
        SECTION,
        (in_place,),
    ),
)

EXERCISE = Exercise(
    name="top_k_filter",
    chapter="generation",
    kind="function",
    minutes=10,
    parts=(
        Part("one row", 2, "keep the k highest scores in their places and set all others to -inf", SECTION),
        Part("batch", 1, "treat each row of a batch by itself", SECTION),
    ),
    hints=(
        "Which single number tells, for a row, whether a score stays or goes?",
        "torch.topk(logits, k, dim=-1) gives the k highest scores of each row, in order, and where they stood. Only one "
        "of them is needed as the limit; which one?",
        "The limit is the last of the k values; slice it as values[..., -1:], so that it keeps an axis of size 1 and "
        "broadcasts along its row. What is below the limit is filled with -inf by masked_fill, which makes a new tensor.",
    ),
    cases=cases,
    reference=generation.top_k_filter,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: rule out all but the smallest set of tokens whose probability reaches p."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import generation
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.generation.top_k_filter import by_rows, ids, scores
from mha_course.exercises.properties import sequence_first

SECTION = "transformer#drawing-lots"
EXACTLY = (
    "One thing could be better: where the probability of a set is exactly p it has been reached, and one token more is "
    "kept than is needed. Compare what came *before* a token with p: at p itself nothing is missing any more."
)


def cases(rng: Generator) -> Iterator[Case]:
    yield case("one row", torch.tensor([0.1, 0.5, 0.25, 0.15]).log(), 0.6)
    yield case("one row", torch.tensor([0.3, 0.05, 0.2, 0.45]).log() + 3, 0.9)
    for size, p, scale in ((5, 0.7, 1.0), (7, 0.9, 2.0), (11, 0.5, 1.0), (13, 0.8, 0.5), (3, 0.3, 1.0)):
        yield case("one row", scores(rng, size, scale=scale), p)
    confident = scores(rng, 5)
    confident[3] += 9
    yield case("one row", confident, 0.5, "one token nearly certain")
    yield case("one row", scores(rng, 7), 1e-9, "p almost 0")
    yield case("one row", scores(rng, 7, scale=1.0), 1.0)
    yield case("one row", -scores(rng, 7).abs() - 1, 0.8, "all scores below 0")
    yield case("one row", scores(rng, 7, dtype=torch.float64), 0.8, "float64")
    yield case("one row", scores(rng, 1, 7), 0.8)
    ruled_out = scores(rng, 7)
    ruled_out[[1, 4]] = -math.inf
    yield case("one row", ruled_out, 0.9, "two tokens already ruled out")
    for shape, p in (((2, 5), 0.6), ((3, 7), 0.8), ((7, 5), 0.9), ((3, 2, 5), 0.7), ((5, 11), 0.5), ((3, 3), 0.6)):
        yield case("batch", scores(rng, *shape), p)
    sure = scores(rng, 3, 7, scale=1.0)
    sure[1, 2] += 9
    yield case("batch", sure, 0.6, "row 1 nearly certain")
    yield case("batch", sequence_first(scores(rng, 3, 5)), 0.7, "stored with its axes exchanged")
    equal = torch.zeros(4)
    yield Case(
        "one row",
        "logits (4,), p = 0.5, all scores equal",
        (Call((equal, 0.5)),),
        compare=False,
        holds=(Property("The set is no larger than it need be.", _more_than_two),),
        advice=EXACTLY,
    )


def case(part: str, logits: Tensor, p: float, note: str = "") -> Case:
    p = away_from_sums(logits, p)
    text = f"logits {tuple(logits.shape)}, p = {p:g}" + f", {note}" * bool(note)
    return Case(part, text, (Call((logits, p)),), holds=(keeps_the_nucleus(logits, p),))


def away_from_sums(logits: Tensor, p: float) -> float:
    """Move p so far from every possible sum that rounding decides nothing."""
    sums = logits.double().sort(dim=-1, descending=True).values.softmax(dim=-1).cumsum(dim=-1)
    while 1e-6 < p < 1 and (sums - p).abs().min() < 1e-3:
        p = round(p - 0.003, 3)
    return p


def keeps_the_nucleus(logits: Tensor, p: float) -> Property:
    likely = by_rows(logits.double().softmax(dim=-1))
    right = by_rows(nucleus(logits, p) & logits.isfinite())

    def broken(outputs: Sequence[Any]) -> str | None:
        kept = by_rows(outputs[0].isfinite())
        if kept.all() and not right.all():
            return "none of your scores is -inf"
        for row, (found, wanted) in enumerate(zip(kept, right, strict=True)):
            if torch.equal(found, wanted):
                continue
            where = f"in row {row} " if logits.dim() > 1 else ""
            reached, enough = likely[row][found].sum(), likely[row][wanted].sum()
            return (
                f"{where}you kept {ids(found)} with a probability of {reached:.3g} in all; "
                f"the set is {ids(wanted)}, with {enough:.3g}"
            )
        return None

    return Property(
        "The most probable tokens stay, in each row, just as many as it takes to reach p; all others get -inf.", broken
    )


def _more_than_two(outputs: Sequence[Any]) -> str | None:
    kept = int(outputs[0].isfinite().sum())
    return None if kept == 2 else f"2 of 4 equal tokens reach 0.5, and you kept {kept}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def nucleus(logits: Tensor, p: float) -> Tensor:
    """Say which tokens stay, in the order of their ids."""
    return unsorted(logits, before(logits) < p)


def in_order(logits: Tensor) -> Tensor:
    return logits.sort(dim=-1, descending=True).values.softmax(dim=-1)


def before(logits: Tensor) -> Tensor:
    """What the tokens that are more probable than each one reach without it, in sorted order."""
    return reached(logits) - in_order(logits)


def reached(logits: Tensor) -> Tensor:
    return in_order(logits).cumsum(dim=-1)


def unsorted(logits: Tensor, kept: Tensor) -> Tensor:
    return torch.zeros_like(kept).scatter(-1, logits.argsort(dim=-1, descending=True), kept)


def keeping(wanted: Callable[[Tensor, float], Tensor], fill: float = -math.inf) -> Callable[[Tensor, float], Tensor]:
    """Build a filter that keeps what `wanted` says, and fills the rest."""

    def top_p_filter(logits: Tensor, p: float) -> Tensor:
        return logits.masked_fill(~wanted(logits, p), fill)

    return top_p_filter


def gathered_back(logits: Tensor, p: float) -> Tensor:
    ordered, order = logits.sort(dim=-1, descending=True)
    return ordered.masked_fill(before(logits) >= p, -math.inf).gather(-1, order)


def mask_gathered_back(logits: Tensor, p: float) -> Tensor:
    return (before(logits) < p).gather(-1, logits.argsort(dim=-1, descending=True))


def mask_not_put_back(logits: Tensor, p: float) -> Tensor:
    return before(logits) < p


def left_sorted(logits: Tensor, p: float) -> Tensor:
    return logits.sort(dim=-1, descending=True).values.masked_fill(before(logits) >= p, -math.inf)


def below_p_and_the_first(logits: Tensor, p: float) -> Tensor:
    kept = reached(logits) <= p
    kept[..., 0] = True
    return unsorted(logits, kept)


def below_p(logits: Tensor, p: float) -> Tensor:
    return unsorted(logits, reached(logits) <= p)


def first_row_spared(logits: Tensor, p: float) -> Tensor:
    removed = reached(logits) > p
    removed[..., 1:] = removed[..., :-1].clone()
    removed[0] = False
    return unsorted(logits, ~removed)


def first_row_spared_unshifted(logits: Tensor, p: float) -> Tensor:
    removed = reached(logits) > p
    removed[0] = False
    return unsorted(logits, ~removed)


def one_too_many(logits: Tensor, p: float) -> Tensor:
    kept = before(logits) < p
    kept[..., 1:] |= kept[..., :-1].clone()
    return unsorted(logits, kept)


def worst_added_up(logits: Tensor, p: float) -> Tensor:
    ordered = logits.sort(dim=-1).values.softmax(dim=-1)
    kept = ordered.cumsum(dim=-1) - ordered < p
    return torch.zeros_like(kept).scatter(-1, logits.argsort(dim=-1), kept)


def worst_kept_below_p(logits: Tensor, p: float) -> Tensor:
    kept = logits.sort(dim=-1).values.softmax(dim=-1).cumsum(dim=-1) <= p
    return torch.zeros_like(kept).scatter(-1, logits.argsort(dim=-1), kept)


def in_order_of_ids(logits: Tensor, p: float) -> Tensor:
    likely = logits.softmax(dim=-1)
    return likely.cumsum(dim=-1) - likely < p


def below_p_in_order_of_ids(logits: Tensor, p: float) -> Tensor:
    return logits.softmax(dim=-1).cumsum(dim=-1) <= p


def scores_added_up(logits: Tensor, p: float) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values
    return unsorted(logits, ordered.cumsum(dim=-1) - ordered < p)


def logarithms_added_up(logits: Tensor, p: float) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values.log_softmax(dim=-1)
    return unsorted(logits, ordered.cumsum(dim=-1) - ordered < p)


def at_least_p_each(logits: Tensor, p: float) -> Tensor:
    return logits.softmax(dim=-1) >= p


def at_least_the_rest_each(logits: Tensor, p: float) -> Tensor:
    return logits.softmax(dim=-1) >= 1 - p


def compared_with_the_best(logits: Tensor, p: float) -> Tensor:
    likely = logits.softmax(dim=-1)
    return likely >= p * likely.amax(dim=-1, keepdim=True)


def reaching_the_rest(logits: Tensor, p: float) -> Tensor:
    return nucleus(logits, 1 - p)


def share_of_the_vocabulary(logits: Tensor, p: float) -> Tensor:
    return logits.argsort(dim=-1, descending=True).argsort(dim=-1) < max(1, math.ceil(p * logits.size(-1)))


def softmax_along_the_batch(logits: Tensor, p: float) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True).values.softmax(dim=0)
    return unsorted(logits, ordered.cumsum(dim=-1) - ordered < p)


def along_the_batch(logits: Tensor, p: float) -> Tensor:
    return nucleus(logits.transpose(0, -1), p).transpose(0, -1)


def dropped_by_any_row(logits: Tensor, p: float) -> Tensor:
    return by_rows(nucleus(logits, p)).all(dim=0).expand(logits.shape)


def order_of_the_first_row(logits: Tensor, p: float) -> Tensor:
    order = by_rows(logits.argsort(dim=-1, descending=True))[0].expand(logits.shape)
    return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before(logits) < p)


def summed_along_the_batch(logits: Tensor, p: float) -> Tensor:
    ordered = in_order(logits)
    return unsorted(logits, ordered.cumsum(dim=0) - ordered < p)


def all_but_the_set(logits: Tensor, p: float) -> Tensor:
    return ~nucleus(logits, p)


def softmax_twice(logits: Tensor, p: float) -> Tensor:
    return nucleus(logits.softmax(dim=-1), p)


def in_place(logits: Tensor, p: float) -> Tensor:
    return logits.masked_fill_(~nucleus(logits, p), -math.inf)


def probabilities(logits: Tensor, p: float) -> Tensor:
    return keeping(nucleus)(logits, p).softmax(dim=-1)


def log_probabilities(logits: Tensor, p: float) -> Tensor:
    return keeping(nucleus)(logits, p).log_softmax(dim=-1)


def log_probabilities_not_scaled(logits: Tensor, p: float) -> Tensor:
    return logits.log_softmax(dim=-1).masked_fill(~nucleus(logits, p), -math.inf)


def probabilities_not_scaled(logits: Tensor, p: float) -> Tensor:
    return logits.softmax(dim=-1).masked_fill(~nucleus(logits, p), 0.0)


MISCONCEPTIONS = (
    Misconception(
        "topp_reordered",
        "The right number of tokens stays, but the scores, or the marks that say what stays, have not been brought back "
        "to the tokens that they belong to. After sorting, `order[i]` says which token stands in place i. Reading *from* "
        "the places that order names (gather, or plain indexing) does the sorting once more; to undo it, what stands in "
        "place i has to be written *to* the place order[i]. On logits that are sorted already the two are the same.",
        SECTION,
        (gathered_back, keeping(mask_gathered_back), keeping(mask_not_put_back)),
        (
            "https://github.com/lucidrains/routing-transformer/issues/1",
            "https://github.com/lucidrains/PaLM-rlhf-pytorch/issues/60",
        ),
    ),
    Misconception(
        "left_sorted",
        "The scores come back in sorted order. The place of a score says which token it belongs to, so every token now has "
        "the score of another one.",
        SECTION,
        (left_sorted,),
    ),
    Misconception(
        "crossing_token_dropped",
        "The token with which p is passed is ruled out, so that what is left stays below p. It seems natural to keep "
        "everything whose running sum is at most p. But the set has to *reach* p, and it's this token that makes it do so. "
        "Where the best token alone has more than p, nothing at all would be left. A token is superfluous only if those "
        "before it have reached p without it.",
        SECTION,
        (keeping(below_p_and_the_first), keeping(below_p)),
        (
            "https://github.com/rasbt/reasoning-from-scratch/issues/164",
            "https://github.com/fishaudio/fish-speech/pull/1171",
            "https://github.com/Biohub/esm/pull/360",
            "https://github.com/aws-neuron/transformers-neuronx/issues/46",
        ),
    ),
    Misconception(
        "first_row_spared",
        "Index 0 was meant to be the best token, which always stays; with a batch it is the first *row*, which is then not "
        "filtered at all, while in the other rows nothing protects the best token. `[..., 0]` is the first of the last "
        "axis, whatever stands in front.",
        SECTION,
        (keeping(first_row_spared), keeping(first_row_spared_unshifted)),
        (
            "https://github.com/fishaudio/fish-speech/pull/1326",
            "https://github.com/fishaudio/fish-speech/pull/1151",
        ),
    ),
    Misconception(
        "one_too_many",
        "One token too many stays. The token with which p is reached belongs to the set; the one after it does not.",
        SECTION,
        (keeping(one_too_many),),
    ),
    Misconception(
        "set_ruled_out",
        "The set itself is ruled out, and what it leaves over stays. masked_fill fills where its mask is True, so its mask "
        "says what goes.",
        SECTION,
        (keeping(all_but_the_set),),
    ),
    Misconception(
        "least_probable_first",
        "The tokens are added up from the least probable one. The set then holds many unlikely tokens, and the best one "
        "only if everything else is not enough. argsort and sort go from small to large unless they are told otherwise.",
        SECTION,
        (keeping(worst_added_up), keeping(worst_kept_below_p)),
    ),
    Misconception(
        "not_sorted",
        "The probabilities are added up in the order of the vocabulary. Which tokens stay then depends on their ids. The "
        "smallest set that reaches p is the one that starts with the most probable token and goes down from there.",
        SECTION,
        (keeping(in_order_of_ids), keeping(below_p_in_order_of_ids)),
        ("https://github.com/dmlc/gluon-nlp/issues/1481",),
    ),
    Misconception(
        "scores_added_up",
        "What is added up are scores, or logarithms of probabilities. p is a probability, and only probabilities add up "
        "to 1: softmax comes before the running sum.",
        SECTION,
        (keeping(scores_added_up), keeping(logarithms_added_up)),
        ("https://github.com/skyzh/tiny-llm/issues/32",),
    ),
    Misconception(
        "each_token_measured_alone",
        "Each token is compared with a limit by itself: its probability with p, with 1 - p, or with a share of the best "
        "one's (that is another filter, min-p). Top-p looks at the *sum*: a token of .05 stays if those before it reach "
        "only .88 of .9.",
        SECTION,
        (keeping(at_least_p_each), keeping(at_least_the_rest_each), keeping(compared_with_the_best)),
    ),
    Misconception(
        "one_minus_p",
        "The set reaches 1 - p instead of p. p is what is kept; 1 - p, or a little less, is what is ruled out.",
        SECTION,
        (keeping(reaching_the_rest),),
    ),
    Misconception(
        "share_of_the_vocabulary",
        "p is taken for a share of the vocabulary: a fixed number of tokens stays. It's a share of the *probability*. That "
        "is the point of top-p: few tokens where the model is sure, many where it isn't.",
        SECTION,
        (keeping(share_of_the_vocabulary),),
    ),
    Misconception(
        "along_the_batch",
        "softmax, or all of it, runs along axis 0, among the texts of the batch. The probabilities of one text's next "
        "token stand along the *last* axis and sum to 1 there.",
        SECTION,
        (keeping(softmax_along_the_batch), keeping(along_the_batch), keeping(summed_along_the_batch)),
    ),
    Misconception(
        "rows_mixed",
        "One row's tokens are applied to another row. With a single row it works. In a batch each row has an order of its "
        "own, so what stays must be brought back row by row; a list of ids, used as an index, rules its tokens out in all "
        "rows.",
        SECTION,
        (keeping(dropped_by_any_row), keeping(order_of_the_first_row)),
        ("https://github.com/Blaizzy/mlx-vlm/pull/1094",),
    ),
    Misconception(
        "softmax_twice",
        "softmax has been applied twice. The second one takes probabilities for scores; as these all lie between 0 and 1 "
        "it makes the tokens nearly equal, and far too many stay.",
        SECTION,
        (keeping(softmax_twice),),
    ),
    Misconception(
        "ruled_out_with_zero",
        "What is ruled out gets a score of 0. But 0 is an ordinary score: softmax turns it into exp(0) = 1 before dividing. "
        "A score that gives probability 0 is needed.",
        SECTION,
        (keeping(nucleus, 0.0),),
    ),
    Misconception(
        "large_negative_number",
        "What is ruled out gets a large negative number, where -inf is asked for. After softmax both are 0 in most cases. "
        "But that number is still a score: at a high temperature it comes nearer, float16 has no -1e9, and nothing that "
        "comes later can tell what was ruled out.",
        SECTION,
        tuple(keeping(nucleus, fill) for fill in (-1e9, -1e10, -1e4, torch.finfo(torch.float32).min)),
    ),
    Misconception(
        "probabilities_returned",
        "The result holds probabilities, or their logarithms. A filter takes scores and gives scores: what stays keeps its score, what goes "
        "gets -inf. Whoever draws applies softmax once, at the end, and that scales what is left to 1.",
        SECTION,
        (probabilities, probabilities_not_scaled, log_probabilities, log_probabilities_not_scaled),
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
    name="top_p_filter",
    chapter="generation",
    kind="function",
    minutes=20,
    parts=(
        Part(
            "one row",
            3,
            "keep the smallest set of tokens that reaches p, in their places, and rule out the rest",
            SECTION,
        ),
        Part("batch", 1, "treat each row of a batch by itself", SECTION),
    ),
    hints=(
        "Take the probabilities .1, .5, .25, .15 and p = .6. Which tokens stay? For each token, what do those that are "
        "more probable reach together, without it?",
        "Sort in descending order and keep the order that sort returns as well; softmax; running sum (cumsum). What tells "
        "for a place in this order whether p has been reached *before* it? And how do you get from sorted places back "
        "to tokens?",
        "Running sum less the probability itself is what came before; the token stays if that is below p. To bring these "
        "marks back, start from a tensor of zeros and scatter them to the places in order, along the last axis; then "
        "masked_fill.",
    ),
    cases=cases,
    reference=generation.top_p_filter,
    misconceptions=MISCONCEPTIONS,
)

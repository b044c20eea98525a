"""Exercise to be repaired: find the sentences that are most similar to a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import close, randn, sequence_first

SECTION, LONG = "pretrained#vectors-for-sentences", "soft_addressing#long-keys-win"
Result = tuple[Tensor, Tensor]


def most_similar(question: Tensor, sentences: Tensor, top: int) -> Result:
    similarities = F.normalize(sentences, dim=-1) @ F.normalize(question, dim=-1)
    best = similarities.topk(top)
    return best.indices, best.values


def cases(rng: Generator) -> Iterator[Case]:
    for label, count, width, top in (
        ("2 sentences of 2 features", 2, 2, 2),
        ("5 sentences, all of them asked for", 5, 3, 5),
        ("7 sentences", 7, 5, 3),
        ("as many sentences as features", 5, 5, 2),
        ("13 sentences", 13, 11, 7),
    ):
        question, sentences = randn(rng, width, scale=3.0), randn(rng, count, width, scale=2.0)
        sentences = sentences * (torch.rand(count, 1, generator=rng) * 4 + 0.2)
        yield Case("similarity", f"{label}, their vectors of different lengths", (Call((question, sentences, top)),))
    question, sentences = randn(rng, 5), randn(rng, 3, 5)
    longer = sentences.clone()
    longer[1] *= 3
    yield Case(
        "similarity",
        "3 sentences, then with the vector of sentence 1 three times as long",
        (Call((question, sentences, 3)), Call((question, longer, 3))),
        holds=(length_without_effect,),
    )
    yield Case(
        "similarity",
        "3 sentences, then with two more in the list",
        (Call((question, sentences, 3)), Call((question, torch.cat([sentences, randn(rng, 2, 5)]), 5))),
        holds=(others_without_effect,),
    )
    yield Case(
        "similarity",
        "3 sentences, then with the question's vector three times as long",
        (Call((question, sentences, 3)), Call((3 * question, sentences, 3))),
    )
    yield from _order_cases(rng)


def _order_cases(rng: Generator) -> Iterator[Case]:
    for label, count, width, top in (
        ("11 sentences, the best one", 11, 5, 1),
        ("11 sentences, the best 3", 11, 3, 3),
        ("a single sentence", 1, 7, 1),
        ("5 sentences, all of them unlike the question", 5, 2, 5),
    ):
        question, sentences = randn(rng, width), randn(rng, count, width)
        if "unlike" in label:
            sentences = torch.where((sentences @ question > 0)[:, None], -sentences, sentences)
        yield Case("order", label, (Call((question, sentences, top)),))
    question, sentences = randn(rng, 7, dtype=torch.float64), randn(rng, 5, 7, dtype=torch.float64)
    yield Case("order", "5 sentences, float64", (Call((question, sentences, 2)),), tolerance=1e-9)
    sentences = sequence_first(randn(rng, 5, 3))
    yield Case("order", "5 sentences, stored in memory the other way round", (Call((randn(rng, 3), sentences, 2)),))


def _by_sentence(output: Any) -> Tensor:
    numbers, similarities = output
    return similarities[numbers.argsort()]


def _longer(outputs: Sequence[Any]) -> str | None:
    before, after = map(_by_sentence, outputs)
    if close(after, before):
        return None
    return f"the similarities of sentences 0, 1 and 2 were {_listed(before)}, and then {_listed(after)}"


def _more(outputs: Sequence[Any]) -> str | None:
    before, after = _by_sentence(outputs[0]), _by_sentence(outputs[1])[:3]
    if close(after, before):
        return None
    return f"the similarities of sentences 0, 1 and 2 were {_listed(before)}, and then {_listed(after)}"


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.3f}" for value in values.tolist())


length_without_effect = Property(
    "A similarity is the cosine of an angle: how long a sentence's vector is has no effect.", _longer
)
others_without_effect = Property(
    "How similar a sentence is doesn't depend on what other sentences are in the list.", _more
)


# --- wrong answers -------------------------------------------------------------------------------------------------

Measure = Callable[[Tensor, Tensor], Tensor]


def _ranked(measure: Measure) -> Callable[[Tensor, Tensor, int], Result]:
    """Make an answer out of how it measures similarity."""

    def answer(question: Tensor, sentences: Tensor, top: int) -> Result:
        best = measure(question, sentences).topk(top)
        return best.indices, best.values

    return answer


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def least_similar(question: Tensor, sentences: Tensor, top: int) -> Result:
    best = (_unit(sentences) @ _unit(question)).topk(top, largest=False)
    return best.indices, best.values


def rising(question: Tensor, sentences: Tensor, top: int) -> Result:
    numbers, similarities = most_similar(question, sentences, top)
    return numbers.flip(0), similarities.flip(0)


def unsorted(question: Tensor, sentences: Tensor, top: int) -> Result:
    numbers = most_similar(question, sentences, top)[0].sort().values
    return numbers, (_unit(sentences) @ _unit(question))[numbers]


def exchanged(question: Tensor, sentences: Tensor, top: int) -> Any:
    return most_similar(question, sentences, top)[::-1]


def numbers_alone(question: Tensor, sentences: Tensor, top: int) -> Any:
    return most_similar(question, sentences, top)[0]


def all_of_them(question: Tensor, sentences: Tensor, top: int) -> Result:
    return most_similar(question, sentences, len(sentences))


def without_the_best(question: Tensor, sentences: Tensor, top: int) -> Result:
    numbers, similarities = most_similar(question, sentences, min(top + 1, len(sentences)))
    return numbers[1:], similarities[1:]


def in_place(question: Tensor, sentences: Tensor, top: int) -> Result:
    with torch.no_grad():
        question /= question.norm()
        sentences /= sentences.norm(dim=-1, keepdim=True)
    return most_similar(question, sentences, top)


MISCONCEPTIONS = (
    Misconception(
        "norm_of_the_whole_table",
        "The norm is taken of the whole table of sentences, one number, since it is told no axis. Every vector is then divided by "
        "the same number, so the long ones stay longer than the others, and win.",
        SECTION,
        (_ranked(lambda question, sentences: sentences / sentences.norm() @ _unit(question)),),
        ("https://github.com/MarioKrenn6240/SEMNET/issues/6",),
    ),
    Misconception(
        "normalised_over_sentences",
        "The norm is taken along the wrong axis: of each *feature* over all sentences, not of each sentence over its features. "
        "Then one sentence's similarity depends on what else is in the list.",
        SECTION,
        (
            _ranked(lambda question, sentences: sentences / sentences.norm(dim=0) @ _unit(question)),
            _ranked(lambda question, sentences: _unit(sentences / sentences.norm(dim=0)) @ _unit(question)),
        ),
        (
            "https://github.com/gabeur/mmt/issues/1",
            "https://github.com/alireza-nasiri/SoundCLR/issues/4",
        ),
    ),
    Misconception(
        "sentences_not_normalised",
        "The sentences' vectors keep their lengths, so this is no cosine: a long vector beats one that points the right "
        "way. It goes unnoticed as long as all vectors happen to have length 1.",
        LONG,
        (_ranked(lambda question, sentences: sentences @ _unit(question)),),
        (
            "https://github.com/youngkyunJang/GPQ/issues/8",
            "https://github.com/facebookresearch/faiss/issues/1119",
        ),
    ),
    Misconception(
        "nothing_normalised",
        "This is the plain dot product: it measures lengths along with the angle. It goes unnoticed as long as all vectors "
        "happen to have length 1.",
        LONG,
        (_ranked(lambda question, sentences: sentences @ question),),
        (
            "https://github.com/mick-gsk/drift/issues/427",
            "https://github.com/facebookresearch/faiss/issues/1119",
        ),
    ),
    Misconception(
        "question_not_normalised",
        "Only the sentences are scaled to length 1. The order is right, since the question is the same for all of them, but the "
        "numbers aren't cosines: they can't be compared with those of another question, and may be above 1.",
        SECTION,
        (_ranked(lambda question, sentences: _unit(sentences) @ question),),
        ("https://github.com/finalfusion/finalfusion-rust/pull/150",),
    ),
    Misconception(
        "squared_norm",
        "The vectors are divided by the square of their length (a sum of squares without its root, or a division done "
        "twice). That makes long vectors too short, in place of too long.",
        SECTION,
        (
            _ranked(lambda question, sentences: sentences / (sentences**2).sum(-1, keepdim=True) @ _unit(question)),
            _ranked(
                lambda question, sentences: (
                    sentences / (sentences**2).sum(-1, keepdim=True) @ (question / (question**2).sum())
                )
            ),
        ),
    ),
    Misconception(
        "sum_in_place_of_norm",
        "The vectors are divided by the sum of their numbers, or of their absolute values. That isn't their length: a length is "
        "the root of the sum of squares.",
        SECTION,
        (
            _ranked(lambda question, sentences: sentences / sentences.abs().sum(-1, keepdim=True) @ _unit(question)),
            _ranked(
                lambda question, sentences: (
                    sentences / sentences.abs().sum(-1, keepdim=True) @ (question / question.abs().sum())
                )
            ),
            _ranked(lambda question, sentences: sentences / sentences.sum(-1, keepdim=True) @ _unit(question)),
        ),
    ),
    Misconception(
        "softmax_over_sentences",
        "The similarities went through softmax. The order is right, but a softmax shares out 1 among the sentences that "
        "happen to be in the list, and a cosine belongs to one pair alone.",
        SECTION,
        (_ranked(lambda question, sentences: (_unit(sentences) @ _unit(question)).softmax(dim=0)),),
    ),
    Misconception(
        "distance_in_place_of_similarity",
        "These are distances: small means alike. topk takes the largest, so what comes first is what is least alike.",
        SECTION,
        (
            least_similar,
            _ranked(lambda question, sentences: 1 - _unit(sentences) @ _unit(question)),
            _ranked(lambda question, sentences: (sentences - question).norm(dim=-1)),
        ),
        ("https://github.com/tencentmusic/supersonic/issues/1644",),
    ),
    Misconception(
        "euclidean",
        "The sentences are ranked by how near they are to the question, not by the angle between them. For vectors of length 1 "
        "both give the same order, for others not.",
        "soft_addressing#similarity-functions",
        (
            _ranked(lambda question, sentences: -(sentences - question).norm(dim=-1)),
            _ranked(lambda question, sentences: -(_unit(sentences) - _unit(question)).norm(dim=-1)),
        ),
    ),
    Misconception(
        "order",
        "The right sentences are found, but they don't stand in order: the most similar one comes first.",
        SECTION,
        (rising, unsorted),
        ("https://github.com/schemaitat/polars_sim/issues/10",),
    ),
    Misconception(
        "results_exchanged",
        "The results are the numbers of the sentences first, then the similarities: two tensors in this order. They were "
        "exchanged, or one of them is missing.",
        SECTION,
        (exchanged, numbers_alone),
    ),
    Misconception(
        "top_forgotten",
        "All sentences are returned, however many were asked for.",
        SECTION,
        (all_of_them,),
    ),
    Misconception(
        "best_left_out",
        "The best hit is left out, as if it were the question itself. That's right when a sentence is compared with a list "
        "that holds it too. Here the question isn't in the list.",
        SECTION,
        (without_the_best,),
    ),
    Misconception(
        "input_changed",
        "The vectors are divided in place, in the caller's own table. Afterwards their lengths are lost, for everybody. x = x / y "
        "makes a new tensor; x /= y doesn't.",
        SECTION,
        (in_place,),
    ),
)

EXERCISE = Exercise(
    name="most_similar",
    chapter="pretrained",
    kind="function",
    minutes=10,
    task="repair",
    parts=(
        Part("similarity", 2, "measure by the cosine, in which a vector's length has no effect", SECTION),
        Part("order", 1, "return the numbers of the best `top` sentences, the best first, and their cosines", SECTION),
    ),
    hints=(
        "Take two sentences that point the same way, one vector three times as long as the other. What should their "
        "similarities be, and what are they?",
        "Print the shape of each thing that is computed on the way, and say for each what it should be.",
        "How many lengths are there to divide by? Count them in the line for the question, and then in the line for the "
        "sentences.",
    ),
    cases=cases,
    reference=most_similar,
    misconceptions=MISCONCEPTIONS,
    results=("numbers", "similarities"),
)

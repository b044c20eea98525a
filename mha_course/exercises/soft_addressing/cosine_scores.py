"""Exercise: repair a similarity that goes by the angle alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course import soft_addressing
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn

SECTION, LONG = "soft_addressing#similarity-functions", "soft_addressing#long-keys-win"
BATCHES, TEMPERATURE = "soft_addressing#queries-and-memories-in-batches", "soft_addressing#cosine-needs-a-temperature"


def cases(rng: Generator) -> Iterator[Case]:
    for label, leading, queries, keys, width in (
        ("one query, one key", (), 1, 1, 2),
        ("as many queries as keys", (), 2, 2, 3),
        ("as many queries as keys", (), 5, 5, 3),
        ("more keys than queries", (), 2, 3, 5),
        ("fewer keys than queries", (), 5, 2, 3),
        ("one query", (), 1, 3, 5),
        ("one key", (), 3, 1, 5),
        ("vectors of width 1", (), 13, 17, 1),
        ("a batch", (2,), 3, 5, 7),
        ("a batch, as many queries as keys", (2,), 3, 3, 5),
        ("a batch, all sizes equal", (3,), 3, 3, 3),
        ("two axes in front", (2, 3), 5, 7, 11),
    ):
        query, key = inputs(rng, leading, queries, keys, width)
        text = f"{describe(query, key)}, {label}"
        yield Case("every pair", text, (Call((query, key)),), holds=(within_one,))
    query = randn(rng, 3, 5)
    yield Case(
        "every pair",
        f"{describe(query, query)}, the keys are the queries themselves, twice as long",
        (Call((query, query * 2)),),
        holds=(within_one, one_with_itself),
    )
    query, key = inputs(rng, (), 3, 3, 5)
    stretched = torch.tensor([[0.5], [2.0], [7.0]])
    yield Case(
        "every pair",
        f"{describe(query, key)}, then with queries and keys of other lengths in the same directions",
        (Call((query, key)), Call((query * stretched, key * stretched.flip(0)))),
        holds=(
            Property(
                "Only directions count, not how long a vector is.",
                lambda outputs: _moved(outputs[0], outputs[1]),
            ),
        ),
    )
    query, key = inputs(rng, (), 3, 5, 2, dtype=torch.float64)
    yield Case("every pair", f"{describe(query, key)}, float64", (Call((query, key)),), tolerance=1e-9)
    for leading, queries, keys in (((), 2, 3), ((2,), 3, 3)):
        query, key = inputs(rng, leading, queries, keys, 5)
        query[..., 0, :] = 0.0
        key[..., 1, :] = 0.0
        text = f"{describe(query, key)}, query 0 and key 1 all zeros"
        yield Case("zeros", text, (Call((query, key)),))
    query, key = inputs(rng, (2,), 3, 5, 7)
    yield Case("every pair", f"{describe(query, key)}, with gradients", (Call((query, key), backward=True),))


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    width: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Draw vectors of quite different lengths, none of them near 1."""
    return (
        randn(rng, *leading, queries, width, scale=3.0, dtype=dtype) + 1.0,
        randn(rng, *leading, keys, width, scale=0.3, dtype=dtype) - 0.1,
    )


def describe(query: Tensor, keys: Tensor) -> str:
    return f"query {tuple(query.shape)}, keys {tuple(keys.shape)}"


def _out_of_range(outputs: Sequence[Any]) -> str | None:
    scores = outputs[0]
    if scores.abs().max() <= 1 + 1e-4:
        return None
    place = (scores.abs() == scores.abs().max()).nonzero()[0].tolist()
    return f"the score of query {place[-2]} and key {place[-1]} is {scores[tuple(place)]:.3g}"


def _not_one(outputs: Sequence[Any]) -> str | None:
    same = outputs[0].diagonal()
    worst = same[(same - 1).abs().argmax()]
    return None if abs(worst - 1) < 1e-4 else f"a query and a key in the same direction score {worst:.3g}"


def _moved(before: Tensor, after: Tensor) -> str | None:
    change = (after - before).abs().max()
    return (
        None
        if change < 1e-4
        else f"when only the lengths of the vectors were changed, the scores moved by {change:.2g}"
    )


within_one = Property("A cosine lies between -1 and 1.", _out_of_range)
one_with_itself = Property("Vectors in the same direction have the cosine 1.", _not_one)


# --- wrong answers -------------------------------------------------------------------------------------------------


def score(
    lengths: Callable[[Tensor, Tensor], Tensor] | None = None,
    finish: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Build cosines out of two steps; each is right unless another is given."""

    def cosine_scores(query: Tensor, keys: Tensor) -> Tensor:
        return finish(query @ keys.transpose(-2, -1) / (lengths or every_pair)(query, keys).clamp(min=1e-8))

    return cosine_scores


def length(x: Tensor) -> Tensor:
    return x.norm(dim=-1, keepdim=True)


def every_pair(query: Tensor, keys: Tensor) -> Tensor:
    return length(query) * length(keys).transpose(-2, -1)


def row_by_row(query: Tensor, keys: Tensor) -> Tensor:
    return length(query) * length(keys)


def unguarded(query: Tensor, keys: Tensor) -> Tensor:
    return query @ keys.transpose(-2, -1) / every_pair(query, keys)


def paired(query: Tensor, keys: Tensor) -> Tensor:
    return F.cosine_similarity(query, keys, dim=-1)


def normalised_along(axis: int) -> Callable[[Tensor, Tensor], Tensor]:
    def cosine_scores(query: Tensor, keys: Tensor) -> Tensor:
        return F.normalize(query, dim=axis) @ F.normalize(keys, dim=axis).transpose(-2, -1)

    return cosine_scores


MISCONCEPTIONS = (
    Misconception(
        "lengths_row_by_row",
        "The lengths of the queries and those of the keys are both columns, so they are multiplied row by row: length of "
        "query 0 with that of key 0. With as many queries as keys there is no error, and the scores on the diagonal are "
        "even right. But the score in row i and column j needs the lengths of query i and of key j.",
        BATCHES,
        (score(row_by_row),),
        ("https://github.com/ChristophReich1996/Swin-Transformer-V2/issues/1",),
    ),
    Misconception(
        "wrong_side_transposed",
        "Now the lengths of the queries stand in a row, and so meet the columns, which belong to the keys. Each side's "
        "lengths have to lie along that side's own axis: the queries' down the rows, the keys' across the columns.",
        BATCHES,
        (score(lambda query, keys: length(query).transpose(-2, -1) * length(keys)),),
    ),
    Misconception(
        "transposed_from_the_front",
        "The axes to swap are counted from the front, which is right only as long as there is no batch. Counted from the "
        "end, they are the same two always.",
        BATCHES,
        (
            score(lambda query, keys: length(query) * length(keys).transpose(0, 1)),
            score(lambda query, keys: length(query) * length(keys).transpose(1, 2)),
        ),
    ),
    Misconception(
        "query_length_left_out",
        "The scores are divided by the lengths of the keys alone. For one query that keeps the order of the keys, but a "
        "long query then asks more sharply than a short one, as with the dot product.",
        LONG,
        (score(lambda query, keys: length(keys).transpose(-2, -1)),),
    ),
    Misconception(
        "key_length_left_out",
        "The scores are divided by the lengths of the queries alone. So a long key still beats a near one, and that is "
        "what the cosine is there to prevent.",
        LONG,
        (score(lambda query, keys: length(query)),),
    ),
    Misconception(
        "one_length_for_all",
        "One length is taken for the whole tensor, or for a whole batch. Each vector has a length of its own: the norm "
        "has to run along the features, and along nothing else.",
        LONG,
        (
            score(lambda query, keys: query.norm() * keys.norm()),
            score(lambda query, keys: length(query).amax() * length(keys).amax()),
        ),
    ),
    Misconception(
        "norm_along_the_rows",
        "The norm runs along another axis than the features: down the rows, or along axis 1, which is that of the "
        "features only without a batch. Each *vector* is to have the length 1, not each feature.",
        SECTION,
        (normalised_along(-2), normalised_along(0), normalised_along(1)),
        (
            "https://github.com/xmed-lab/CLIP_Surgery/issues/35",
            "https://github.com/KunpengLi1994/VSRN/issues/7",
        ),
    ),
    Misconception(
        "length_not_rooted",
        "The squared lengths are used: the root is missing. The length of a vector is the root of its dot product with "
        "itself.",
        SECTION,
        (
            score(
                lambda query, keys: (
                    query.square().sum(dim=-1, keepdim=True) * keys.square().sum(dim=-1, keepdim=True).transpose(-2, -1)
                )
            ),
        ),
    ),
    Misconception(
        "lengths_of_absolute_values",
        "The absolute values of the features are added up. That is another kind of length (the L1 norm); the cosine "
        "needs the root of the sum of squares.",
        SECTION,
        (
            score(
                lambda query, keys: (
                    query.abs().sum(dim=-1, keepdim=True) * keys.abs().sum(dim=-1, keepdim=True).transpose(-2, -1)
                )
            ),
        ),
    ),
    Misconception(
        "paired_scores",
        "The first query is compared with the first key, the second with the second, and no other pair is looked at. "
        "PyTorch's cosine_similarity does so unless one side gets an axis more. Here there is a score for each query and "
        "each key.",
        BATCHES,
        (paired,),
    ),
    Misconception(
        "zeros_divided_by_zero",
        "A vector of zeros has the length 0, and 0 divided by 0 is not a number. It points in no direction, so its score "
        "with everything should be 0: the divisor must be kept from reaching 0, as it was in the code that you were "
        "given.",
        SECTION,
        (unguarded,),
        (
            "https://github.com/HKUDS/LightRAG/pull/3421",
            "https://github.com/deeplearning4j/deeplearning4j/issues/8957",
        ),
    ),
    Misconception(
        "distance_instead_of_similarity",
        "What is returned is 1 minus the cosine, the cosine *distance*: smallest where the directions are the same. A "
        "score must be largest there.",
        SECTION,
        (score(finish=lambda scores: 1 - scores),),
    ),
    Misconception(
        "signs_lost",
        "The scores are made positive, or clipped at 0. Opposite directions have the cosine -1, and that is the lowest "
        "score there is.",
        SECTION,
        (score(finish=torch.abs), score(finish=torch.relu)),
    ),
    Misconception(
        "weights_instead_of_scores",
        "Softmax has been applied already. Here the scores are asked for; what is done with them comes later.",
        TEMPERATURE,
        (score(finish=lambda scores: scores.softmax(dim=-1)),),
    ),
    Misconception(
        "scores_detached",
        "The scores are right, but no gradient flows back, or not all of it: lengths or vectors have been rebuilt from "
        "raw data (.data, .detach(), torch.tensor(...)).",
        "soft_addressing#soft-can-be-learned",
        (
            lambda query, keys: score()(query.detach(), keys.detach()),
            score(lambda query, keys: every_pair(query.detach(), keys.detach())),
        ),
    ),
)

EXERCISE = Exercise(
    name="cosine_scores",
    chapter="soft_addressing",
    kind="function",
    minutes=10,
    parts=(
        Part("every pair", 2, "divide the dot product of each pair by the two lengths of just this pair", BATCHES),
        Part("zeros", 1, "give a vector of zeros the score 0 with everything", SECTION),
    ),
    hints=(
        "Run it with two queries and three keys, and then with three of each. Which of the two is the more useful "
        "answer?",
        "Write the shape of every intermediate result beside its line, for three queries and three keys of width 5. Which "
        "length divides the score in row 0 and column 1?",
        "The scores have one row a query and one column a key. The lengths of the queries are a column, so they lie right. "
        "How would those of the keys have to lie?",
    ),
    cases=cases,
    reference=soft_addressing.cosine,
    misconceptions=MISCONCEPTIONS,
    task="repair",
)

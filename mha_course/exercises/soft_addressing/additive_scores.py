"""Exercise: score by a small network that sees query and key together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from mha_course import soft_addressing
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.properties import randn, unchanged

SECTION, FUNCTIONS = "soft_addressing#additive-or-multiplicative", "soft_addressing#similarity-functions"
BATCHES, LEARNED = "soft_addressing#queries-and-memories-in-batches", "soft_addressing#learned-similarities"
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def cases(rng: Generator) -> Iterator[Case]:
    for label, queries, keys, d_query, d_key, d_hidden in (
        ("one query, one key", 1, 1, 2, 3, 5),
        ("", 2, 3, 5, 7, 11),
        ("one query", 1, 3, 2, 5, 7),
        ("one key", 3, 1, 2, 5, 7),
        ("as many queries as keys", 3, 3, 2, 5, 7),
        ("one hidden number", 2, 3, 5, 7, 1),
        ("all widths equal", 2, 5, 3, 3, 3),
        ("small inputs", 2, 3, 5, 7, 11),
    ):
        given = inputs(rng, (), queries, keys, d_query, d_key, d_hidden, 0.1 if label == "small inputs" else 1.0)
        yield Case("pairs", describe(given) + f", {label}" * bool(label), (Call(given),))
    given = inputs(rng, (), 2, 3, 5, 7, 11)
    query, key, *learned = given
    other = torch.cat([key[:1], randn(rng, 2, 7)])
    yield Case(
        "pairs",
        f"{describe(given)}, then with other keys in the place of the last two",
        (Call(given), Call((query, other, *learned))),
        holds=(
            unchanged(
                "The score of a query and a key depends on these two alone.",
                "when only the last two keys were changed, the scores of the first moved by {change}",
                where=(..., 0),
            ),
        ),
    )
    given = inputs(rng, (), 2, 3, 5, 7, 11, dtype=torch.float64)
    yield Case("pairs", describe(given) + ", float64", (Call(given),), tolerance=1e-9)
    for label, leading, queries, keys in (
        ("a batch", (2,), 3, 5),
        ("a batch of one", (1,), 2, 3),
        ("a batch, one query each", (2,), 1, 3),
        ("as many examples as queries and keys", (3,), 3, 3),
        ("two axes in front", (2, 3), 5, 7),
    ):
        given = inputs(rng, leading, queries, keys, 5, 7, 11)
        yield Case("batches", f"{describe(given)}, {label}", (Call(given),))
    for given in (inputs(rng, (), 2, 3, 5, 7, 11), inputs(rng, (2,), 2, 3, 5, 7, 11)):
        yield Case("gradients", f"{describe(given)}, with gradients", (Call(given, backward=True),))


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    queries: int,
    keys: int,
    d_query: int,
    d_key: int,
    d_hidden: int,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Inputs:
    return (
        randn(rng, *leading, queries, d_query, scale=scale, dtype=dtype),
        randn(rng, *leading, keys, d_key, scale=scale, dtype=dtype),
        randn(rng, d_query, d_hidden, scale=1.5 / d_query**0.5, dtype=dtype),
        randn(rng, d_key, d_hidden, scale=1.5 / d_key**0.5, dtype=dtype),
        randn(rng, d_hidden, dtype=dtype),
    )


def describe(given: Inputs) -> str:
    query, keys, _, _, vector = given
    return f"query {tuple(query.shape)}, keys {tuple(keys.shape)}, hidden width {len(vector)}"


# --- wrong answers -------------------------------------------------------------------------------------------------


def score(
    meet: Callable[[Tensor, Tensor], Tensor] | None = None,
    finish: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Build an additive score out of its steps; each is right unless another is given."""

    def additive_scores(
        query: Tensor, keys: Tensor, query_matrix: Tensor, key_matrix: Tensor, vector: Tensor
    ) -> Tensor:
        return (finish or squeezed_sum)((meet or every_pair)(query @ query_matrix, keys @ key_matrix), vector)

    return additive_scores


def every_pair(query: Tensor, keys: Tensor) -> Tensor:
    return query.unsqueeze(-2) + keys.unsqueeze(-3)


def squeezed_sum(hidden: Tensor, vector: Tensor) -> Tensor:
    return hidden.tanh() @ vector


def matrices_transposed(
    query: Tensor, keys: Tensor, query_matrix: Tensor, key_matrix: Tensor, vector: Tensor
) -> Tensor:
    return soft_addressing.additive(query, keys, query_matrix.t(), key_matrix.t(), vector)


def matrices_exchanged(query: Tensor, keys: Tensor, query_matrix: Tensor, key_matrix: Tensor, vector: Tensor) -> Tensor:
    return soft_addressing.additive(query, keys, key_matrix, query_matrix, vector)


MISCONCEPTIONS = (
    Misconception(
        "no_tanh",
        "The tanh is missing. Without a bend between the two sums the score falls apart into one number from the query "
        "plus one from the key. The query's number is the same for all keys, and softmax ignores what is the same for "
        "all: every query would find the same entry.",
        SECTION,
        (score(finish=lambda hidden, vector: hidden @ vector),),
    ),
    Misconception(
        "relu_instead_of_tanh",
        "Another bend than tanh is used. tanh squeezes both ways, into -1 to 1, and so keeps the scores in bounds; a "
        "ReLU cuts off below and lets everything through above, a sigmoid has no negative half.",
        FUNCTIONS,
        (
            score(finish=lambda hidden, vector: hidden.relu() @ vector),
            score(finish=lambda hidden, vector: hidden.sigmoid() @ vector),
        ),
        ("https://github.com/keon/seq2seq/issues/28",),
    ),
    Misconception(
        "tanh_of_each",
        "tanh is taken of the query's part and of the key's part, and then they are added. So the two never meet inside "
        "the bend, and the score is again one number from the query plus one from the key, of which softmax ignores the "
        "first.",
        SECTION,
        (score(lambda query, keys: every_pair(query.tanh(), keys.tanh()), lambda hidden, vector: hidden @ vector),),
    ),
    Misconception(
        "tanh_of_the_score",
        "tanh is taken last, of the finished score. Then the score is confined to -1 to 1, so that softmax can hardly "
        "prefer anything, and query and key still meet in a mere sum. The bend belongs on the hidden numbers, before "
        "the vector adds them up.",
        SECTION,
        (score(finish=lambda hidden, vector: (hidden @ vector).tanh()),),
    ),
    Misconception(
        "no_vector",
        "The hidden numbers are added up as they are; the vector is not used. It is the second layer of the small "
        "network: with it the network learns which hidden numbers speak for a match and which against.",
        FUNCTIONS,
        (
            score(finish=lambda hidden, vector: hidden.tanh().sum(dim=-1)),
            score(finish=lambda hidden, vector: hidden.tanh().mean(dim=-1)),
        ),
        (
            "https://github.com/tensorflow/tensorflow/issues/43471",
            "https://github.com/tensorflow/tensorflow/issues/39332",
        ),
    ),
    Misconception(
        "not_summed",
        "Each hidden number is multiplied by its entry of the vector, but they are not added up: a score is one number "
        "for each pair.",
        FUNCTIONS,
        (score(finish=lambda hidden, vector: hidden.tanh() * vector),),
        ("https://github.com/tensorflow/tensorflow/issues/43471",),
    ),
    Misconception(
        "multiplied_instead_of_added",
        "The query's part and the key's part are multiplied. That is the multiplicative kind of attention; this one adds, "
        "and has its name from it.",
        SECTION,
        (score(lambda query, keys: query.unsqueeze(-2) * keys.unsqueeze(-3)),),
    ),
    Misconception(
        "paired_row_by_row",
        "Queries and keys are added row by row, the first to the first, the second to the second. That is an error for "
        "most shapes; with as many queries as keys, or a single one, it gives numbers without an error. But there is a "
        "hidden vector for each pair: both need an axis more, in different places.",
        BATCHES,
        (score(lambda query, keys: query + keys),),
        ("https://github.com/sooftware/attentions/issues/2",),
    ),
    Misconception(
        "key_by_query",
        "The scores stand as (key, query). One row a query is the order of this book: along the last axis stand the keys, "
        "among which softmax shares out.",
        "soft_addressing#one-matrix-product",
        (score(lambda query, keys: query.unsqueeze(-3) + keys.unsqueeze(-2)),),
    ),
    Misconception(
        "axes_counted_from_the_front",
        "The new axes are put in by a place counted from the front. Without a batch that is the right one; with a batch "
        "it is another, so that examples or tokens meet which have nothing to do with one another. Counted from the "
        "end, the place is the same in both cases.",
        BATCHES,
        (
            score(lambda query, keys: query[:, None] + keys[None]),
            score(lambda query, keys: query.unsqueeze(1) + keys.unsqueeze(0)),
        ),
        ("https://github.com/sooftware/attentions/issues/2",),
    ),
    Misconception(
        "batch_taken_for_granted",
        "The new axes are put in where they belong if there is exactly one axis for the batch in front. Without one, or "
        "with two, they land elsewhere. Counted from the end, the place is the same in all cases.",
        BATCHES,
        (score(lambda query, keys: query.unsqueeze(2) + keys.unsqueeze(1)),),
    ),
    Misconception(
        "weights_instead_of_scores",
        "Softmax has been applied already. Here the scores are asked for; what is done with them comes later.",
        FUNCTIONS,
        (score(finish=lambda hidden, vector: (hidden.tanh() @ vector).softmax(dim=-1)),),
    ),
    Misconception(
        "scaled_by_the_root",
        "The scores are divided by the root of a width, as the scaled dot product is. The tanh keeps additive scores in "
        "bounds, so no scale is part of them.",
        SECTION,
        (score(finish=lambda hidden, vector: hidden.tanh() @ vector / len(vector) ** 0.5),),
    ),
    Misconception(
        "matrices_transposed",
        "The matrices are transposed before they are used. In this book a vector is a row and a matrix stands on its "
        "right, (in, out); only the weight of an nn.Linear is kept the other way round. With all widths equal nothing "
        "complains.",
        LEARNED,
        (matrices_transposed,),
    ),
    Misconception(
        "matrices_exchanged",
        "The two matrices have changed places: the query goes through that of the keys. With equal widths nothing "
        "complains.",
        LEARNED,
        (matrices_exchanged,),
    ),
    Misconception(
        "scores_detached",
        "The scores are right, but no gradient flows back: they have been rebuilt from raw data (.data, .detach(), "
        "torch.tensor(...)). The matrices and the vector are there to be learned.",
        LEARNED,
        (score(finish=lambda hidden, vector: hidden.detach().tanh() @ vector),),
    ),
)

EXERCISE = Exercise(
    name="additive_scores",
    chapter="soft_addressing",
    kind="function",
    minutes=15,
    parts=(
        Part(
            "pairs", 2, "give one score for each pair of a query and a key, as a network of one hidden layer", SECTION
        ),
        Part("batches", 1, "work with any axes in front, each example for itself", BATCHES),
        Part("gradients", 1, "pass the right gradients to query, keys, both matrices and the vector", LEARNED),
    ),
    hints=(
        "With two queries, three keys and a hidden width of four: how many hidden numbers are there in all, and in a "
        "tensor of which shape?",
        "Each side goes through its matrix on its own. To add every query to every key, give each an axis of size 1 where "
        "the other has its rows, and let broadcasting do the rest. Count these axes from the end.",
        "(…, query, 1, d_hidden) plus (…, 1, key, d_hidden), then tanh, then the product with the vector, which takes the "
        "last axis away.",
    ),
    cases=cases,
    reference=soft_addressing.additive,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: guess a value from what was measured nearby."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part
from mha_course.exercises.properties import randn, unchanged
from mha_course.exercises.soft_addressing.soft_lookup import between, describe
from mha_course.soft_addressing import gaussian_kernel, soft_lookup

SECTION, FUNCTIONS = "soft_addressing#kernel-regression", "soft_addressing#similarity-functions"
MAXIMUM, LEARNED = "soft_addressing#why-subtract-the-maximum", "soft_addressing#soft-can-be-learned"
STEPS, AXIS = "soft_addressing#three-steps-by-hand", "soft_addressing#which-axis"


def cases(rng: Generator) -> Iterator[Case]:
    for label, leading, entries, d_query, d_value, width in (
        ("one place", (), 3, 1, 2, 1.0),
        ("one measurement alone", (), 1, 2, 3, 1.0),
        ("places on a line", (5,), 3, 1, 2, 0.5),
        ("places in the plane", (3,), 5, 2, 1, 1.0),
        ("places in the plane", (3,), 5, 2, 7, 2.0),
        ("as many places asked about as measured", (5,), 5, 3, 2, 1.5),
        ("as many measurements as features", (2,), 3, 3, 5, 0.7),
        ("a batch of one place", (1,), 5, 3, 2, 2.0),
        ("two batches of three places", (2, 3), 5, 7, 11, 3.0),
    ):
        query, keys, values = inputs(rng, leading, entries, d_query, d_value)
        text = f"{describe(query, keys, values)}, width {width:g}, {label}"
        yield Case("nearness", text, (Call((query, keys, values, width)),), holds=(between(values),))
    query, keys, values = inputs(rng, (3,), 5, 2, 7)
    yield Case(
        "nearness",
        f"{describe(query, keys, values)}, width 2 by name, and then none given",
        (Call((query, keys, values), {"width": 2.0}), Call((query, keys, values))),
    )
    yield Case(
        "nearness",
        f"{describe(query, keys, values)}, the first place alone and then among three",
        (Call((query[:1], keys, values)), Call((query, keys, values))),
        holds=(
            unchanged("A query gets the same answer alone as in company.", "its answer moved by {change}", where=0),
        ),
    )
    yield Case(
        "nearness",
        f"{describe(query, keys, values)}, then all places moved by the same distance",
        (Call((query, keys, values)), Call((query + 3.0, keys + 3.0, values))),
        holds=(
            unchanged(
                "Only distances count, wherever the places lie.",
                "with all places moved by the same distance the answers moved by {change}",
            ),
        ),
    )
    query, keys, values = inputs(rng, (3,), 5, 2, 7, dtype=torch.float64)
    yield Case("nearness", f"{describe(query, keys, values)}, float64", (Call((query, keys, values)),), tolerance=1e-6)
    for far, width in ((40.0, 1.0), (1.0, 0.02)):
        query, keys, values = inputs(rng, (3,), 5, 2, 7)
        label = f"{describe(query, keys, values)}, width {width:g}, every place many widths from all measurements"
        query = query.sign() * (far + query.abs())
        yield Case("far away", label, (Call((query, keys, values, width)),), holds=(between(values),))
    for width in (0.5, 2.0):
        asked, years, values = inputs(rng, (3,), 5, 1, 2)
        asked, years = 1984.3 + asked, 1984.3 + years
        label = f"{describe(asked, years, values)}, width {width:g}, places that are years such as 1984.3"
        yield Case("far from zero", label, (Call((asked, years, values, width)),), holds=(between(values),))
    for label, leading, width in (("", (), 1.0), ("", (3,), 2.0), ("one place just where it was measured", (3,), 1.0)):
        query, keys, values = inputs(rng, leading, 5, 2, 7)
        if label:
            query[1] = keys[3]
        text = f"{describe(query, keys, values)}, width {width:g}{f', {label}' * bool(label)}, with gradients"
        yield Case("gradients", text, (Call((query, keys, values, width), backward=True),))


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    entries: int,
    d_query: int,
    d_value: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn(rng, *leading, d_query, dtype=dtype),
        randn(rng, entries, d_query, dtype=dtype),
        randn(rng, entries, d_value, dtype=dtype),
    )


def kernel_regression(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return soft_lookup(query, keys, values, similarity=partial(gaussian_kernel, width=width))


# --- wrong answers -------------------------------------------------------------------------------------------------


def regress(
    squared: Callable[[Tensor, Tensor], Tensor] | None = None,
    score: Callable[[Tensor, float], Tensor] | None = None,
    weigh: Callable[[Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Build a kernel regression out of its steps; each is right unless another is given."""

    def kernel_regression(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
        distances = (squared or squared_distance)(query, keys)
        return (weigh or over_entries)((score or bell)(distances, width)) @ values

    return kernel_regression


def squared_distance(query: Tensor, keys: Tensor) -> Tensor:
    return (query.unsqueeze(-2) - keys).square().sum(dim=-1)


def bell(distances: Tensor, width: float) -> Tensor:
    return -distances / (2 * width**2)


def over_entries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def raw_shares(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def expanded(query: Tensor, keys: Tensor) -> Tensor:
    return query.square().sum(dim=-1, keepdim=True) + keys.square().sum(dim=-1) - 2 * query @ keys.T


def root_squared(query: Tensor, keys: Tensor) -> Tensor:
    return squared_distance(query, keys).sqrt().square()


def nearest_alone(scores: Tensor) -> Tensor:
    return (scores == scores.amax(dim=-1, keepdim=True)).to(scores.dtype)


def row_by_row(query: Tensor, keys: Tensor) -> Tensor:
    return (query - keys).square().sum(dim=-1)


def keys_as_values(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return kernel_regression(query, keys, keys, width)


def by_dot_product(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return over_entries(query @ keys.T / width**2) @ values


def squeezed(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return kernel_regression(query, keys, values, width).squeeze()


def weights_alone(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return over_entries(bell(squared_distance(query, keys), width))


def detached(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    return kernel_regression(query.detach(), keys.detach(), values, width)


def query_in_place(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Tensor:
    query /= width
    return kernel_regression(query, keys / width, values)


def with_returned_weights(query: Tensor, keys: Tensor, values: Tensor, width: float = 1.0) -> Any:
    weights = over_entries(bell(squared_distance(query, keys), width))
    return weights @ values, weights


MISCONCEPTIONS = (
    Misconception(
        "distance_not_squared",
        "The distance itself stands in the exponent, not its square. Then the curve is no bell but a peak with a point, "
        "and its tails are far too heavy: distant measurements keep a say.",
        FUNCTIONS,
        (
            regress(score=lambda distances, width: -distances.sqrt() / (2 * width**2)),
            regress(score=lambda distances, width: -distances.sqrt() / width),
        ),
        (
            "https://github.com/hoxo-m/densratio/issues/6",
            "https://github.com/probml/pml-book/issues/104",
        ),
    ),
    Misconception(
        "width_not_squared",
        "The squared distance is divided by the width, not by its square. With a width of 1 nobody notices. A distance "
        "counts in widths: twice as far and twice as wide must give the same weight.",
        SECTION,
        (regress(score=lambda distances, width: -distances / (2 * width)),),
        ("https://github.com/d2l-ai/d2l-en/pull/2665",),
    ),
    Misconception(
        "two_missing",
        "The 2 in front of the squared width is missing. Then the bell is narrower than its width says: a standard "
        "deviation belongs to exp(-distance² / (2 width²)).",
        FUNCTIONS,
        (regress(score=lambda distances, width: -distances / width**2),),
    ),
    Misconception(
        "width_multiplied",
        "The width stands on the wrong side of the division, so that a wide bell comes out narrow. In a / 2 * b the b "
        "multiplies: Python reads from left to right, and a divisor of several factors needs brackets.",
        SECTION,
        (
            regress(score=lambda distances, width: -distances / 2 * width**2),
            regress(score=lambda distances, width: -distances * width),
            regress(score=lambda distances, width: -distances / 2 * width),
        ),
        ("https://github.com/gallantlab/pyrcca/issues/16",),
    ),
    Misconception(
        "width_ignored",
        "The width has no effect: it is taken and not used.",
        SECTION,
        (regress(score=lambda distances, width: -distances / 2), regress(score=lambda distances, width: -distances)),
    ),
    Misconception(
        "sign_lost",
        "The minus is missing in the exponent, so what lies far away weighs most. A score must be highest where the "
        "distance is 0.",
        FUNCTIONS,
        (regress(score=lambda distances, width: distances / (2 * width**2)),),
    ),
    Misconception(
        "weights_not_normalised",
        "The weights are not divided by their sum. Each lies between 0 and 1, but together they may be anything, so that "
        "the answer sinks towards 0 where measurements are sparse and grows where they are dense.",
        STEPS,
        (
            regress(weigh=lambda scores: scores.exp()),
            regress(weigh=lambda scores: scores.exp() / scores.size(-1)),
        ),
    ),
    Misconception(
        "far_away_nan",
        "The bell is computed first and divided by its sum afterwards. Fourteen widths from the nearest measurement every "
        "weight is too small for the computer and becomes 0, and 0 divided by 0 is not a number. In a softmax only the "
        "differences between the exponents count, so the largest can be brought to 0 first.",
        MAXIMUM,
        (regress(weigh=raw_shares),),
        (
            "https://github.com/wmkouw/libTLDA/issues/13",
            "https://github.com/alan-turing-institute/mogp-emulator/pull/131",
        ),
    ),
    Misconception(
        "far_away_zero",
        "A small number is added to the sum of the weights, so that it is never 0. That hides the trouble and does not "
        "mend it: far from all measurements every weight is 0 and so is the answer, although 0 was never measured. The "
        "nearest measurement should decide there.",
        MAXIMUM,
        (
            regress(weigh=lambda scores: scores.exp() / (scores.exp().sum(dim=-1, keepdim=True) + 1e-8)),
            regress(weigh=lambda scores: raw_shares(scores).nan_to_num(0.0)),
        ),
    ),
    Misconception(
        "distance_expanded",
        "The squared distance is computed as |q|² + |k|² - 2 q·k. On paper that is the same. But for places such as the "
        "year 1984 the squares are near four million, where 32 bits only tell apart steps of a quarter, and the "
        "difference of two such numbers is mostly noise. Subtract first, then square.",
        SECTION,
        (regress(expanded), regress(lambda query, keys: expanded(query, keys).clamp(min=0.0))),
        (
            "https://github.com/scikit-learn/scikit-learn/issues/9354",
            "https://github.com/spotify/annoy/issues/314",
        ),
    ),
    Misconception(
        "root_then_square",
        "A root is taken, to get the distance, and then squared again. The values are right, but the slope of a root is "
        "infinite at 0, and infinity times 0 is not a number: where a query lies just on a key, the gradients are NaN. "
        "The square is what is needed, so the root can be left out.",
        LEARNED,
        (regress(root_squared),),
        ("https://github.com/pytorch/pytorch/issues/2421",),
    ),
    Misconception(
        "differences_summed_before_squaring",
        "The differences of the features are added up before they are squared. They can then cancel: a place one step to "
        "the east and one to the south counts as no distance at all. With one feature it is invisible.",
        FUNCTIONS,
        (regress(lambda query, keys: (query.unsqueeze(-2) - keys).sum(dim=-1).square()),),
    ),
    Misconception(
        "mean_over_features",
        "The squared differences are averaged over the features, where a distance adds them up. The bell gets wider with "
        "every feature. With one feature it is invisible.",
        FUNCTIONS,
        (regress(lambda query, keys: (query.unsqueeze(-2) - keys).square().mean(dim=-1)),),
    ),
    Misconception(
        "nearest_alone",
        "The nearest measurement alone is returned. That is what a very narrow bell comes close to; otherwise all have a "
        "part, the near ones more.",
        SECTION,
        (regress(weigh=nearest_alone),),
    ),
    Misconception(
        "dot_product_used",
        "Query and keys are compared by their dot product. That measures how far a key reaches in the direction of the "
        "query, and a long key beats a near one. Here nearness counts.",
        FUNCTIONS,
        (by_dot_product, lambda query, keys, values, width=1.0: over_entries(query @ keys.T / width) @ values),
        ("https://github.com/nfmcclure/tensorflow_cookbook/issues/103",),
    ),
    Misconception(
        "paired_row_by_row",
        "Queries and keys are subtracted row by row, the first from the first, the second from the second. That works "
        "for a single query, and where there are as many queries as keys it gives numbers without an error. But each "
        "query has a distance to each key: one of the two needs an axis more.",
        "soft_addressing#queries-and-memories-in-batches",
        (regress(row_by_row),),
    ),
    Misconception(
        "softmax_over_queries",
        "The weights are shared out along axis 0. For several queries that is the axis of the queries, so that the "
        "answer to one depends on who else is asking.",
        AXIS,
        (regress(weigh=lambda scores: scores.softmax(dim=0)),),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "keys_as_values",
        "The weights mix the keys, the places, instead of the values that were measured there.",
        STEPS,
        (keys_as_values,),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "weights_returned",
        "What is returned are the weights, alone or beside the answer. Here the mean of the values is asked for.",
        STEPS,
        (weights_alone, with_returned_weights),
    ),
    Misconception(
        "answer_squeezed",
        "squeeze() without an axis takes out every axis of size 1, also those that mean something: a batch of one query, "
        "or values of width 1. Name the axis that is to go.",
        "soft_addressing#queries-and-memories-in-batches",
        (squeezed,),
        ("https://github.com/NVIDIA/tacotron2/pull/303",),
    ),
    Misconception(
        "query_in_place",
        "The query is changed in place (/= or -=), and with it the caller's own tensor.",
        SECTION,
        (query_in_place,),
    ),
    Misconception(
        "weights_detached",
        "The answer is right, but query and keys get no gradient: the weights have been rebuilt from raw data (.data, "
        ".detach(), torch.tensor(...)). Then nothing can learn where to ask.",
        LEARNED,
        (detached,),
    ),
)

EXERCISE = Exercise(
    name="kernel_regression",
    chapter="soft_addressing",
    kind="function",
    minutes=20,
    parts=(
        Part("nearness", 2, "return the mean of the values, weighted by a bell around each query", SECTION),
        Part("far away", 1, "give the nearest values many widths away from everything that was measured", MAXIMUM),
        Part("far from zero", 1, "keep its precision where the places are large numbers", SECTION),
        Part("gradients", 1, "pass finite and right gradients to query, keys and values", LEARNED),
    ),
    hints=(
        "Three measurements on a line and one query between them: what are the three distances, and what must a score do "
        "as a distance grows? Where have you turned scores into weights before?",
        "It is a soft look-up with another score: minus the squared distance over 2 width². For the distances of every "
        "query to every key, one of the two needs an axis more before they are subtracted.",
        "query.unsqueeze(-2) - keys is (…, key, d). Square, sum over the last axis, minus, divide by (2 * width**2). "
        "Then your softmax along the last axis, and the product with the values.",
    ),
    cases=cases,
    reference=kernel_regression,
    misconceptions=MISCONCEPTIONS,
)

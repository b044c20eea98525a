"""Exercise: look a query up in a memory by similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import soft_addressing
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import close, randn, unchanged

SECTION, STEPS = "soft_addressing#one-function", "soft_addressing#three-steps-by-hand"
AXIS, MAXIMUM = "soft_addressing#which-axis", "soft_addressing#why-subtract-the-maximum"
TEMPERATURE, LEARNED = "soft_addressing#temperature", "soft_addressing#soft-can-be-learned"


def cases(rng: Generator) -> Iterator[Case]:
    for label, leading, entries, d_query, d_value in (
        ("one query", (), 3, 2, 5),
        ("one query, an entry alone", (), 1, 3, 2),
        ("three queries", (3,), 5, 7, 2),
        ("as many queries as entries", (5,), 5, 3, 2),
        ("a batch of one query", (1,), 5, 3, 2),
        ("values of width 1", (3,), 5, 2, 1),
        ("as many entries as features", (2,), 3, 3, 5),
        ("all sizes equal", (3,), 3, 3, 3),
        ("two batches of three queries", (2, 3), 5, 7, 11),
    ):
        query, keys, values = inputs(rng, leading, entries, d_query, d_value)
        text = f"{describe(query, keys, values)}, {label}"
        yield Case("look-up", text, (Call((query, keys, values)),), holds=(between(values),))
    query, keys, values = inputs(rng, (3,), 5, 7, 2)
    yield Case(
        "look-up",
        f"{describe(query, keys, values)}, the first query alone and then among three",
        (Call((query[:1], keys, values)), Call((query, keys, values))),
        holds=(
            Property("A query gets the same answer alone as in company.", _moved_by_company),
            unchanged("A query gets the same answer alone as in company.", "its answer moved by {change}", where=0),
        ),
    )
    order = torch.randperm(5, generator=rng)
    yield Case(
        "look-up",
        f"{describe(query, keys, values)}, then the entries in another order",
        (Call((query, keys, values)), Call((query, keys[order], values[order]))),
        holds=(
            unchanged(
                "The order of the entries does not matter, as long as each key keeps its value.",
                "with the entries in another order the answers moved by {change}",
            ),
        ),
    )
    query, keys, values = inputs(rng, (3,), 5, 7, 2, dtype=torch.float64)
    label = f"{describe(query, keys, values)}, float64"
    yield Case("look-up", label, (Call((query, keys, values)),), tolerance=1e-9)
    query, keys, values = inputs(rng, (3,), 5, 2, 7)
    transposed = tuple(x.t().contiguous().t() for x in (query, keys, values))
    yield Case("look-up", f"{describe(query, keys, values)}, all transposed tensors", (Call(transposed),))
    yield from _temperature_cases(rng)
    query, keys, values = inputs(rng, (3,), 5, 2, 7, scale=40.0)
    yield Case(
        "large scores",
        f"{describe(query, keys, values)}, scores in the thousands",
        (Call((query, keys, values)),),
        holds=(between(values),),
    )
    query, keys, values = inputs(rng, (3,), 5, 2, 7)
    yield Case(
        "large scores",
        f"{describe(query, keys, values)}, temperature 0.001",
        (Call((query, keys, values, 0.001)),),
        holds=(between(values),),
    )
    far = torch.tensor([[30.0, 0.0], [-30.0, 0.0]])
    keys = torch.tensor([[30.0, 1.0], [31.0, 0.0], [32.0, 2.0]])
    values = randn(rng, 3, 5)
    label = f"{describe(far, keys, values)}, one query far towards the keys and one far away from them"
    yield Case("large scores", label, (Call((far, keys, values)),), holds=(between(values),))
    for leading, temperature in (((), 1.0), ((3,), 0.5)):
        query, keys, values = inputs(rng, leading, 5, 2, 7, scale=1.0)
        label = f"{describe(query, keys, values)}, temperature {temperature:g}, with gradients"
        yield Case("gradients", label, (Call((query, keys, values, temperature), backward=True),))


def _temperature_cases(rng: Generator) -> Iterator[Case]:
    for leading, temperature in (((), 0.5), ((3,), 2.0), ((2, 3), 5.0)):
        query, keys, values = inputs(rng, leading, 5, 7, 2)
        label = f"{describe(query, keys, values)}, temperature {temperature:g}"
        yield Case("temperature", label, (Call((query, keys, values, temperature)),), holds=(between(values),))
    query, keys, values = inputs(rng, (3,), 5, 2, 7)
    yield Case(
        "temperature",
        f"{describe(query, keys, values)}, temperature 1,000,000",
        (Call((query, keys, values, 1e6)),),
        holds=(mean_of_all(values),),
    )
    yield Case(
        "temperature",
        f"{describe(query, keys, values)}, temperature 2 by name, and then none given",
        (Call((query, keys, values), {"temperature": 2.0}), Call((query, keys, values))),
    )


def inputs(
    rng: Generator,
    leading: tuple[int, ...],
    entries: int,
    d_query: int,
    d_value: int,
    scale: float = 1.2,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        randn(rng, *leading, d_query, scale=scale, dtype=dtype),
        randn(rng, entries, d_query, scale=scale, dtype=dtype),
        randn(rng, entries, d_value, dtype=dtype),
    )


def describe(query: Tensor, keys: Tensor, values: Tensor) -> str:
    shapes = (f"{name} {tuple(x.shape)}" for name, x in (("query", query), ("keys", keys), ("values", values)))
    return ", ".join(shapes)


def _moved_by_company(outputs: Sequence[Any]) -> str | None:
    alone, among = outputs[0][0], outputs[1][0]
    if close(among, alone):
        return None
    return f"asked alone it got {alone[0]:.3g} as its first number, asked among three it got {among[0]:.3g}"


def between(values: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        slack = 1e-3 * float(values.abs().max())
        for number in (outputs[0].min(), outputs[0].max()):
            if not values.min() - slack <= number <= values.max() + slack:
                return f"one of your numbers is {number:.3g}, and the values lie from {values.min():.3g} to {values.max():.3g}"
        return None

    return Property("An answer is a mean of the values, so it lies between them.", broken)


def mean_of_all(values: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        mean, given = values.mean(dim=0)[0], outputs[0][0, 0]
        return None if abs(mean - given) < 1e-2 else f"the first number should be near {mean:.3g}, but is {given:.3g}"

    return Property("When it is very hot, every query gets the mean of all values.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def look_up(
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    weigh: Callable[[Tensor], Tensor] | None = None,
    cool: Callable[[Tensor, float], Tensor] | None = None,
    finish: Callable[[Tensor, float], Tensor] | None = None,
) -> Callable[..., Any]:
    """Build a look-up out of its steps; each is right unless another is given."""

    def soft_lookup(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
        scores = (cool or divided)((score or product)(query, keys), temperature)
        weights = (weigh or over_entries)(scores)
        return (finish or as_it_is)(weights @ values, temperature)

    return soft_lookup


def product(query: Tensor, keys: Tensor) -> Tensor:
    return query @ keys.T


def over_entries(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


def divided(scores: Tensor, temperature: float) -> Tensor:
    return scores / temperature


def as_it_is(answer: Tensor, temperature: float) -> Tensor:
    return answer


def raw_shares(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def best_alone(scores: Tensor) -> Tensor:
    return (scores == scores.amax(dim=-1, keepdim=True)).to(scores.dtype)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def nearness(query: Tensor, keys: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - keys).square().sum(dim=-1)


def keys_as_values(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return look_up()(query, keys, keys, temperature)


def values_as_keys(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return look_up()(query, values, values, temperature)


def one_query_only(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return over_entries(keys @ query / temperature) @ values


def keys_not_transposed(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return over_entries(query @ keys / temperature) @ values


def squeezed(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return look_up()(query, keys, values, temperature).squeeze()


def weights_returned_too(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Any:
    weights = over_entries(query @ keys.T / temperature)
    return weights @ values, weights


def weights_alone(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return over_entries(query @ keys.T / temperature)


def query_in_place(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    query /= temperature
    return look_up()(query, keys, values)


def detached(query: Tensor, keys: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    return look_up()(query.detach(), keys.detach(), values, temperature)


MISCONCEPTIONS = (
    Misconception(
        "softmax_dim0",
        "softmax runs along axis 0. For one query that is the axis of the entries; for several it is the axis of the "
        "queries. Each entry is then shared out among the queries, where each query should share itself out among the "
        "entries, and the answer to one depends on who else is asking. Counted from the end, the right axis is the "
        "same in both cases.",
        AXIS,
        (look_up(weigh=lambda scores: scores.softmax(dim=0)),),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "softmax_fixed_dim1",
        "softmax runs along axis 1. That is the axis of the entries for a list of queries; a single query has no axis 1 "
        "(an error), and with two axes in front of the features it is an axis of queries. Counted from the end, the "
        "right axis is the same in all cases.",
        AXIS,
        (look_up(weigh=lambda scores: scores.softmax(dim=1)),),
        ("https://github.com/datawhalechina/llms-from-scratch-cn/issues/54",),
    ),
    Misconception(
        "softmax_over_everything",
        "All queries together share out a single 1. With one query that is right; with several, each gets only a part of "
        "its answer, the smaller the more queries there are. Every query has a 1 of its own to share out.",
        AXIS,
        (look_up(weigh=lambda scores: scores.flatten().softmax(dim=0).view_as(scores)),),
        ("https://github.com/uTensor/uTensor/pull/171",),
    ),
    Misconception(
        "keys_as_values",
        "The weights mix the keys instead of the values. A key is what an entry is found by, a value is what it hands "
        "over. The slip hides as long as both are the same tensor.",
        STEPS,
        (keys_as_values,),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "values_as_keys",
        "The query is compared with the values instead of with the keys. A key is what an entry is found by, a value is "
        "what it hands over; their widths need not even be equal.",
        STEPS,
        (values_as_keys,),
    ),
    Misconception(
        "no_softmax",
        "The scores are used as weights as they are. They can be negative and sum to anything, so that the answer is no "
        "mean of the values.",
        STEPS,
        (look_up(weigh=lambda scores: scores),),
    ),
    Misconception(
        "weights_not_normalised",
        "The exponentials of the scores are not divided by their sum. Weights are shares of a 1; without the division "
        "the answer grows with the number of entries.",
        STEPS,
        (
            look_up(weigh=lambda scores: scores.exp()),
            look_up(weigh=lambda scores: (scores - scores.amax(dim=-1, keepdim=True)).exp()),
        ),
    ),
    Misconception(
        "divided_by_the_number_of_entries",
        "The answer is divided by the number of entries. The weights sum to 1 already, so their sum of values is the "
        "mean.",
        STEPS,
        (look_up(weigh=lambda scores: scores.softmax(dim=-1) / scores.size(-1)),),
    ),
    Misconception(
        "hard_lookup",
        "The best entry alone is returned. That is what a very small temperature comes close to; at others, every entry "
        "has a part. Besides, a choice has no slope, from which the query could learn.",
        "soft_addressing#soft-against-hard-maximum",
        (look_up(weigh=best_alone),),
    ),
    Misconception(
        "temperature_multiplied",
        "The scores are multiplied by the temperature. Then cold and hot have changed places: a small one makes all "
        "entries count alike, where it should let the best one win. The scores are divided by it.",
        TEMPERATURE,
        (look_up(cool=lambda scores, temperature: scores * temperature),),
        ("https://github.com/bowang-lab/BLEEP/issues/5",),
    ),
    Misconception(
        "temperature_ignored",
        "The temperature has no effect: it is taken and not used.",
        TEMPERATURE,
        (look_up(cool=lambda scores, temperature: scores),),
    ),
    Misconception(
        "temperature_after_softmax",
        "The temperature divides the weights (or the answer), after softmax. The weights then no longer sum to 1, and "
        "are no sharper or flatter than before. It belongs on the scores.",
        TEMPERATURE,
        (look_up(cool=lambda scores, temperature: scores, finish=lambda answer, temperature: answer / temperature),),
    ),
    Misconception(
        "temperature_twice",
        "The scores are divided by the temperature twice, which is its square: at 2 the weights are as flat as they "
        "should be at 4.",
        TEMPERATURE,
        (look_up(cool=lambda scores, temperature: scores / temperature**2),),
    ),
    Misconception(
        "softmax_overflows",
        "The exponential is taken of the scores as they are. Beyond a score of 88.7 it overflows, and infinity divided "
        "by infinity is not a number; a small temperature makes scores large. Only the differences between scores "
        "count, so the largest may be subtracted first.",
        MAXIMUM,
        (look_up(weigh=raw_shares),),
        ("https://github.com/pyg-team/pytorch_geometric/issues/53",),
    ),
    Misconception(
        "softmax_global_max",
        "The number subtracted before the exponential is the largest score of all queries together. The scores of "
        "another query may all lie far below it: every exp is 0 then, and 0 divided by 0 is not a number. Each query "
        "needs the largest of its own scores.",
        MAXIMUM,
        (look_up(weigh=lambda scores: raw_shares(scores - scores.max())),),
        ("https://github.com/apache/singa/pull/540",),
    ),
    Misconception(
        "scores_scaled",
        "The scores are divided by the root of the width. That is the scaled dot product, which chapter 3 is about; "
        "here the plain dot product is asked for, over the temperature and nothing else.",
        "soft_addressing#similarity-functions",
        (look_up(score=lambda query, keys: product(query, keys) / query.size(-1) ** 0.5),),
    ),
    Misconception(
        "cosine_instead_of_dot",
        "Query or keys are brought to length 1 before they are compared. That is the cosine; here the plain dot product "
        "is asked for, in which a longer vector scores higher.",
        "soft_addressing#long-keys-win",
        (
            look_up(score=lambda query, keys: product(unit(query), unit(keys))),
            look_up(score=lambda query, keys: product(query, unit(keys))),
            look_up(score=lambda query, keys: product(unit(query), keys)),
        ),
    ),
    Misconception(
        "distance_instead_of_dot",
        "Query and keys are compared by their distance. Here the dot product is asked for; the two agree only where all "
        "keys are equally long.",
        "soft_addressing#kernel-regression",
        (look_up(score=nearness), look_up(score=lambda query, keys: nearness(query, keys) / 2)),
    ),
    Misconception(
        "one_query_only",
        "The product has the keys on the left, which works for a single query alone. With several there is an error, or "
        "nonsense where the sizes happen to fit. Let the queries be rows, on the left, and each score stands in the row "
        "of its query.",
        "soft_addressing#one-matrix-product",
        (one_query_only,),
    ),
    Misconception(
        "keys_not_transposed",
        "Queries and keys are multiplied as they stand. A matrix product pairs the rows on the left with the *columns* "
        "on the right, so the keys, which are rows, must be transposed. Where there are as many entries as features "
        "nothing complains.",
        "soft_addressing#one-matrix-product",
        (keys_not_transposed,),
    ),
    Misconception(
        "answer_squeezed",
        "squeeze() without an axis takes out every axis of size 1, also those that mean something: a batch of one query, "
        "or values of width 1. Name the axis that is to go, or make none that has to.",
        SECTION,
        (squeezed,),
        (
            "https://github.com/NVIDIA/tacotron2/pull/303",
            "https://github.com/KrishnaDN/Attentive-Statistics-Pooling-for-Deep-Speaker-Embedding/issues/3",
        ),
    ),
    Misconception(
        "weights_returned_too",
        "The weights are returned beside the answer. Here the answer alone is asked for.",
        SECTION,
        (weights_returned_too,),
    ),
    Misconception(
        "weights_returned",
        "What is returned are the weights. The third step is missing: add up the values, each times its weight.",
        STEPS,
        (weights_alone,),
    ),
    Misconception(
        "query_in_place",
        "The query is divided by the temperature in place (/=), which changes the caller's own tensor: the next look-up "
        "with it asks another question.",
        TEMPERATURE,
        (query_in_place,),
    ),
    Misconception(
        "weights_detached",
        "The answer is right, but query and keys get no gradient: the weights have been rebuilt from raw data (.data, "
        ".detach(), torch.tensor(...)). That a soft look-up can learn what to look for is the point of it.",
        LEARNED,
        (detached,),
        ("https://github.com/paiml/aprender/pull/2203",),
    ),
)

EXERCISE = Exercise(
    name="soft_lookup",
    chapter="soft_addressing",
    kind="function",
    minutes=15,
    parts=(
        Part("look-up", 2, "return the mean of the values, weighted by how well each key fits the query", STEPS),
        Part(
            "temperature",
            1,
            "let the best entry win when the temperature is low, and all count alike when it is high",
            TEMPERATURE,
        ),
        Part("large scores", 1, "stay finite and right for large scores and small temperatures", MAXIMUM),
        Part("gradients", 1, "pass the right gradients to query, keys and values", LEARNED),
    ),
    hints=(
        "For one query and three entries, on paper: what are the three steps of the chapter, and what shape has the "
        "result of each?",
        "One matrix product gives all scores, one row a query. Does a query get the same answer alone as in company? "
        "That depends on the axis of softmax, and whether you count it from the front or from the end.",
        "Scores: the query times the transposed keys, over the temperature. Weights: your softmax along the last axis. "
        "Answer: the weights times the values. These work for one query and for any number, as they are.",
    ),
    cases=cases,
    reference=soft_addressing.soft_lookup,
    misconceptions=MISCONCEPTIONS,
)

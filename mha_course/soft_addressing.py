"""Chapter 2: a memory that is addressed softly, by similarity instead of by equality."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Similarity = Callable[[Tensor, Tensor], Tensor]  # (…, query, d_key) and (…, key, d_key) to scores (…, query, key)


def softmax(x: Float[Tensor, "*axes"], dim: int) -> Float[Tensor, "*axes"]:
    """Turn scores into weights that are positive and sum to 1.

    Args:
        x: scores, any real numbers.
        dim: the axis along which the weights sum to 1.

    Returns:
        Weights of the shape of `x`. The largest score is subtracted first: this changes nothing in the
        result, and `exp` can no longer overflow.

    Source: Bridle (1990), "Probabilistic Interpretation of Feedforward Classification Network Outputs".

    >>> softmax(torch.tensor([0.0, 0.0, 1000.0]), dim=-1)
    tensor([0., 0., 1.])
    """
    weights = (x - x.amax(dim=dim, keepdim=True)).exp()
    return weights / weights.sum(dim=dim, keepdim=True)


def dot(
    query: Float[Tensor, "*#batch query d_key"],
    keys: Float[Tensor, "*#batch key d_key"],
) -> Float[Tensor, "*#batch query key"]:
    """Score by the dot product: large where query and key point the same way and are long.

    Source: Luong et al. (2015), "Effective Approaches to Attention-based Neural Machine Translation", section 3.1.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    tensor([[3., 6.]])
    """
    return query @ keys.transpose(-2, -1)


def scaled_dot(
    query: Float[Tensor, "*#batch query d_key"],
    keys: Float[Tensor, "*#batch key d_key"],
) -> Float[Tensor, "*#batch query key"]:
    """Score by the dot product over the root of the width, so that wide vectors don't score higher for being wide.

    Source: Vaswani et al. (2017), section 3.2.1.

    >>> scaled_dot(torch.ones(1, 16), torch.ones(1, 16))
    tensor([[4.]])
    """
    # The query is scaled, not the product: in half precision the product may pass the largest number there is.
    return dot(query / math.sqrt(query.size(-1)), keys)


def cosine(
    query: Float[Tensor, "*#batch query d_key"],
    keys: Float[Tensor, "*#batch key d_key"],
) -> Float[Tensor, "*#batch query key"]:
    """Score by the angle alone, from -1 (opposite) to 1 (same direction); a vector of zeros scores 0.

    Source: Graves et al. (2014), "Neural Turing Machines", equation 6.

    >>> cosine(torch.tensor([[5.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 7.0]]))
    tensor([[1., 0.]])
    """
    smallest = torch.finfo(query.dtype).tiny  # in half precision the usual 1e-12 is 0
    return dot(F.normalize(query, dim=-1, eps=smallest), F.normalize(keys, dim=-1, eps=smallest))


def gaussian_kernel(
    query: Float[Tensor, "*#batch query d_key"],
    keys: Float[Tensor, "*#batch key d_key"],
    width: float = 1.0,
) -> Float[Tensor, "*#batch query key"]:
    """Score by nearness: after the softmax, weights fall with the distance as a bell curve of this width.

    Args:
        query: what is looked for.
        keys: the address of each entry.
        width: standard deviation of the bell, in the unit of the vectors; above 0.

    Returns:
        Minus the squared distance over 2 width². With `soft_lookup` this is kernel regression.

    Source: Nadaraya (1964), "On Estimating Regression"; Watson (1964), "Smooth Regression Analysis".

    >>> gaussian_kernel(torch.zeros(1, 1), torch.tensor([[2.0], [4.0]]))
    tensor([[-2., -8.]])
    """
    distance = query[..., :, None, :] - keys[..., None, :, :]
    return -distance.square().sum(dim=-1) / (2 * width**2)


def bilinear(
    query: Float[Tensor, "*#batch query d_query"],
    keys: Float[Tensor, "*#batch key d_key"],
    matrix: Float[Tensor, "d_query d_key"],
) -> Float[Tensor, "*#batch query key"]:
    """Score by a learned matrix between query and key, whose widths may differ.

    Source: Luong et al. (2015), section 3.1 ("general").

    >>> bilinear(torch.ones(1, 2), torch.eye(3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 4.0]]))
    tensor([[1., 2., 7.]])
    """
    return dot(query @ matrix, keys)


def additive(
    query: Float[Tensor, "*#batch query d_query"],
    keys: Float[Tensor, "*#batch key d_key"],
    query_matrix: Float[Tensor, "d_query d_hidden"],
    key_matrix: Float[Tensor, "d_key d_hidden"],
    vector: Float[Tensor, " d_hidden"],
) -> Float[Tensor, "*#batch query key"]:
    """Score by a small learned network with one hidden layer, that sees query and key together.

    Source: Bahdanau et al. (2015), section 3.1 and appendix A.1.2.

    >>> additive(torch.zeros(1, 2), torch.ones(1, 3), torch.ones(2, 4), torch.full((3, 4), 9.0), torch.ones(4))
    tensor([[4.]])
    """
    hidden = (query @ query_matrix)[..., :, None, :] + (keys @ key_matrix)[..., None, :, :]
    return hidden.tanh() @ vector


def soft_lookup(
    query: Float[Tensor, "*batch d_query"],
    keys: Float[Tensor, "*#batch key d_key"],
    values: Float[Tensor, "*#batch key d_value"],
    temperature: float = 1.0,
    similarity: Similarity = dot,
) -> Float[Tensor, "*batch d_value"]:
    """Look a query up in a memory: the more a key resembles the query, the more of its value comes back.

    Args:
        query: what is looked for, one vector or many.
        keys: the address of each entry, in one memory for all queries or in one for each.
        values: the content of each entry.
        temperature: above 0. Small picks the best entry alone, large returns the mean of all.
        similarity: gives a score for each query and key; one that needs more, such as `additive`, is given the
            rest by `functools.partial`.

    Returns:
        A weighted mean of the values for each query.

    Raises:
        ValueError: if the temperature is not above 0.

    Source: Bahdanau et al. (2015), section 3.1, with the dot product as the similarity.

    >>> keys = torch.eye(3)
    >>> soft_lookup(keys[1], keys, torch.tensor([[10.0], [20.0], [30.0]]), temperature=0.01)
    tensor([20.])
    """
    if not temperature > 0:
        raise ValueError(
            f"the temperature must be above 0, but it is {temperature}; in place of 0 use hard_lookup",
        )
    scores = similarity(query.unsqueeze(-2), keys)
    # Down from 0: in half precision a large score over a small temperature
    # would pass the largest number there is.
    scores = scores - scores.amax(dim=-1, keepdim=True)
    return (softmax(scores / temperature, dim=-1) @ values).squeeze(-2)


def hard_lookup(
    query: Float[Tensor, "*batch d_query"],
    keys: Float[Tensor, "*#batch key d_key"],
    values: Float[Tensor, "*#batch key d_value"],
    similarity: Similarity = dot,
) -> Float[Tensor, "*batch d_value"]:
    """Fetch the value of the most similar key alone: what `soft_lookup` tends to as the temperature goes to 0.

    Args:
        query: what is looked for, one vector or many.
        keys: the address of each entry.
        values: the content of each entry.
        similarity: gives a score for each query and key.

    Returns:
        One value for each query; where several keys are equally similar, the mean of theirs. No gradient reaches
        the query or the keys: a choice has no slope.

    >>> hard_lookup(torch.tensor([0.0, 0.9]), torch.eye(2), torch.tensor([[10.0], [20.0]]))
    tensor([20.])
    """
    scores = similarity(query.unsqueeze(-2), keys)
    best = (scores == scores.amax(dim=-1, keepdim=True)).to(scores.dtype)
    return (best / best.sum(dim=-1, keepdim=True) @ values).squeeze(-2)

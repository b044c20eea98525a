"""Chapter 2: a memory that is addressed softly, by similarity instead of by equality."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


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


def soft_lookup(
    query: Float[Tensor, "*batch d_key"],
    keys: Float[Tensor, "key d_key"],
    values: Float[Tensor, "key d_value"],
    temperature: float = 1.0,
) -> Float[Tensor, "*batch d_value"]:
    """Look a query up in a memory: the more a key resembles the query, the more of its value comes back.

    Args:
        query: what is looked for, one vector or many.
        keys: the address of each entry.
        values: the content of each entry.
        temperature: above 0. Small picks the best entry alone, large returns the mean of all.

    Returns:
        A weighted mean of the values for each query.

    Raises:
        ValueError: if the temperature is not above 0.

    Source: Bahdanau et al. (2015), section 3.1, with the dot product as the similarity.

    >>> keys = torch.eye(3)
    >>> soft_lookup(keys[1], keys, torch.tensor([[10.0], [20.0], [30.0]]), temperature=0.01)
    tensor([20.])
    """
    if temperature <= 0:
        raise ValueError(
            f"the temperature must be above 0, but it is {temperature}; a very small one picks the best entry alone"
        )
    return softmax(query @ keys.transpose(0, 1) / temperature, dim=-1) @ values

"""Chapter 3: scaled dot-product attention, and the masks that say who may attend to whom."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mha_course.soft_addressing import softmax


def attention_weights(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch query key"]:
    """Say how much each query attends to each key.

    Args:
        query: one row a query.
        key: one row a key; as many as there are values, which need not be as many as queries.
        mask: True where a query may attend; broadcasts to (*batch, query, key). None allows everything.

    Returns:
        Weights in [0, 1]. Each row sums to 1, except that of a query that may attend to nothing: it is 0.

    Raises:
        ValueError: if the mask is not boolean.

    Source: Vaswani et al. (2017), section 3.2.1, equation 1.

    >>> attention_weights(torch.zeros(1, 4), torch.randn(5, 4))
    tensor([[0.2000, 0.2000, 0.2000, 0.2000, 0.2000]])
    """
    # The query is scaled, not the product: in half precision the product may pass the largest number there is.
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)
    if mask is None:
        return softmax(scores, dim=-1)
    if mask.dtype != torch.bool:
        raise ValueError(
            f"the mask must be boolean, True where a query may attend, but its type is {mask.dtype}; "
            "convert one of zeros and ones with mask.bool()"
        )
    # The lowest finite number, not -inf: softmax of a row of -inf is NaN, and so is its gradient.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return softmax(scores, dim=-1) * mask


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    value: Float[Tensor, "*batch key d_value"],
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*batch query d_value"], Float[Tensor, "*batch query key"]]:
    """Mix the values, each query in its own proportions.

    Args:
        query: one row a query.
        key: one row a key.
        value: one row a key: what that key stands for.
        mask: True where a query may attend; broadcasts to (*batch, query, key). None allows everything.

    Returns:
        The mixed values, and the weights they were mixed with. A query that may attend to nothing gets zeros.

    Raises:
        ValueError: if the mask is not boolean.

    Source: Vaswani et al. (2017), section 3.2.1, equation 1.

    >>> output, weights = scaled_dot_product_attention(torch.zeros(1, 2), torch.randn(4, 2), torch.eye(4))
    >>> output
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    weights = attention_weights(query, key, mask)
    return weights @ value, weights


def causal_mask(length: int) -> Bool[Tensor, "query key"]:
    """Let each position attend to itself and to what came before.

    Args:
        length: number of positions.

    Returns:
        True on and below the diagonal.

    Source: Vaswani et al. (2017), section 3.2.3.

    >>> causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return torch.ones(length, length, dtype=torch.bool).tril()


def padding_mask(lengths: Int[Tensor, " batch"], length: int) -> Bool[Tensor, "batch 1 1 key"]:
    """Hide the padding behind the real tokens of each sequence.

    Args:
        lengths: number of real tokens in each sequence.
        length: the common length that all were padded to.

    Returns:
        True on real tokens. The axes of size 1 are for the heads and the queries, which all see the same.

    >>> padding_mask(torch.tensor([2, 3]), 3).squeeze()
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    real = torch.arange(length, device=lengths.device) < lengths[:, None]
    return real[:, None, None, :]

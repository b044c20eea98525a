"""Chapter 3: scaled dot-product attention, and the masks that say who may attend to whom."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mha_course.soft_addressing import scaled_dot, softmax


def attention_weights(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch query key"]:
    """Say how much each query attends to each key.

    Args:
        query: one row a query.
        key: one row a key; as many as there are values, which need not be as many as queries.
        mask: True where a query may attend; broadcasts to (*batch, query, key). None allows everything.
        bias: added to the scores, as some position schemes do; broadcasts to (*batch, query, key).

    Returns:
        Weights in [0, 1]. Each row sums to 1, except that of a query that may attend to nothing: it is 0.

    Raises:
        ValueError: if the mask is not boolean, or mask or bias have axes that the scores don't have.

    Source: Vaswani et al. (2017), section 3.2.1, equation 1.

    >>> attention_weights(torch.zeros(1, 4), torch.randn(5, 4))
    tensor([[0.2000, 0.2000, 0.2000, 0.2000, 0.2000]])
    """
    scores = scaled_dot(query, key)
    if bias is not None:
        _require_fit("bias", bias, scores)
        scores = scores + bias
    if mask is None:
        return softmax(scores, dim=-1)
    require_boolean(mask)
    _require_fit("mask", mask, scores)
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


def require_boolean(mask: Tensor) -> None:
    """Refuse a mask of numbers: PyTorch would add them to the scores and say nothing.

    Raises:
        ValueError: if the mask is not boolean.
    """
    if mask.dtype != torch.bool:
        raise ValueError(
            f"the mask must be boolean, True where a query may attend, but its type is {mask.dtype}; "
            "convert one of zeros and ones with mask.bool()"
        )


def _require_fit(name: str, given: Tensor, scores: Tensor) -> None:
    if given.dim() > scores.dim():
        raise ValueError(
            f"the {name} is stretched to the scores, so it can have no more axes than these, but its shape is "
            f"{tuple(given.shape)} and theirs {tuple(scores.shape)}; without heads, drop the axis of the heads: {name}[:, 0]"
        )


class SelfAttention(nn.Module):
    """One head: queries, keys and values all come from the same tokens, through three learned matrices.

    Source: Vaswani et al. (2017), section 3.2.1.

    >>> attention = SelfAttention(d_model=100, d_head=20)
    >>> attention(torch.randn(1, 10, 100)).shape  # 10 x 100 in, 100 x 20 weights, 10 x 20 out
    torch.Size([1, 10, 20])
    """

    def __init__(self, d_model: int, d_head: int, d_value: int | None = None) -> None:
        """Create the three matrices.

        Args:
            d_model: width of every token.
            d_head: width of queries and keys.
            d_value: width of the values and so of the output; None makes it `d_head`.
        """
        super().__init__()
        self.q_proj = nn.Linear(d_model, d_head, bias=False)
        self.k_proj = nn.Linear(d_model, d_head, bias=False)
        self.v_proj = nn.Linear(d_model, d_head if d_value is None else d_value, bias=False)

    def forward(
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch length d_value"]:
        """Mix the values of all tokens for each token; mask: True where a token may attend."""
        return self.with_weights(x, mask)[0]

    def with_weights(
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "batch length d_value"], Float[Tensor, "batch length length"]]:
        """Do as `forward`, and return the weights too: row i holds how much token i attends to each token."""
        return scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), mask)


class RecurrentNetwork(nn.Module):
    """What self-attention replaced: one state that walks along the sentence, token by token.

    What token 0 says reaches token n through n steps here and through one in self-attention, and no step can begin
    before the last is done.

    Source: Elman (1990), "Finding Structure in Time".

    >>> RecurrentNetwork(d_model=4)(torch.randn(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, d_model: int) -> None:
        """Create the matrices for the token and for the state before; d_model: width of both."""
        super().__init__()
        self.from_token = nn.Linear(d_model, d_model)
        self.from_state = nn.Linear(d_model, d_model)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the state after each token, each of its features in [-1, 1]."""
        state, states = torch.zeros_like(x[:, 0]), []
        for token in self.from_token(x).unbind(dim=1):
            state = torch.tanh(token + self.from_state(state))
            states.append(state)
        return torch.stack(states, dim=1)


def causal_mask(
    length: int, total: int | None = None, device: torch.device | str | None = None
) -> Bool[Tensor, "query key"]:
    """Let each position attend to itself and to what came before.

    Args:
        length: number of positions that ask.
        total: number of positions that are asked, of which those that ask are the last; None: the same ones.
        device: where the mask is made.

    Returns:
        True on and below the diagonal that ends in the lower right corner.

    Raises:
        ValueError: if `total` is less than `length`.

    Source: Vaswani et al. (2017), section 3.2.3.

    >>> causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    >>> causal_mask(2, total=4)  # two new tokens after two old ones
    tensor([[ True,  True,  True, False],
            [ True,  True,  True,  True]])
    """
    total = length if total is None else total
    if total < length:
        raise ValueError(
            f"the {length} positions that ask must be among those that are asked, but these are only {total}; "
            f"total counts the earlier positions and the {length} new ones"
        )
    return torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length)


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


def decoder_mask(lengths: Int[Tensor, " batch"], length: int) -> Bool[Tensor, "batch 1 query key"]:
    """Hide both the future and the padding, as a decoder's self-attention needs it.

    Args:
        lengths: number of real tokens in each sequence.
        length: the common length that all were padded to.

    Returns:
        True where the key is a real token and not later than the query.

    Source: Vaswani et al. (2017), section 3.2.3.

    >>> decoder_mask(torch.tensor([2]), 3).squeeze()
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True, False]])
    """
    return causal_mask(length, device=lengths.device) & padding_mask(lengths, length)


def sliding_window_mask(
    length: int, window: int, device: torch.device | str | None = None
) -> Bool[Tensor, "query key"]:
    """Let each position attend to itself and to the `window` - 1 positions before it.

    Args:
        length: number of positions.
        window: how many positions each one sees, itself included; at least 1.
        device: where the mask is made.

    Returns:
        True on a band of `window` diagonals.

    Raises:
        ValueError: if the window is below 1.

    Source: Beltagy et al. (2020), "Longformer", section 3.1; Jiang et al. (2023), "Mistral 7B", section 2.

    >>> sliding_window_mask(4, window=2)
    tensor([[ True, False, False, False],
            [ True,  True, False, False],
            [False,  True,  True, False],
            [False, False,  True,  True]])
    """
    if window < 1:
        raise ValueError(
            f"the window counts the position itself, so it must be at least 1, but it is {window}; 1 sees itself alone"
        )
    return causal_mask(length, device=device).triu(1 - window)

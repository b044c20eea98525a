"""Chapter 4: several attentions side by side, first one after the other, then all in one product."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.self_attention import attention_weights, scaled_dot_product_attention


def split_heads(
    x: Float[Tensor, "batch length d_model"],
    num_heads: int,
) -> Float[Tensor, "batch head length d_head"]:
    """Give each head its own slice of every token's features.

    Args:
        x: one vector a token.
        num_heads: number of heads; must divide `d_model`.

    Returns:
        Head h holds features h * d_head to (h + 1) * d_head - 1 of every token, where d_head = d_model / num_heads.

    Raises:
        ValueError: if `num_heads` does not divide `d_model`.

    Source: Vaswani et al. (2017), section 3.2.2.

    >>> x = torch.arange(12).float().view(1, 2, 6)  # two tokens, six features
    >>> split_heads(x, 2)[0, 1]  # the second head: the last three features of both tokens
    tensor([[ 3.,  4.,  5.],
            [ 9., 10., 11.]])
    """
    _require_whole_heads(x.size(-1), num_heads)
    return rearrange(x, "batch length (head d_head) -> batch head length d_head", head=num_heads)


def merge_heads(
    x: Float[Tensor, "batch head length d_head"],
) -> Float[Tensor, "batch length d_model"]:
    """Put the heads' results side by side again, token by token: the inverse of `split_heads`.

    Args:
        x: what each head found for each token.

    Returns:
        One vector a token, of width head * d_head, head 0 first.

    Source: Vaswani et al. (2017), section 3.2.2 (Concat).

    >>> x = torch.randn(2, 5, 12)
    >>> torch.equal(merge_heads(split_heads(x, 3)), x)
    True
    """
    return rearrange(x, "batch head length d_head -> batch length (head d_head)")


class MultiHeadAttention(nn.Module):
    """Project, attend in every head at once, concatenate, project.

    Source: Vaswani et al. (2017), section 3.2.2.

    >>> attention = MultiHeadAttention(d_model=12, num_heads=3)
    >>> x = torch.randn(2, 5, 12)
    >>> attention(x, x, x).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        """Create the four projections.

        Args:
            d_model: width of queries, keys, values and output.
            num_heads: number of heads; must divide `d_model`.
            dropout: probability in [0, 1) with which an attention weight is set to 0 in training.

        Raises:
            ValueError: if `num_heads` does not divide `d_model`.
        """
        super().__init__()
        _require_whole_heads(d_model, num_heads)
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch key d_model"],
        value: Float[Tensor, "batch key d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend, by the framework's fused kernel: fast, and the weights never exist as a whole.

        Args:
            query: the tokens that ask.
            key: the tokens that are compared with; the same tensor as `query` in self-attention.
            value: what is fetched from each key's token.
            mask: True where a query may attend; broadcasts to (batch, head, query, key).

        Returns:
            One vector a query. A query that may attend to nothing gets `out_proj`'s bias alone.
        """
        queries, keys, values = self._project(query, key, value)
        dropout = self.dropout.p if self.training else 0.0
        output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
        return self.out_proj(merge_heads(output))

    def with_weights(
        self,
        query: Float[Tensor, "batch query d_model"],
        key: Float[Tensor, "batch key d_model"],
        value: Float[Tensor, "batch key d_model"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "batch query d_model"], Float[Tensor, "batch head query key"]]:
        """Attend as `forward` does, step by step, and show the weights (before dropout: each row sums to 1)."""
        queries, keys, values = self._project(query, key, value)
        weights = attention_weights(queries, keys, mask)
        return self.out_proj(merge_heads(self.dropout(weights) @ values)), weights

    def _project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return (
            split_heads(self.q_proj(query), self.num_heads),
            split_heads(self.k_proj(key), self.num_heads),
            split_heads(self.v_proj(value), self.num_heads),
        )


def multi_head_attention_loop(
    attention: MultiHeadAttention,
    query: Float[Tensor, "batch query d_model"],
    key: Float[Tensor, "batch key d_model"],
    value: Float[Tensor, "batch key d_model"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "batch query d_model"]:
    """Do what `attention` does, one head after the other: the slow version, to be read first.

    Args:
        attention: the layer whose parameters are used; its dropout is not.
        query: the tokens that ask.
        key: the tokens that are compared with.
        value: what is fetched from each key's token.
        mask: True where a query may attend, the same for every head; broadcasts to (batch, 1, query, key).

    Returns:
        What `attention(query, key, value, mask)` returns.
    """
    d_head = query.size(-1) // attention.num_heads
    every_head_alike = mask[:, 0] if mask is not None and mask.dim() == 4 else mask
    outputs = []
    for head in range(attention.num_heads):
        rows = slice(head * d_head, (head + 1) * d_head)
        output, _ = scaled_dot_product_attention(
            F.linear(query, attention.q_proj.weight[rows], attention.q_proj.bias[rows]),
            F.linear(key, attention.k_proj.weight[rows], attention.k_proj.bias[rows]),
            F.linear(value, attention.v_proj.weight[rows], attention.v_proj.bias[rows]),
            every_head_alike,
        )
        outputs.append(output)
    return attention.out_proj(torch.cat(outputs, dim=-1))


def _require_whole_heads(d_model: int, num_heads: int) -> None:
    if num_heads < 1 or d_model % num_heads:
        raise ValueError(
            f"num_heads must divide d_model, but {d_model} features cannot be shared out equally among "
            f"{num_heads} heads; choose a divisor of {d_model}"
        )

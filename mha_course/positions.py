"""Chapter 6: telling attention, which sees a set, in which order its tokens came."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mha_course.cache import KVCache
from mha_course.multi_head import MultiHeadAttention
from mha_course.self_attention import attention_weights


def sinusoidal_positions(
    length: int, d_model: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "position d_model"]:
    """Give each position a pattern of sines and cosines, from fast to slow.

    Args:
        length: number of positions, counted from 0.
        d_model: width of the pattern; an odd one ends on a sine.
        dtype: what the values are rounded to, once, at the end.

    Returns:
        Values in [-1, 1]; columns 2i and 2i + 1 are the sine and cosine of position / 10000^(2i / d_model).

    Source: Vaswani et al. (2017), section 3.5.

    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    # In float64: in float32 the angle at position 5000 is already off by up to 3e-4.
    position = torch.arange(length, dtype=torch.float64)[:, None]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position * torch.exp(-math.log(10000.0) * pair / d_model)
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle[:, : d_model // 2].cos()
    return table.to(dtype)


def add_positions(x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length d_model"]:
    """Add its position's pattern to each token.

    Source: Vaswani et al. (2017), section 3.5.

    >>> add_positions(torch.zeros(1, 2, 2))
    tensor([[[0.0000, 1.0000],
             [0.8415, 0.5403]]])
    """
    return x + sinusoidal_positions(x.size(1), x.size(2)).to(x)


def positions_from_mask(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Count each sequence's positions from its first real token, wherever the padding stands.

    Args:
        mask: True on real tokens.

    Returns:
        0 for the first real token and for padding before it.

    >>> positions_from_mask(torch.tensor([[False, False, True, True]]))
    tensor([[0, 0, 0, 1]])
    """
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


class TokenAndPositionEmbedding(nn.Module):
    """A learned vector for each token plus a learned one for each position, as in BERT and GPT-2.

    It knows the positions it has a row for, and no others; rows that training never reached hold noise.

    Source: Gehring et al. (2017), "Convolutional Sequence to Sequence Learning", section 3.1.

    >>> TokenAndPositionEmbedding(vocab_size=10, max_length=5, d_model=4)(torch.tensor([[3, 1, 2]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        """Create both tables.

        Args:
            vocab_size: number of tokens.
            max_length: number of positions.
            d_model: width of every vector.
        """
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Look tokens and positions up and add the two.

        Args:
            ids: tokens, each below `vocab_size`.
            positions: where each token stands; None counts them from 0.

        Raises:
            ValueError: if a position is past the last row of the table.
        """
        positions = _counted(ids) if positions is None else positions
        rows = self.position.num_embeddings
        last = int(positions.max()) if positions.numel() else -1
        if last >= rows:
            raise ValueError(
                f"this table of learned positions has {rows} rows, "
                f"but position {last} is asked for; cut the text to {rows} tokens, "
                "or use positions that are computed, such as sinusoidal ones"
            )
        return self.token(ids) + self.position(positions)


class SinusoidalTokenEmbedding(nn.Module):
    """A learned vector for each token plus the fixed pattern of its position.

    The pattern goes on past `max_length`: nothing fails there, but a model that was never trained on such positions
    has not learned what they mean.

    Source: Vaswani et al. (2017), sections 3.4 and 3.5.

    >>> SinusoidalTokenEmbedding(vocab_size=10, max_length=5, d_model=4)(torch.tensor([[3, 1, 2]])).shape
    torch.Size([1, 3, 4])
    """

    table: Tensor

    def __init__(self, vocab_size: int, max_length: int, d_model: int) -> None:
        """Create the table of tokens and compute that of positions.

        Args:
            vocab_size: number of tokens.
            max_length: number of positions that are computed in advance.
            d_model: width of every vector.
        """
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        # A buffer moves with the module to another device or precision; not saved, since it can be computed.
        self.register_buffer("table", sinusoidal_positions(max_length, d_model), persistent=False)

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Look the tokens up and add their positions' patterns.

        Args:
            ids: tokens, each below `vocab_size`.
            positions: where each token stands; None counts them from 0.
        """
        positions = _counted(ids) if positions is None else positions
        needed = int(positions.max()) + 1 if positions.numel() else 0
        table = self.table
        if needed > table.size(0):
            table = sinusoidal_positions(needed, table.size(1)).to(table)
        return self.token(ids) + table[positions]


def _counted(ids: Tensor) -> Tensor:
    return torch.arange(ids.size(1), device=ids.device)[None]


def apply_rope(
    x: Float[Tensor, "batch head length d_head"],
    positions: Int[Tensor, "#batch length"] | None = None,
) -> Float[Tensor, "batch head length d_head"]:
    """Turn each pair of features by an angle that grows with the position (rotary position embedding).

    The product of a turned query and a turned key depends on their distance alone. Apply it to both, never to values.

    Args:
        x: queries or keys; features i and i + d_head / 2 are a pair.
        positions: where each row stands; None counts them from 0. Angles can be computed for any position.

    Returns:
        Vectors of the same lengths. Pair i of position p is turned by p / 10000^(2i / d_head).

    Raises:
        ValueError: if `d_head` is odd.

    Source: Su et al. (2021), "RoFormer", section 3.2; pairs half a width apart, as in the transformers library's Llama.

    >>> apply_rope(torch.tensor([1.0, 0.0, 1.0, 0.0]).view(1, 1, 2, 2))  # position 0 stays, position 1 turns by 1 radian
    tensor([[[[1.0000, 0.0000],
              [0.5403, 0.8415]]]])
    """
    if x.size(-1) % 2:
        raise ValueError(
            "rotary positions turn features in pairs, "
            f"but {x.size(-1)} features leave one over; "
            f"use an even d_head, such as {x.size(-1) + 1}"
        )
    half = x.size(-1) // 2
    if positions is None:
        positions = torch.arange(x.size(2), device=x.device)[None]
    # float64 as for the sinusoids, except where the device has none (Apple's GPUs).
    exact = torch.float32 if x.device.type == "mps" else torch.float64
    pair = torch.arange(half, dtype=exact, device=x.device)
    frequency = torch.exp(-math.log(10000.0) * pair / half)
    angle = positions[:, None, :, None].to(exact) * frequency
    cos, sin = angle.cos().to(x), angle.sin().to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class RotaryAttention(MultiHeadAttention):
    """Multi-head attention whose queries and keys are turned by their positions; for self-attention alone.

    Source: Su et al. (2021), "RoFormer".

    >>> attention, x = RotaryAttention(d_model=12, num_heads=3), torch.randn(2, 5, 12)
    >>> attention(x, x, x).shape
    torch.Size([2, 5, 12])
    """

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        _require_one_text(query, key)
        # Keys are cached before they are turned: padding on the left shifts all by the same, which changes no distance.
        queries, keys, values = super()._project(query, key, value, cache)
        places = torch.arange(keys.size(2), device=keys.device)[None]
        return apply_rope(queries, places[:, -queries.size(2) :]), apply_rope(keys, places), values


def _require_one_text(query: Tensor, key: Tensor) -> None:
    if query is not key:
        raise ValueError(
            "distances are counted within one text, but query and key are two tensors; for cross-attention use "
            "MultiHeadAttention, in a decoder as its cross_attention, and for one text pass the same tensor as both"
        )


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Float[Tensor, " head"]:
    """Give each head its own slope, by which a key's score falls with its distance.

    Args:
        num_heads: number of heads. For a power of two, head i (from 0) gets 2^(-8(i + 1) / num_heads); for another
            number, the slopes of the next lower power, and every second one of the next higher.
        device: where the slopes are made.

    Source: Press et al. (2022), "Train Short, Test Long", section 3; its code for other numbers of heads.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 * torch.arange(1, power + 1, device=device) / power)
    between = 2.0 ** (-8.0 * (torch.arange(num_heads - power, device=device) + 0.5) / power)
    return torch.cat([slopes, between])


def alibi_bias(
    num_heads: int, length: int, total: int | None = None, device: torch.device | str | None = None
) -> Float[Tensor, "head query key"]:
    """Give what ALiBi adds to the scores: minus the distance from query to key, times the head's slope.

    Args:
        num_heads: number of heads.
        length: number of queries.
        total: number of keys, among which the queries are the last; None: the same ones.
        device: where the bias is made.

    Returns:
        0 where a query meets its own key, negative elsewhere; any length can be computed.

    Source: Press et al. (2022), "Train Short, Test Long", section 3.

    >>> alibi_bias(1, 3)
    tensor([[[ 0.0000, -0.0039, -0.0078],
             [-0.0039,  0.0000, -0.0039],
             [-0.0078, -0.0039,  0.0000]]])
    """
    total = length if total is None else total
    places = torch.arange(total, device=device)
    distance = (places[total - length :, None] - places).abs()
    return alibi_slopes(num_heads, device)[:, None, None] * -distance


class AlibiAttention(MultiHeadAttention):
    """Multi-head attention in which nearer keys score higher, by a slope of each head's own; for self-attention alone.

    Source: Press et al. (2022), "Train Short, Test Long".

    >>> attention, x = AlibiAttention(d_model=12, num_heads=3), torch.randn(2, 5, 12)
    >>> attention(x, x, x).shape
    torch.Size([2, 5, 12])
    """

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        _require_one_text(query, key)
        return super()._project(query, key, value, cache)

    def _fused(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        bias = self._bias(queries, keys)
        return super()._fused(queries, keys, values, bias if mask is None else bias.masked_fill(~mask, -torch.inf))

    def _weights(self, queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        return attention_weights(queries, keys, mask, self._bias(queries, keys))

    def _bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        return alibi_bias(self.num_heads, queries.size(2), keys.size(2), queries.device).to(queries)[None]

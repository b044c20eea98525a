"""Chapter 7: the Transformer's encoder, layers of attention and feed-forward with residual paths around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course.cache import KVCache
from mha_course.multi_head import MultiHeadAttention

MakeAttention = Callable[[int, int, float], nn.Module]  # from d_model, num_heads and dropout


def layer_norm(
    x: Float[Tensor, "*axes d_model"],
    weight: Float[Tensor, " d_model"],
    bias: Float[Tensor, " d_model"],
    eps: float = 1e-5,
) -> Float[Tensor, "*axes d_model"]:
    """Bring each vector to mean 0 and variance 1, then let each feature have a scale and a shift of its own.

    Args:
        x: the vectors, each normalised on its own.
        weight: scale of each feature.
        bias: shift of each feature.
        eps: added to the variance, so that a vector of equal numbers is not divided by 0.

    Returns:
        Vectors of the same shape. The variance is the mean of the squares (no n - 1), as in every library.

    Source: Ba et al. (2016), "Layer Normalization", equation 4.

    >>> layer_norm(torch.tensor([1.0, 3.0]), torch.ones(2), torch.zeros(2))
    tensor([-1.0000,  1.0000])
    """
    # In half precision the square of 300 is too large to be written.
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = exact - exact.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return (centred / (variance + eps).sqrt()).to(x) * weight + bias


def feed_forward(d_model: int, d_ff: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Build the two dense layers that transform each token on its own, the second back to `d_model`.

    Source: Vaswani et al. (2017), section 3.3, equation 2.
    """
    return nn.Sequential(nn.Linear(d_model, d_ff), activation(), nn.Linear(d_ff, d_model))


def attend(attention: nn.Module, x: Tensor, memory: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
    """Let tokens attend to others, or to one another; an attention that knows of no cache is not given one."""
    return attention(x, memory, memory, mask) if cache is None else attention(x, memory, memory, mask, cache)


class EncoderLayer(nn.Module):
    """Attention, then feed-forward; after each the input is added and the sum normalised ("Add & Norm").

    Source: Vaswani et al. (2017), section 3.1.

    >>> layer = EncoderLayer(d_model=12, num_heads=3, d_ff=48)
    >>> layer(torch.randn(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        *,
        activation: type[nn.Module] = nn.ReLU,
        norm_eps: float = 1e-5,
        attention: MakeAttention = MultiHeadAttention,
    ) -> None:
        """Create the sublayers.

        Args:
            d_model: width of every token.
            num_heads: number of heads; must divide `d_model`.
            d_ff: width between the two dense layers.
            dropout: probability in [0, 1), on the attention weights and on what each sublayer adds.
            activation: what stands between the two dense layers.
            norm_eps: added to the variance before the root.
            attention: makes the attention from (d_model, num_heads, dropout); your own class fits here.

        Raises:
            ValueError: if `num_heads` does not divide `d_model`.
        """
        super().__init__()
        self.self_attn = attention(d_model, num_heads, dropout)
        self.ffn = feed_forward(d_model, d_ff, activation)
        self.norm1 = nn.LayerNorm(d_model, eps=norm_eps)
        self.norm2 = nn.LayerNorm(d_model, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token.

        Args:
            x: one vector a token.
            mask: True where a token may attend; broadcasts to (batch, head, query, key).
            cache: what the attention keeps of earlier tokens, which `x` then comes after.
        """
        x = self.norm1(x + self.dropout(attend(self.self_attn, x, x, mask, cache)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class PreNormEncoderLayer(EncoderLayer):
    """The same parts, each sublayer's input normalised instead: the residual path itself stays untouched.

    Source: Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture".
    """

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token, as `EncoderLayer.forward` does."""
        normed = self.norm1(x)
        x = x + self.dropout(attend(self.self_attn, normed, normed, mask, cache))
        return x + self.dropout(self.ffn(self.norm2(x)))


class Encoder(nn.Module):
    """A stack of layers. Pre-norm needs one norm more at its end, post-norm does not.

    Source: Vaswani et al. (2017), section 3.1; Xiong et al. (2020) for pre-norm.

    >>> encoder = Encoder(d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> encoder(torch.randn(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
        *,
        norm_first: bool = True,
        activation: type[nn.Module] = nn.ReLU,
        norm_eps: float = 1e-5,
        attention: MakeAttention = MultiHeadAttention,
    ) -> None:
        """Create `num_layers` layers; norm_first: pre-norm instead of post-norm; the rest as in `EncoderLayer`."""
        super().__init__()
        layer = PreNormEncoderLayer if norm_first else EncoderLayer
        self.layers = nn.ModuleList(
            layer(d_model, num_heads, d_ff, dropout, activation=activation, norm_eps=norm_eps, attention=attention)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model, eps=norm_eps) if norm_first else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch length d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        caches: Sequence[KVCache] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token.

        Args:
            x: one vector a token.
            mask: True where a token may attend; broadcasts to (batch, head, query, key).
            caches: what each layer keeps of earlier tokens, which `x` then comes after.
        """
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, None if caches is None else caches[i])
        return self.norm(x)

"""Chapter 7: the Transformer's encoder, layers of attention and feed-forward with residual paths around them."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course.multi_head import MultiHeadAttention


def feed_forward(d_model: int, d_ff: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Build the two dense layers that transform each token on its own, the second back to `d_model`.

    Source: Vaswani et al. (2017), section 3.3, equation 2.
    """
    return nn.Sequential(nn.Linear(d_model, d_ff), activation(), nn.Linear(d_ff, d_model))


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
        attention: Callable[[int, int, float], nn.Module] = MultiHeadAttention,
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
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token; mask: True where a token may attend, broadcasts to (batch, head, query, key)."""
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class PreNormEncoderLayer(EncoderLayer):
    """The same parts, each sublayer's input normalised instead: the residual path itself stays untouched.

    Source: Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture".
    """

    def forward(
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token; mask: True where a token may attend, broadcasts to (batch, head, query, key)."""
        normed = self.norm1(x)
        x = x + self.dropout(self.self_attn(normed, normed, normed, mask))
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
        attention: Callable[[int, int, float], nn.Module] = MultiHeadAttention,
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
        self, x: Float[Tensor, "batch length d_model"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "batch length d_model"]:
        """Transform every token; mask: True where a token may attend, broadcasts to (batch, head, query, key)."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)

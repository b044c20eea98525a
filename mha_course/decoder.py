"""Chapter 8: the Transformer's decoder, which attends to what it wrote so far and to the encoder's memory."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from mha_course.cache import KVCache, ModelCache
from mha_course.encoder import MakeAttention, attend, feed_forward
from mha_course.multi_head import MultiHeadAttention


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward, each followed by "Add & Norm".

    Source: Vaswani et al. (2017), section 3.1.

    >>> layer = DecoderLayer(d_model=12, num_heads=3, d_ff=48)
    >>> layer(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
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
        cross_attention: MakeAttention | None = None,
    ) -> None:
        """Create the sublayers.

        Args:
            d_model: width of every token, of the memory too.
            num_heads: number of heads; must divide `d_model`.
            d_ff: width between the two dense layers.
            dropout: probability in [0, 1), on the attention weights and on what each sublayer adds.
            activation: what stands between the two dense layers.
            norm_eps: added to the variance before the root.
            attention: makes the self-attention from (d_model, num_heads, dropout); your own class fits here.
            cross_attention: makes the cross-attention; None: as `attention`.

        Raises:
            ValueError: if `num_heads` does not divide `d_model`.
        """
        super().__init__()
        self.self_attn = attention(d_model, num_heads, dropout)
        self.cross_attn = (cross_attention or attention)(d_model, num_heads, dropout)
        self.ffn = feed_forward(d_model, d_ff, activation)
        self.norm1 = nn.LayerNorm(d_model, eps=norm_eps)
        self.norm2 = nn.LayerNorm(d_model, eps=norm_eps)
        self.norm3 = nn.LayerNorm(d_model, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: tuple[KVCache, KVCache] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Transform every token of the target.

        Args:
            x: one vector a token of the target.
            memory: what the encoder made of the source.
            self_mask: True where a target token may attend to a target token. None hides nothing, not even the future.
            memory_mask: True where a target token may attend to a source token.
            cache: what is kept of earlier target tokens, and of the memory.
        """
        own, kept = cache or (None, None)
        x = self.norm1(x + self.dropout(attend(self.self_attn, x, x, self_mask, own)))
        x = self.norm2(x + self.dropout(attend(self.cross_attn, x, memory, memory_mask, kept)))
        return self.norm3(x + self.dropout(self.ffn(x)))


class PreNormDecoderLayer(DecoderLayer):
    """The same parts, each sublayer's input normalised instead: the residual path itself stays untouched.

    Source: Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture".
    """

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: tuple[KVCache, KVCache] | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Transform every token of the target, as `DecoderLayer.forward` does."""
        own, kept = cache or (None, None)
        normed = self.norm1(x)
        x = x + self.dropout(attend(self.self_attn, normed, normed, self_mask, own))
        x = x + self.dropout(attend(self.cross_attn, self.norm2(x), memory, memory_mask, kept))
        return x + self.dropout(self.ffn(self.norm3(x)))


class Decoder(nn.Module):
    """A stack of layers. Pre-norm needs one norm more at its end, post-norm does not.

    Source: Vaswani et al. (2017), section 3.1; Xiong et al. (2020) for pre-norm.

    >>> decoder = Decoder(d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> decoder(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
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
        cross_attention: MakeAttention | None = None,
    ) -> None:
        """Create `num_layers` layers; norm_first: pre-norm instead of post-norm; the rest as in `DecoderLayer`."""
        super().__init__()
        layer = PreNormDecoderLayer if norm_first else DecoderLayer
        self.layers = nn.ModuleList(
            layer(
                d_model,
                num_heads,
                d_ff,
                dropout,
                activation=activation,
                norm_eps=norm_eps,
                attention=attention,
                cross_attention=cross_attention,
            )
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model, eps=norm_eps) if norm_first else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch target d_model"],
        memory: Float[Tensor, "batch source d_model"],
        self_mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        cache: ModelCache | None = None,
    ) -> Float[Tensor, "batch target d_model"]:
        """Transform every token of the target; the arguments are those of `DecoderLayer.forward`."""
        for i, layer in enumerate(self.layers):
            kept = None if cache is None else (cache.own[i], cache.memory[i])
            x = layer(x, memory, self_mask, memory_mask, kept)
        return self.norm(x)

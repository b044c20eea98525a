"""Chapter 8: the whole Transformer, and the half of it that writes: encoder and decoder, or a decoder alone."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mha_course.cache import ModelCache
from mha_course.decoder import Decoder
from mha_course.encoder import Encoder, MakeAttention
from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import SinusoidalTokenEmbedding, TokenAndPositionEmbedding, positions_from_mask
from mha_course.self_attention import causal_mask

EMBEDDINGS: dict[str, type[SinusoidalTokenEmbedding | TokenAndPositionEmbedding]] = {
    "sinusoidal": SinusoidalTokenEmbedding,
    "learned": TokenAndPositionEmbedding,
}


def _embedding(positions: str) -> type[SinusoidalTokenEmbedding | TokenAndPositionEmbedding]:
    if positions not in EMBEDDINGS:
        raise ValueError(
            f"positions are {' or '.join(EMBEDDINGS)}, but {positions!r} is asked for; rotary and ALiBi positions come "
            "with their attention, as attention=RotaryAttention"
        )
    return EMBEDDINGS[positions]


class Output(nn.Module):
    """Scores each token of the vocabulary: how well its row of a table fits what was computed.

    Source: Press and Wolf (2017), "Using the Output Embedding to Improve Language Models", for the shared table.
    """

    def __init__(self, token: nn.Embedding, *, tied: bool) -> None:
        """Create a table of its own or, if tied, share the embedding's."""
        super().__init__()
        vocab_size, d_model = token.weight.shape
        self.table = nn.Linear(d_model, vocab_size, bias=False)
        self.scale = 1.0
        if tied:
            # The embedding's rows have a length of about sqrt(d_model), and scores would start out as large. Vaswani
            # et al. (2017), section 3.4, have short rows and lengthen what goes in; this shortens what comes out.
            self.table.weight = token.weight
            self.scale = d_model**-0.5

    def forward(self, x: Float[Tensor, "batch length d_model"]) -> Float[Tensor, "batch length vocab"]:
        """Return a score (logit) for each token of the vocabulary."""
        return self.table(x) * self.scale


class Transformer(nn.Module):
    """Reads a source, writes a target: tokens in, scores of every possible next token out.

    Source: Vaswani et al. (2017), section 3.

    >>> model = Transformer(11, 13, max_length=20, d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> model(torch.tensor([[3, 1, 4, 1]]), torch.tensor([[5, 9, 2]])).shape
    torch.Size([1, 3, 13])
    """

    def __init__(
        self,
        source_vocab: int,
        target_vocab: int,
        max_length: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
        *,
        norm_first: bool = True,
        tied: bool = False,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
        pad: int | None = None,
        attention: MakeAttention = MultiHeadAttention,
        cross_attention: MakeAttention | None = None,
    ) -> None:
        """Create embeddings, `num_layers` layers of encoder and of decoder each, and the output layer.

        Args:
            source_vocab: number of different source tokens.
            target_vocab: number of different target tokens.
            max_length: positions of the embedding's table, see `mha_course.positions`.
            d_model: width of every token.
            num_heads: number of heads; must divide `d_model`.
            d_ff: width between the two dense layers of a feed-forward part.
            num_layers: layers of the encoder, and of the decoder.
            dropout: probability in [0, 1).
            norm_first: pre-norm instead of post-norm.
            tied: the output layer uses the table of target tokens instead of one of its own.
            positions: computed or learned ones.
            pad: the id of padding in the source, which is then hidden from attention; None: there is none.
            attention: makes the attention from (d_model, num_heads, dropout); your own class fits here.
            cross_attention: makes that from the target to the source; None: as `attention`. Rotary and ALiBi attention
                know distances within one text alone, so they need another one here.

        Raises:
            ValueError: if `num_heads` does not divide `d_model`, or there are no such positions.
        """
        super().__init__()
        embedding = _embedding(positions)
        sizes = (d_model, num_heads, d_ff, num_layers, dropout)
        self.pad = pad
        self.source = embedding(source_vocab, max_length, d_model)
        self.target = embedding(target_vocab, max_length, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(*sizes, norm_first=norm_first, attention=attention)
        self.decoder = Decoder(*sizes, norm_first=norm_first, attention=attention, cross_attention=cross_attention)
        self.output = Output(self.target.token, tied=tied)

    def forward(
        self, source: Int[Tensor, "batch source"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target target_vocab"]:
        """Score what comes after each token of the target, none of which sees a later one.

        Args:
            source: ids of the tokens to read, padded with `pad` on either side.
            target: ids of the tokens written so far. Padding behind them needs no mask: nothing real looks ahead.

        Returns:
            Scores (logits) of the token after each target token.
        """
        return self.decode(target, self.encode(source), self.source_mask(source))

    def source_mask(self, source: Int[Tensor, "batch source"]) -> Bool[Tensor, "batch 1 1 source"] | None:
        """Say which source tokens are real; None where none can be padding."""
        return None if self.pad is None else (source != self.pad)[:, None, None, :]

    def encode(self, source: Int[Tensor, "batch source"]) -> Float[Tensor, "batch source d_model"]:
        """Read the source: compute the memory that the decoder attends to."""
        places = None if self.pad is None else positions_from_mask(source != self.pad)
        return self.encoder(self.dropout(self.source(source, places)), self.source_mask(source))

    def decode(
        self,
        target: Int[Tensor, "batch new"],
        memory: Float[Tensor, "batch source d_model"],
        memory_mask: Bool[Tensor, "batch 1 1 source"] | None = None,
        cache: ModelCache | None = None,
    ) -> Float[Tensor, "batch new target_vocab"]:
        """Score what comes after each token of the target.

        Args:
            target: ids of the tokens written so far; with a cache, of those alone that it does not hold yet.
            memory: what `encode` returned; with a cache the same in every call.
            memory_mask: True on real source tokens.
            cache: made by `new_cache`; holds earlier tokens and gets the new ones.
        """
        new = target.size(1)
        total = new + (0 if cache is None else cache.length)
        places = torch.arange(total - new, total, device=target.device)[None]
        # A token that comes alone is the last one, and may see all.
        mask = None if new == 1 else causal_mask(new, total, target.device)
        embedded = self.dropout(self.target(target, places))
        return self.output(self.decoder(embedded, memory, mask, memory_mask, cache))

    def new_cache(self) -> ModelCache:
        """Make an empty cache for one batch of texts."""
        return ModelCache(len(self.decoder.layers))


class LanguageModel(nn.Module):
    """Goes on with a text: a decoder without cross-attention, which is an encoder under a causal mask.

    Source: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners" (GPT-2).

    >>> model = LanguageModel(11, max_length=20, d_model=12, num_heads=3, d_ff=48, num_layers=2)
    >>> model(torch.tensor([[3, 1, 4, 1]])).shape
    torch.Size([1, 4, 11])
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
        *,
        norm_first: bool = True,
        tied: bool = True,
        positions: Literal["sinusoidal", "learned"] = "learned",
        attention: MakeAttention = MultiHeadAttention,
    ) -> None:
        """Create the embedding, the layers and the output layer; the arguments are those of `Transformer`."""
        super().__init__()
        self.embedding = _embedding(positions)(vocab_size, max_length, d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(
            d_model, num_heads, d_ff, num_layers, dropout, norm_first=norm_first, attention=attention
        )
        self.output = Output(self.embedding.token, tied=tied)

    def forward(
        self,
        ids: Int[Tensor, "batch new"],
        mask: Bool[Tensor, "batch total"] | None = None,
        cache: ModelCache | None = None,
    ) -> Float[Tensor, "batch new vocab_size"]:
        """Score what comes after each token, none of which sees a later one.

        Args:
            ids: the text so far; with a cache, those tokens alone that it does not hold yet.
            mask: True on real tokens of the whole text, those in the cache included; None: all are real. Positions are
                counted from the first real token. Padding may stand on either side, but on the left where a text goes
                on in a cache: rotary and ALiBi attention count columns.
            cache: made by `new_cache`; holds earlier tokens and gets the new ones.

        Returns:
            Scores (logits) of the token after each token.

        Raises:
            ValueError: if learned positions end before the text does, or the mask does not cover the whole text.
        """
        new = ids.size(1)
        total = new + (0 if cache is None else cache.length)
        allowed = None if new == 1 else causal_mask(new, total, ids.device)  # the last token may see all
        if mask is None:
            places = torch.arange(total - new, total, device=ids.device)[None]
        else:
            if mask.size(1) != total:
                raise ValueError(
                    f"the mask must cover all {total} tokens, the {total - new} in the cache included, but it covers "
                    f"{mask.size(1)}; join the new tokens' mask to the one before"
                )
            places = positions_from_mask(mask)[:, -new:]
            real = mask[:, None, None, :]
            allowed = real if allowed is None else allowed & real
        hidden = self.dropout(self.embedding(ids, places))
        return self.output(self.encoder(hidden, allowed, None if cache is None else cache.own))

    def new_cache(self) -> ModelCache:
        """Make an empty cache for one batch of texts."""
        return ModelCache(len(self.encoder.layers))

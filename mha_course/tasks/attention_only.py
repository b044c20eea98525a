"""Chapter 8: a decoder of attention alone, small enough to find in it the heads that do the work."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.loop import Recipe, train
from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import TokenAndPositionEmbedding
from mha_course.self_attention import causal_mask
from mha_course.tasks.repetition import Repetition, repeated


class AttentionOnly(nn.Module):
    """A language model without feed-forward parts: whatever it can do, its heads do.

    Source: Elhage et al. (2021), "A Mathematical Framework for Transformer Circuits".

    >>> AttentionOnly(11, max_length=7, d_model=12, num_heads=3, num_layers=2)(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 11])
    """

    def __init__(self, vocab_size: int, max_length: int, d_model: int, num_heads: int, num_layers: int) -> None:
        """Create learned positions, `num_layers` layers of pre-norm attention with residual paths, and the output.

        Args:
            vocab_size: number of different tokens.
            max_length: number of positions.
            d_model: width of every token.
            num_heads: heads of a layer; must divide `d_model`.
            num_layers: layers.
        """
        super().__init__()
        self.embedding = TokenAndPositionEmbedding(vocab_size, max_length, d_model)
        self.layers = nn.ModuleList(MultiHeadAttention(d_model, num_heads) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers + 1))
        self.output = nn.Linear(d_model, vocab_size, bias=False)

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
    ) -> Float[Tensor, "batch length vocab_size"]:
        """Score what comes after each token, none of which sees a later one."""
        x = self.embedding(ids)
        mask = causal_mask(ids.size(1), device=ids.device)
        # There is one norm more than there are layers: the output's.
        for norm, attention in zip(self.norms, self.layers, strict=False):
            normed = norm(x)
            x = x + attention(normed, normed, normed, mask)
        return self.output(self.norms[-1](x))


class Induction:
    """A model of attention alone and the task it is trained on: random tokens, the last of which come a second time.

    >>> induction = Induction(num_layers=2, steps=1)
    >>> len(induction.train())
    1
    """

    def __init__(
        self, num_layers: int, num_heads: int = 4, *, length: int = 10, vocab_size: int = 30, steps: int = 200
    ) -> None:
        """Build the model.

        Args:
            num_layers: layers.
            num_heads: heads of a layer; must divide 64, the width of every token.
            length: the largest number of tokens that are repeated.
            vocab_size: number of different tokens.
            steps: updates of the training.
        """
        self.length, self.vocab_size, self.steps = length, vocab_size, steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = AttentionOnly(vocab_size, 2 * length, d_model=64, num_heads=num_heads, num_layers=num_layers)

    def batch(self, step: int, size: int = 64, *, seed: int = 0) -> Repetition:
        """Draw sequences: those of training have the seed 0, those of any other seed are new to the model."""
        return repeated(seed, step, size, self.length, self.vocab_size)

    def train(self) -> list[float]:
        """Train on what can be predicted; return the loss of each step, in nats per token."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.01)
        history = train(
            self.model,
            optimizer,
            lambda step, _index: self._tensors(self.batch(step)),
            _loss,
            Recipe(steps=self.steps, clip_norm=1.0, save_every=self.steps),
            progress=False,
        )
        self.model.eval()
        return [entry.loss for entry in history]

    @torch.no_grad()
    def right(self, task: Repetition) -> float:
        """Say which share of the tokens that can be predicted is predicted; guessing gets 1 / vocab_size."""
        best = self.model(task.inputs).argmax(dim=-1)
        return float((best == task.labels)[task.predictable].float().mean())

    @staticmethod
    def _tensors(task: Repetition) -> tuple[Tensor, Tensor, Tensor]:
        return task.inputs, task.labels, task.predictable


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs, labels, predictable = batch
    logits = model(inputs)[predictable]
    return F.cross_entropy(logits, labels[predictable], reduction="sum"), predictable.sum()

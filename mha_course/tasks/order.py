"""Chapter 6: two tasks that need order, and readers that differ in nothing but in how they are told of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_course.multi_head import MultiHeadAttention
from mha_course.positions import (
    AlibiAttention,
    RotaryAttention,
    SinusoidalTokenEmbedding,
    TokenAndPositionEmbedding,
)
from mha_course.self_attention import causal_mask

TOKENS = 12  # different ones
NONE = -100  # stands where no answer is wanted: cross-entropy skips it
BACK = 3  # how far `copy_back` looks
QUESTION = TOKENS - 1  # the last token of `came_last`, whose marks are the tokens 0 and 1
MAX_LENGTH = 128

# From the number of sequences and their length to tokens and the answers wanted.
Task = Callable[[int, int], tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]]


def copy_back(batch: int, length: int) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Ask at each place for the token that stood three places before: an exact offset.

    Both tasks draw from PyTorch's own random numbers, so `torch.manual_seed` makes them the same again.

    Args:
        batch: number of sequences.
        length: tokens in each.

    Returns:
        The tokens, and what is wanted at each place, NONE at the first three.

    >>> ids, wanted = copy_back(batch=1, length=5)
    >>> torch.equal(wanted[:, 3:], ids[:, :2])
    True
    """
    ids = torch.randint(TOKENS, (batch, length))
    wanted = ids.roll(BACK, dims=1)
    wanted[:, :BACK] = NONE
    return ids, wanted


def came_last(batch: int, length: int) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Ask at the end which of the tokens 0 and 1 came last: only before and after, at any distance.

    Args:
        batch: number of sequences.
        length: tokens in each, at least 3.

    Returns:
        The tokens, with one 0, one 1 and the question at the end, and the answer wanted there; NONE elsewhere.

    >>> ids, wanted = came_last(batch=1, length=3)
    >>> torch.equal(wanted[:, 2], ids[:, 1])
    True
    """
    ids = torch.randint(2, QUESTION, (batch, length))
    ids[:, -1] = QUESTION
    places = torch.rand(batch, length - 1).argsort(dim=1)[:, :2]  # two that differ
    ids.scatter_(1, places, torch.tensor([0, 1]).expand(batch, 2))
    wanted = torch.full_like(ids, NONE)
    wanted[:, -1] = (places[:, 1] > places[:, 0]).long()
    return ids, wanted


def tokens_only(vocab_size: int, max_length: int, d_model: int) -> nn.Embedding:
    """Make an embedding that says nothing of positions; `max_length` is there to be called as the others are."""
    return nn.Embedding(vocab_size, d_model)


MakeEmbedding = Callable[[int, int, int], nn.Module]  # from vocab_size, max_length and d_model

# How a reader is told of the order: by its embedding, by its attention, or not at all.
SCHEMES: dict[str, tuple[MakeEmbedding, type[MultiHeadAttention]]] = {
    "none": (tokens_only, MultiHeadAttention),
    "sinusoidal": (SinusoidalTokenEmbedding, MultiHeadAttention),
    "learned": (TokenAndPositionEmbedding, MultiHeadAttention),
    "rotary": (tokens_only, RotaryAttention),
    "ALiBi": (tokens_only, AlibiAttention),
}


class Reader(nn.Module):
    """The smallest model that can be asked: an embedding, one causal attention layer with 4 heads, one linear layer.

    >>> Reader(*SCHEMES["rotary"])(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 12])
    """

    def __init__(
        self,
        embedding: MakeEmbedding,
        attention: type[MultiHeadAttention],
    ) -> None:
        """Create the three parts, 32 wide.

        Args:
            embedding: makes it, from the number of tokens, the number of positions and the width.
            attention: makes the layer, from the width and the number of heads.
        """
        super().__init__()
        self.embedding = embedding(TOKENS, MAX_LENGTH, 32)
        self.attention = attention(32, 4)
        self.answer = nn.Linear(32, TOKENS)

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
        *positions: Int[Tensor, "#batch length"],
    ) -> Float[Tensor, "batch length token"]:
        """Score each token as the answer at each place.

        Args:
            ids: the text.
            positions: where each token stands, for an embedding that takes them; none counts from 0.
        """
        x = self.embedding(ids, *positions)
        x = self.attention(x, x, x, causal_mask(ids.size(1)))
        return self.answer(x)


def train(
    model: nn.Module,
    task: Task,
    steps: int = 400,
    length: int = 16,
    positions: Callable[[], Int[Tensor, "1 length"]] | None = None,
) -> list[float]:
    """Train on new texts of one length, 32 in a step.

    Args:
        model: is changed.
        task: draws the texts.
        steps: updates.
        length: tokens of each text.
        positions: draws where the texts of a step stand; None: all begin at 0.

    Returns:
        The loss of each step, in nats an answer.

    >>> len(train(Reader(*SCHEMES["none"]), came_last, steps=2))
    2
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for _ in range(steps):
        ids, wanted = task(32, length)
        logits = model(ids) if positions is None else model(ids, positions())
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=NONE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, length: int, batch: int = 300) -> float:
    """Say which share of the answers is right, on new texts of any length.

    Args:
        model: what is asked.
        task: draws the texts.
        length: tokens of each.
        batch: number of texts.
    """
    ids, wanted = task(batch, length)
    asked = wanted != NONE
    answers = int(wanted.max()) + 1  # `came_last` has only two
    found = model(ids)[asked][:, :answers].argmax(dim=-1)
    return (found == wanted[asked]).float().mean().item()


def marked(distance: int, length: int, batch: int) -> Int[Tensor, "2 batch length"]:
    """Draw texts of `came_last` whose later mark stands at a distance from the question, the earlier one 4 before it.

    Args:
        distance: places from the later mark to the question, from 1 to `length` - 5.
        length: tokens of each text.
        batch: number of texts with each answer.

    Returns:
        The texts whose answer is 0, and those whose answer is 1.

    >>> marked(distance=1, length=6, batch=1)[:, 0, [0, 4, 5]]
    tensor([[ 1,  0, 11],
            [ 0,  1, 11]])
    """
    ids = torch.randint(2, QUESTION, (2, batch, length))
    ids[..., -1] = QUESTION
    for later in (0, 1):
        ids[later, :, -1 - distance] = later
        ids[later, :, -5 - distance] = 1 - later
    return ids


@torch.no_grad()
def right_at(model: nn.Module, distance: int, length: int = 128, batch: int = 32) -> float:
    """Say which share of the answers in `came_last` is right, by how long ago the later mark was.

    Args:
        model: what is asked.
        distance: places from the later mark to the question, from 1 to `length` - 5.
        length: tokens of each text.
        batch: number of texts with each answer.
    """
    answers = model(marked(distance, length, batch).flatten(0, 1))[:, -1, :2].argmax(dim=-1).view(2, batch)
    return (answers == torch.tensor([[0], [1]])).float().mean().item()


@torch.no_grad()
def weight_on_marks(model: Reader, distance: int, length: int = 128, batch: int = 32) -> float:
    """Say how much weight the question gives to both marks of `came_last`, in the head that gives them most.

    Args:
        model: what is asked.
        distance: places from the later mark to the question, from 1 to `length` - 5.
        length: tokens of each text.
        batch: number of texts with each answer.

    Returns:
        A share of the weight, from 0 to 1.
    """
    x = model.embedding(marked(distance, length, batch).flatten(0, 1))
    _, weights = model.attention.with_weights(x, x, x, causal_mask(length))
    return weights[:, :, -1, [-1 - distance, -5 - distance]].sum(dim=-1).mean(dim=0).max().item()

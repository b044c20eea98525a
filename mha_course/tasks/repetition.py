"""Random tokens that come a second time: what an induction head can predict, and nothing else can."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mha_course.tasks import generator_at


@dataclass(frozen=True)
class Repetition:
    """Sequences whose end repeats what came just before it.

    Attributes:
        inputs: random tokens, none twice but in the repetition.
        labels: the token that follows each one of `inputs`.
        predictable: True where the token to predict from has been seen before, and so has the one that follows.
        periods: how far back that was, so that an induction head at position i attends to i - period + 1.
    """

    inputs: Int[Tensor, "batch position"]
    labels: Int[Tensor, "batch position"]
    predictable: Bool[Tensor, "batch position"]
    periods: Int[Tensor, " batch"]


def repeated(
    seed: int, step: int, batch: int, length: int, vocab_size: int, *, shortest: int | None = None
) -> Repetition:
    """Draw sequences of 2 * length tokens of which the last ones repeat those before.

    Args:
        seed: at least 0; tells one training from another.
        step: at least 0; tells one batch from another.
        batch: number of sequences.
        length: the largest number of tokens that are repeated; at least 2.
        vocab_size: tokens are drawn from 0 to vocab_size - 1.
        shortest: each sequence repeats from `shortest` to `length` tokens, drawn evenly, at its end; what comes before
            is not repeated. The default is half of `length`; with `length` the second half is the first again, but then
            a single layer learns to look back by that one distance and needs no induction.

    Raises:
        ValueError: if `shortest` is not from 2 to `length`, or there are too few tokens to draw without repeats.

    Source: Olsson et al. (2022), "In-context learning and induction heads" (repeated random tokens).

    >>> task = repeated(seed=0, step=0, batch=1, length=4, vocab_size=11, shortest=4)
    >>> torch.equal(task.inputs[:, :3], task.inputs[:, 4:])
    True
    >>> task.predictable
    tensor([[False, False, False, False,  True,  True,  True]])
    """
    shortest = max(2, length // 2) if shortest is None else shortest
    if not 2 <= shortest <= length:
        raise ValueError(
            f"from 2 to length = {length} tokens can be repeated, but shortest is {shortest}; choose one of these"
        )
    distinct = 2 * length - shortest
    if vocab_size < distinct:
        raise ValueError(
            f"{distinct} different tokens are needed, but vocab_size is {vocab_size}; "
            "choose a larger vocabulary or a smaller length"
        )
    generator = generator_at(seed, step)
    shuffled = torch.rand(batch, vocab_size, generator=generator).argsort(dim=1)
    periods = torch.randint(shortest, length + 1, (batch,), generator=generator)
    position = torch.arange(2 * length)
    again = position >= 2 * length - periods[:, None]
    tokens = shuffled.gather(1, torch.where(again, position - periods[:, None], position))
    return Repetition(inputs=tokens[:, :-1], labels=tokens[:, 1:], predictable=again[:, :-1], periods=periods)

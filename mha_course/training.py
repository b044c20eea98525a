"""What a Transformer is trained with: targets shifted by one, losses that skip padding, and a learning rate that warms up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def shift_targets(tokens: Int[Tensor, "batch length"], begin: int) -> Int[Tensor, "batch length"]:
    """Make the decoder's input of what it shall write, so that each position sees only what came before it.

    Args:
        tokens: the target sentences as token numbers.
        begin: number of the token that stands before the first one.

    Returns:
        `begin`, then all tokens but the last.

    Source: Vaswani et al. (2017), section 3.1 ("output embeddings are offset by one position").

    >>> shift_targets(torch.tensor([[7, 8, 9]]), begin=1)
    tensor([[1, 7, 8]])
    """
    return F.pad(tokens, (1, 0), value=begin)[:, :-1]


def cross_entropies(
    logits: Float[Tensor, "batch length vocabulary"],
    labels: Int[Tensor, "batch length"],
    pad: int | None,
    smoothing: float = 0.0,
) -> Float[Tensor, " real"]:
    """Say how surprised the model is by each real label.

    Args:
        logits: one score a word of the vocabulary, at each position.
        labels: the right word at each position, or `pad`.
        pad: what stands where there is no word; None where that is nowhere.
        smoothing: share of the probability in [0, 1] that is spread evenly over the vocabulary.

    Returns:
        Cross-entropy in nats, one a real label, sentence after sentence; at least in float32.

    Raises:
        ValueError: if `smoothing` is not in [0, 1], or a label is neither `pad` nor the number of a word.

    Source: Szegedy et al. (2016), "Rethinking the Inception Architecture for Computer Vision", section 7.

    >>> cross_entropies(torch.zeros(1, 3, 4), torch.tensor([[2, 3, 0]]), pad=0)  # ln 4, twice
    tensor([1.3863, 1.3863])
    """
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(
            f"smoothing must be a share in [0, 1], but it is {smoothing}; 0.1 is usual, and 0 leaves the labels as they are"
        )
    real = torch.ones_like(labels, dtype=torch.bool) if pad is None else labels != pad
    strange = labels[real & ((labels < 0) | (labels >= logits.size(-1)))]
    if strange.numel():
        raise ValueError(
            f"a label is the number of a word, from 0 to {logits.size(-1) - 1}, but one is {int(strange[0])}; "
            "what stands where no word is must be given as pad"
        )
    # Padding is left out before the softmax, not multiplied by 0 after it: a NaN there could not be multiplied away.
    log_probabilities = _at_least_float32(logits[real]).log_softmax(dim=-1)
    losses = F.nll_loss(log_probabilities, labels[real], reduction="none")
    if smoothing == 0.0:  # 0 times the infinite surprise at a word that was ruled out is NaN
        return losses
    return (1.0 - smoothing) * losses - smoothing * log_probabilities.mean(dim=-1)


def next_token_loss(
    logits: Float[Tensor, "batch length vocabulary"],
    tokens: Int[Tensor, "batch length"],
    pad: int | None = None,
) -> Float[Tensor, ""]:
    """Measure a language model: what it says at each position is compared with the token after it.

    Args:
        logits: one score a word of the vocabulary, at each position of `tokens`.
        tokens: what the model has read. Its first token is predicted by nothing, its last predicts nothing.
        pad: number of the token that fills up the shorter sentences; None where there is none.

    Returns:
        Mean cross-entropy in nats over all predicted tokens but padding; 0 if there is none.

    >>> next_token_loss(torch.zeros(1, 3, 4), torch.tensor([[1, 2, 3]]))
    tensor(1.3863)
    """
    return accumulated_loss([cross_entropies(logits[:, :-1], tokens[:, 1:], pad)])


def seq2seq_loss(
    logits: Float[Tensor, "batch length vocabulary"],
    labels: Int[Tensor, "batch length"],
    pad: int,
) -> Float[Tensor, ""]:
    """Measure a decoder whose input was shifted already, so that labels stand where they are predicted.

    Args:
        logits: one score a word of the vocabulary, at each position.
        labels: the right word at each position, or `pad`.
        pad: what stands where there is no word.

    Returns:
        Mean cross-entropy in nats over the real labels; 0 if there is none.

    >>> seq2seq_loss(torch.zeros(1, 3, 4), torch.tensor([[2, 3, 0]]), pad=0)
    tensor(1.3863)
    """
    return accumulated_loss([cross_entropies(logits, labels, pad)])


def smoothed_loss(
    logits: Float[Tensor, "batch length vocabulary"],
    labels: Int[Tensor, "batch length"],
    pad: int,
    smoothing: float,
) -> Float[Tensor, ""]:
    """Measure as `seq2seq_loss` does, against labels that are a little unsure.

    Args:
        logits: one score a word of the vocabulary, at each position.
        labels: the right word at each position, or `pad`.
        pad: what stands where there is no word.
        smoothing: share of the probability in [0, 1] that is spread evenly over the vocabulary, the right word included.

    Returns:
        Mean cross-entropy in nats over the real labels; 0 if there is none.

    Raises:
        ValueError: if `smoothing` is not in [0, 1].

    Source: Vaswani et al. (2017), section 5.4.

    >>> logits = torch.tensor([[[0.0, 0.0, 9.0]]])
    >>> smoothed_loss(logits, torch.tensor([[2]]), pad=0, smoothing=0.1)  # to be this sure costs something now
    tensor(0.6002)
    """
    return accumulated_loss([cross_entropies(logits, labels, pad, smoothing)])


def accumulated_loss(token_losses: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, ""]:
    """Average over all tokens of several micro-batches, as if they had been one batch.

    Args:
        token_losses: for each micro-batch the losses of its real tokens, however many there are.

    Returns:
        The mean over tokens, not the mean of means; 0 if there is no token.

    >>> accumulated_loss([torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0])])  # the mean of means would be 3
    tensor(2.)
    """
    total = sum((_at_least_float32(losses).sum() for losses in token_losses), start=torch.zeros(()))
    return total / max(sum(losses.numel() for losses in token_losses), 1)


def warmup_lr(step: int, d_model: int, warmup: int) -> float:
    """Raise the learning rate in a straight line, then let it fall with the root of the step.

    Args:
        step: updates made so far, from 0.
        d_model: width of the model; a wider one gets a lower rate.
        warmup: number of updates that the rise takes.

    Returns:
        The learning rate of the next update: above 0, and at its highest, 1 / sqrt(d_model * warmup), where `step` is
        `warmup` - 1.

    Raises:
        ValueError: if `step` is below 0, or `d_model` or `warmup` below 1.

    Source: Vaswani et al. (2017), section 5.3, equation 3, whose step_num counts from 1.

    >>> [warmup_lr(step, d_model=16, warmup=4) for step in (0, 3, 15)]
    [0.03125, 0.125, 0.0625]
    """
    if step < 0 or d_model < 1 or warmup < 1:
        raise ValueError(
            "step counts from 0, d_model and warmup from 1, but they are "
            f"{step}, {d_model} and {warmup}; without a warmup use a constant rate"
        )
    number = step + 1
    return d_model**-0.5 * min(number**-0.5, number * warmup**-1.5)


def _at_least_float32(x: Tensor) -> Tensor:
    """Half precision has 3 digits and ends at 65504 (float16): too few for a sum over many tokens."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

"""Chapter 8, first half: wrong answers that are right almost everywhere; none may get full marks."""

from __future__ import annotations

import torch
from torch import nn

from mha_course.exercises.transformer.DecoderLayer import Steps
from mha_course.exercises.transformer.train_and_watch import loop
from mha_course.training import (
    accumulated_loss,
    next_token_loss,
    seq2seq_loss,
    shift_targets,
    smoothed_loss,
    warmup_lr,
)


def first_mode_kept(model, *rest):
    """Puts the model back into the mode in which it came."""
    came = model.training
    return loop(before=lambda model: None, after=lambda model: model.train(came))(model, *rest)


def switched_in_the_batch_after(model, optimizer, loss_of, batches, held_out, every):
    """Goes back to training where a batch's number says that a look came before it; with a look after each, none does."""
    losses = []
    model.train()
    for number, batch in enumerate(batches, start=1):
        if number % every == 1:
            model.train()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if number % every == 0:
            model.eval()
            losses.append(loss_of(model, held_out).item())
    return losses


def scores_shifted_in_place(logits, labels, pad):
    with torch.no_grad():
        logits -= logits.amax(-1, keepdim=True)
    return seq2seq_loss(logits, labels, pad)


class KeepsItsMask(Steps):
    kept = None

    def own(self, x, mask):
        self.kept = mask if self.kept is None else self.kept
        return super().own(x, self.kept if self.kept is not None and self.kept.size(-1) == x.size(1) else mask)


class DetachedInTraining(Steps):
    def other(self, x, memory, mask):
        return super().other(x, memory.detach() if self.training else memory, mask)


class SquareMaskForBoth(Steps):
    def second(self, x, memory, self_mask, memory_mask):
        fits = self_mask is not None and memory_mask is None and memory.size(1) == self_mask.size(-1)
        return super().second(x, memory, self_mask, self_mask if fits else memory_mask)


class OneMaskForAll(Steps):
    def other(self, x, memory, mask):
        return super().other(x, memory, mask if mask is None else mask[:1])


class LargeEpsilon(Steps):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__(d_model, num_heads, d_ff, dropout, norm_eps=1e-3)


class OneTokenAlone(Steps):
    def first(self, x, self_mask, memory_mask):
        return self.norm1(x) if x.size(1) == 1 else super().first(x, self_mask, memory_mask)


class DropoutTwice(Steps):
    def third(self, x):
        return self.norm3(x + nn.functional.dropout(self.ffn(x), self.dropout.p, self.dropout.p > 0))


SUBTLE = {
    "shift_targets": [
        lambda tokens, begin: tokens if tokens.size(1) == 1 else shift_targets(tokens, begin),
        lambda tokens, begin: torch.where(tokens == 0, 0, shift_targets(tokens, begin)),
        lambda tokens, begin: shift_targets(tokens, begin or 1),
        lambda tokens, begin: shift_targets(tokens, begin).clamp(min=0),
        lambda tokens, begin: shift_targets(tokens, begin) if len(tokens) < 6 else tokens,
    ],
    "seq2seq_loss": [
        lambda logits, labels, pad: seq2seq_loss(logits.clamp(-50, 50), labels, pad),
        lambda logits, labels, pad: seq2seq_loss(logits, labels, max(pad, 0)),
        lambda logits, labels, pad: seq2seq_loss(logits.detach() if pad == 0 else logits, labels, pad),
        lambda logits, labels, pad: (
            seq2seq_loss(logits + 1e-3 * (labels == pad)[..., None] * logits.sum(), labels, pad)
            + 1e-3 * logits[labels == pad].sum()
        ),
        lambda logits, labels, pad: seq2seq_loss(logits, labels, pad) * (1 if (labels[:, 0] != pad).all() else 2),
        lambda logits, labels, pad: seq2seq_loss(logits.nan_to_num(neginf=0.0), labels, pad),
        scores_shifted_in_place,
    ],
    "next_token_loss": [
        lambda logits, tokens, pad=0: next_token_loss(logits, tokens, pad),
        lambda logits, tokens, pad=None: next_token_loss(logits, tokens, abs(pad) if pad else pad),
        lambda logits, tokens, pad=None: next_token_loss(logits, tokens, pad) * (1 if tokens.size(1) > 2 else 2),
        lambda logits, tokens, pad=None: next_token_loss(logits.clamp(-50, 50), tokens, pad),
        lambda logits, tokens, pad=None: next_token_loss(logits if pad is None else logits.detach(), tokens, pad),
    ],
    "smoothed_loss": [
        lambda logits, labels, pad, smoothing: smoothed_loss(logits, labels, pad, min(smoothing, 0.5)),
        lambda logits, labels, pad, smoothing: smoothed_loss(logits, labels, pad, 0.1),
        lambda logits, labels, pad, smoothing: smoothed_loss(logits, labels, pad, smoothing or 0.1),
        lambda logits, labels, pad, smoothing: smoothed_loss(logits.clamp(-50, 50), labels, pad, smoothing),
        lambda logits, labels, pad, smoothing: (
            smoothed_loss(logits, labels, pad, smoothing) + (labels == pad).all() * 1e-3
        ),
        lambda logits, labels, pad, smoothing: (
            smoothed_loss(logits, labels, pad, smoothing) + 1e-3 * logits[labels == pad].sum()
        ),
    ],
    "accumulated_loss": [
        lambda token_losses: accumulated_loss([losses for losses in token_losses if len(losses) != 1]),
        lambda token_losses: accumulated_loss(
            [losses.detach() if len(losses) == 1 else losses for losses in token_losses]
        ),
        lambda token_losses: accumulated_loss([losses.clamp(max=5) for losses in token_losses]),
        lambda token_losses: accumulated_loss([*token_losses[:4]]),
        lambda token_losses: accumulated_loss(token_losses) if all(map(len, token_losses)) else torch.tensor(0.0),
    ],
    "warmup_lr": [
        lambda step, d_model, warmup: round(warmup_lr(step, d_model, warmup), 6),
        lambda step, d_model, warmup: warmup_lr(step, d_model, max(warmup, 2)),
        lambda step, d_model, warmup: warmup_lr(min(step, 10_000), d_model, warmup),
        lambda step, d_model, warmup: warmup_lr(step, max(d_model, 2), warmup),
        lambda step, d_model, warmup: max(warmup_lr(step, d_model, warmup), 1e-4),
    ],
    "train_and_watch": [first_mode_kept, switched_in_the_batch_after],
    "DecoderLayer": [
        KeepsItsMask,
        DetachedInTraining,
        SquareMaskForBoth,
        OneMaskForAll,
        LargeEpsilon,
        OneTokenAlone,
        DropoutTwice,
    ],
}

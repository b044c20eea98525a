"""Chapter 8: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


def shift_by_pad(tokens, begin):
    return F.pad(tokens, (1, -1), value=begin)


def shift_by_assignment(tokens, begin):
    reads = torch.empty_like(tokens)
    reads[:, 0] = begin
    reads[:, 1:] = tokens[:, :-1]
    return reads


def shift_by_roll(tokens, begin):
    reads = tokens.roll(1, dims=1)  # a copy; what was last is in front now
    reads[:, 0] = begin
    return reads


def shift_by_lists(tokens, begin):
    return torch.tensor([[begin, *sentence[:-1]] for sentence in tokens.tolist()])


def loss_by_library(logits, labels, pad):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=pad)


def loss_by_hand(logits, labels, pad):
    keep = labels != pad
    log_probabilities = logits.log_softmax(dim=-1)
    index = labels.masked_fill(~keep, 0).unsqueeze(-1)  # any word will do where there is none
    losses = -log_probabilities.gather(-1, index).squeeze(-1)
    return (losses * keep).sum() / keep.sum().clamp(min=1)


def loss_by_logsumexp(logits, labels, pad):
    places = (labels != pad).nonzero(as_tuple=True)
    right = logits[(*places, labels[places])]
    return (logits[places].logsumexp(dim=-1) - right).mean()


def loss_by_loop(logits, labels, pad):
    losses = []
    for sentence, said in zip(labels, logits, strict=True):
        for label, scores in zip(sentence, said, strict=True):
            if label != pad:
                losses.append(-scores.log_softmax(dim=0)[label])
    return torch.stack(losses).mean() if losses else logits.sum() * 0


def next_by_library(logits, tokens, pad=None):
    scores = logits[:, :-1].flatten(0, 1)
    return nn.CrossEntropyLoss(ignore_index=-100 if pad is None else pad)(scores, tokens[:, 1:].flatten())


def next_by_labels(logits, tokens, pad=None):
    labels = tokens.roll(-1, dims=1)  # a copy
    labels[:, -1] = -100
    if pad is not None:
        labels[labels == pad] = -100
    return F.cross_entropy(logits.mT, labels)


def next_by_hand(logits, tokens, pad=None):
    predicted = tokens[:, 1:]
    losses = -logits[:, :-1].log_softmax(dim=-1).gather(-1, predicted.clamp(min=0)[..., None])[..., 0]
    if pad is None:
        return losses.mean()
    keep = (predicted != pad).float()
    return (losses * keep).sum() / keep.sum().clamp(min=1)


def smoothed_by_distribution(logits, labels, pad, smoothing):
    words = logits.size(-1)
    wanted = F.one_hot(labels, words) * (1 - smoothing) + smoothing / words
    losses = -(wanted * logits.log_softmax(dim=-1)).sum(dim=-1)
    keep = labels != pad
    return losses.where(keep, 0.0).sum() / max(int(keep.sum()), 1)


def smoothed_by_library(logits, labels, pad, smoothing):
    if (labels == pad).all():
        return 0 * logits.sum()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad, label_smoothing=smoothing)


def smoothed_by_selection(logits, labels, pad, smoothing):
    keep = labels != pad
    total = F.cross_entropy(logits[keep], labels[keep], reduction="sum", label_smoothing=smoothing)
    return total / keep.sum().clamp(min=1)


def smoothed_by_divergence(logits, labels, pad, smoothing):
    words = logits.size(-1)
    wanted = F.one_hot(labels, words) * (1 - smoothing) + smoothing / words
    divergences = F.kl_div(logits.log_softmax(dim=-1), wanted.float(), reduction="none").sum(dim=-1)
    entropies = torch.special.entr(wanted).sum(dim=-1)
    keep = (labels != pad).float()
    return ((divergences + entropies) * keep).sum() / keep.sum().clamp(min=1)


def accumulated_by_totals(token_losses):
    total, count = 0.0, 0
    for losses in token_losses:
        total = total + losses.sum()
        count += len(losses)
    return total / max(count, 1)


def accumulated_by_mean(token_losses):
    return torch.cat(list(token_losses)).mean()


def accumulated_by_weighted_means(token_losses):
    filled = [losses for losses in token_losses if len(losses)]
    tokens = sum(len(losses) for losses in filled)
    return sum((losses.mean() * len(losses) / tokens for losses in filled), start=torch.tensor(0.0))


def rate_in_two_pieces(step, d_model, warmup):
    number = step + 1
    if number < warmup:
        return number / (warmup * math.sqrt(warmup * d_model))
    return 1 / math.sqrt(number * d_model)


def rate_from_its_peak(step, d_model, warmup):
    done = (step + 1) / warmup
    return (d_model * warmup) ** -0.5 * min(done, done**-0.5)


def rate_as_a_tensor(step, d_model, warmup):
    number = torch.tensor(step + 1.0, dtype=torch.float64)
    return torch.minimum(number.rsqrt(), number / warmup**1.5) / d_model**0.5


def watch_and_return(model, optimizer, loss_of, batches, held_out, every):
    losses = []
    model.train()
    for number, batch in enumerate(batches):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (number + 1) % every == 0:
            model.eval()
            with torch.no_grad():
                losses.append(float(loss_of(model, held_out)))
            model.train()
    return losses


def held_out_loss(model, loss_of, held_out):
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            return loss_of(model, held_out).item()
    finally:
        model.train(before)


def watch_by_function(model, optimizer, loss_of, batches, held_out, every):
    model.train()
    losses = []
    left = every
    for batch in batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        left -= 1
        if left == 0:
            losses.append(held_out_loss(model, loss_of, held_out))
            left = every
    return losses


class Attention(nn.Module):
    """Attention written out."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = num_heads, nn.Dropout(dropout)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        projections = ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        q, k, v = (project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for project, x in projections)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if mask is None:
            weights = scores.softmax(dim=-1)
        else:
            weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask
        return self.out_proj((self.dropout(weights) @ v).transpose(1, 2).flatten(2))


class WithOwnAttention(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.self_attn = Attention(d_model, num_heads, dropout)
        self.cross_attn = Attention(d_model, num_heads, dropout)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.drop1, self.drop2, self.drop3 = (nn.Dropout(dropout) for _ in range(3))

    def forward(self, x, memory, self_mask=None, memory_mask=None):
        found = self.self_attn(x, x, x, self_mask)
        x = self.norm1(x + self.drop1(found))
        found = self.cross_attn(x, memory, memory, memory_mask)
        x = self.norm2(x + self.drop2(found))
        return self.norm3(x + self.drop3(self.ffn(x)))


class AddAndNorm(nn.LayerNorm):
    """Norm and dropout in one, for the sum of a sublayer's input and its result."""

    def __init__(self, d_model, dropout):
        super().__init__(d_model)
        self.dropout = dropout

    def forward(self, x, found):
        return super().forward(F.dropout(found, self.dropout, self.training) + x)


class WithAddAndNorm(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.0):
        super().__init__()
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        for name in ("self_attn", "cross_attn"):
            self.add_module(name, Attention(d_model, num_heads, dropout))
        for name in ("norm1", "norm2", "norm3"):
            self.add_module(name, AddAndNorm(d_model, dropout))

    def forward(self, x, memory, self_mask=None, memory_mask=None):
        steps = (
            (self.norm1, lambda x: self.self_attn(x, x, x, mask=self_mask)),
            (self.norm2, lambda x: self.cross_attn(x, memory, memory, mask=memory_mask)),
            (self.norm3, self.ffn),
        )
        for add_and_norm, sublayer in steps:
            x = add_and_norm(x, sublayer(x))
        return x


STYLES = {
    "shift_targets": (shift_by_pad, shift_by_assignment, shift_by_roll, shift_by_lists),
    "seq2seq_loss": (loss_by_library, loss_by_hand, loss_by_logsumexp, loss_by_loop),
    "next_token_loss": (next_by_library, next_by_labels, next_by_hand),
    "smoothed_loss": (
        smoothed_by_distribution,
        smoothed_by_library,
        smoothed_by_selection,
        smoothed_by_divergence,
    ),
    "accumulated_loss": (accumulated_by_totals, accumulated_by_mean, accumulated_by_weighted_means),
    "warmup_lr": (rate_in_two_pieces, rate_from_its_peak, rate_as_a_tensor),
    "train_and_watch": (watch_and_return, watch_by_function),
    "DecoderLayer": (WithOwnAttention, WithAddAndNorm),
}

"""Chapter 5: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from einops import rearrange, reduce
from torch import nn
from torch.nn import functional as F

# --- the mask ------------------------------------------------------------------------------------------------------


def mask_by_unsqueeze(attention_mask):
    if attention_mask.dtype != torch.bool and not torch.isin(attention_mask, torch.tensor([0, 1])).all():
        raise ValueError("zeros and ones, please")
    return attention_mask.unsqueeze(1).unsqueeze(2).bool()


def mask_by_loop(attention_mask):
    rows = []
    for row in attention_mask.tolist():
        assert all(number in (0, 1) for number in row)
        rows.append([[[number == 1 for number in row]]])
    return torch.tensor(rows)


def mask_by_einops(attention_mask):
    odd = (attention_mask != 0) & (attention_mask != 1)
    if odd.any():
        raise ValueError(f"{attention_mask[odd][0]}")
    return rearrange(attention_mask != 0, "batch key -> batch 1 1 key")


def mask_by_view(attention_mask):
    if int(attention_mask.max()) > 1 or int(attention_mask.to(torch.int64).min()) < 0:
        raise ValueError("no mask")
    return attention_mask.contiguous().view(len(attention_mask), 1, 1, -1).to(torch.bool)


# --- pooling -------------------------------------------------------------------------------------------------------


def mean_by_loop(x, mask):
    means = []
    for vectors, real in zip(x, mask, strict=True):
        means.append(vectors[real].mean(dim=0) if real.any() else vectors.new_zeros(x.shape[-1]))
    return torch.stack(means)


def mean_by_matrix_product(x, mask):
    weights = mask.to(x.dtype)
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-3)
    return (weights[:, None, :] @ x)[:, 0]


def mean_by_einsum(x, mask):
    return torch.einsum("bld,bl->bd", x, mask.to(x)) / mask.sum(1, keepdim=True).clamp(min=1).to(x)


def mean_by_einops(x, mask):
    kept = x.masked_fill(~mask.unsqueeze(-1), 0)
    return reduce(kept, "b l d -> b d", "sum") / torch.maximum(mask.sum(-1), torch.tensor(1)).unsqueeze(-1)


def first_by_loop(x, mask):
    found = []
    for b in range(x.shape[0]):
        for place in range(x.shape[1]):
            if mask[b, place]:
                found.append(x[b, place])
                break
    return torch.stack(found)


def first_by_gather(x, mask):
    place = mask.int().argmax(1)
    return x.gather(1, place.view(-1, 1, 1).expand(-1, 1, x.shape[-1])).squeeze(1)


def first_by_cumsum(x, mask):
    first = mask & (mask.cumsum(dim=1) == 1)
    return x[first]


def first_by_product(x, mask):
    first = (mask & (mask.cumsum(dim=1) == 1)).to(x.dtype)
    return torch.einsum("bl,bld->bd", first, x)


# --- search --------------------------------------------------------------------------------------------------------


def similar_by_library(question, sentences, top):
    similarities = F.cosine_similarity(question[None], sentences, dim=-1)
    values, numbers = torch.topk(similarities, k=top)
    return numbers, values


def similar_by_sorting(question, sentences, top):
    lengths = torch.sqrt((sentences * sentences).sum(-1)) * torch.sqrt((question * question).sum())
    similarities = (sentences * question).sum(-1) / lengths
    order = similarities.argsort(descending=True)[:top]
    return order, similarities[order]


def similar_by_loop(question, sentences, top):
    similarities = [float(s @ question) / float(s.norm() * question.norm()) for s in sentences]
    order = sorted(range(len(similarities)), key=lambda i: -similarities[i])[:top]
    return torch.tensor(order), torch.tensor([similarities[i] for i in order], dtype=sentences.dtype)


# --- patching ------------------------------------------------------------------------------------------------------


def patch_by_helper(layers):
    def patched(layer):
        def function(x):
            return layer(x)

        return function

    functions = []
    for layer in layers:
        functions.append(patched(layer))
    return functions


def patch_by_partial(layers):
    return tuple(functools.partial(lambda layer, x: layer(x), layer) for layer in layers)


class _Patched:
    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return self.layer(x)


def patch_by_class(layers):
    return [_Patched(layer) for layer in layers]


def patch_by_method(layers):
    return [layer.__call__ for layer in layers]


# --- a role --------------------------------------------------------------------------------------------------------


def score_by_loop(weights, mask):
    batch, heads, length, _ = weights.shape
    scores = []
    for head in range(heads):
        total, count = 0.0, 0
        for b in range(batch):
            for i in range(1, length):
                if mask[b, i] and mask[b, i - 1]:
                    total = total + weights[b, head, i, i - 1]
                    count += 1
        scores.append(total / count)
    return torch.stack(scores)


def score_by_diagonal(weights, mask):
    asked = (mask[:, 1:] & mask[:, :-1])[:, None].to(weights.dtype)
    return (weights.diagonal(-1, 2, 3) * asked).sum((0, 2)) / asked.sum()


def score_by_choosing(weights, mask):
    hits = torch.diagonal(weights, offset=-1, dim1=-2, dim2=-1).permute(0, 2, 1)
    return hits[mask[:, 1:] & mask[:, :-1]].mean(dim=0)


def score_by_pattern(weights, mask):
    pattern = torch.from_numpy(np.eye(mask.shape[1], k=-1, dtype=bool)) & mask[:, None, :] & mask[:, :, None]
    return torch.einsum("bhqk,bqk->h", weights, pattern.to(weights)) / pattern.sum()


# --- the layer -----------------------------------------------------------------------------------------------------


class InBertsWords(nn.Module):
    """Scores plus an additive mask, as BERT's own code has it."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.num_attention_heads = num_heads
        self.attention_head_size = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, query, key, value, mask):
        q = self.transpose_for_scores(self.q_proj(query))
        k = self.transpose_for_scores(self.k_proj(key))
        v = self.transpose_for_scores(self.v_proj(value))
        scores = q @ k.transpose(-1, -2)
        scores /= math.sqrt(self.attention_head_size)
        extended = (1.0 - mask.float()) * -10000.0
        context = self.dropout((scores + extended).softmax(dim=-1)) @ v
        context = context.permute(0, 2, 1, 3).contiguous()
        return self.out_proj(context.view(*context.shape[:-2], -1))


class ByEinsum(nn.Module):
    """The class of the chapter, with minus infinity in it: no query here is left without a key."""

    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads, self.scale = num_heads, (d_model // num_heads) ** -0.5
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d_model, d_model))

    def forward(self, query, key, value, mask):
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in (q, k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return self.out_proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


class HeadByHead(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        self.d_head = d_model // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))
        self.drop = dropout

    def forward(self, query, key, value, mask=None):
        results = []
        for q, k, v in zip(
            self.q_proj(query).split(self.d_head, -1),
            self.k_proj(key).split(self.d_head, -1),
            self.v_proj(value).split(self.d_head, -1),
            strict=True,
        ):
            p = self.drop if self.training else 0.0
            results.append(F.scaled_dot_product_attention(q, k, v, mask[:, 0], dropout_p=p))
        return self.out_proj(torch.cat(results, dim=-1))


STYLES = {
    "mask_from_tokenizer": (mask_by_unsqueeze, mask_by_loop, mask_by_einops, mask_by_view),
    "masked_mean": (mean_by_loop, mean_by_matrix_product, mean_by_einsum, mean_by_einops),
    "first_token": (first_by_loop, first_by_gather, first_by_cumsum, first_by_product),
    "most_similar": (similar_by_library, similar_by_sorting, similar_by_loop),
    "patch_layers": (patch_by_helper, patch_by_partial, patch_by_class, patch_by_method),
    "previous_token_score": (score_by_loop, score_by_diagonal, score_by_choosing, score_by_pattern),
    "PluggedAttention": (InBertsWords, ByEinsum, HeadByHead),
}

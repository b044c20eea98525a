"""Chapter 4: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F


def split_by_loop(x, num_heads):
    if x.shape[-1] % num_heads != 0:
        raise ValueError("no")
    d_head = x.shape[-1] // num_heads
    heads = []
    for h in range(num_heads):
        heads.append(x[:, :, h * d_head : (h + 1) * d_head])
    return torch.stack(heads, dim=1)


def split_by_chunk(x, num_heads):
    assert x.size(-1) % num_heads == 0
    return torch.stack(x.chunk(num_heads, dim=-1), 1)


def split_by_einops(x, num_heads):
    return rearrange(x, "b l (h d) -> b h l d", h=num_heads)


def split_by_unflatten(x, num_heads):
    return x.unflatten(-1, (num_heads, x.size(-1) // num_heads)).permute(0, 2, 1, 3).contiguous()


def merge_by_loop(x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


def merge_by_einops(x):
    return rearrange(x, "b h l d -> b l (h d)")


def merge_by_view(x):
    b, h, n, d = x.size()
    return x.permute(0, 2, 1, 3).contiguous().view(b, n, h * d)


class ByLibrary(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("width")
        self.out_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.q_proj = nn.Linear(d_model, d_model)
        self.h, self.p = num_heads, dropout

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            p(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for p, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        p = self.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class ByLoop(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads, self.d = num_heads, d_model // num_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d_model, d_model))
        self.drop = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        full = None
        if mask is not None:
            full = mask.expand(query.size(0), self.num_heads, query.size(1), key.size(1))
        parts = []
        for h in range(self.num_heads):
            s = slice(h * self.d, (h + 1) * self.d)
            scores = torch.bmm(q[..., s], k[..., s].transpose(1, 2)) / self.d**0.5
            if full is not None:
                scores = scores.masked_fill(~full[:, h], -1e30)
            weights = scores.softmax(-1)
            if full is not None:
                weights = weights * full[:, h].float()
            parts.append(torch.bmm(self.drop(weights), v[..., s]))
        return self.out_proj(torch.cat(parts, dim=2))


class _View:
    """One of the three projections inside a fused one, under its usual name."""

    def __init__(self, linear, rows):
        self.weight, self.bias = linear.weight[rows], linear.bias[rows]


class Fused(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"{d_model} and {num_heads}")
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    @property
    def q_proj(self):
        return _View(self.in_proj, slice(0, self.d_model))

    @property
    def k_proj(self):
        return _View(self.in_proj, slice(self.d_model, 2 * self.d_model))

    @property
    def v_proj(self):
        return _View(self.in_proj, slice(2 * self.d_model, None))

    def forward(self, query, key, value, mask=None):
        wq, wk, wv = self.in_proj.weight.chunk(3)
        bq, bk, bv = self.in_proj.bias.chunk(3)
        q, k, v = F.linear(query, wq, bq), F.linear(key, wk, bk), F.linear(value, wv, bv)
        q, k, v = (rearrange(t, "b l (h d) -> b h l d", h=self.num_heads) for t in (q, k, v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * mask
        weights = F.dropout(weights, self.dropout, self.training)
        return self.out_proj(rearrange(weights @ v, "b h l d -> b l (h d)"))


STYLES = {
    "split_heads": (split_by_loop, split_by_chunk, split_by_einops, split_by_unflatten),
    "merge_heads": (merge_by_loop, merge_by_einops, merge_by_view),
    "MultiHeadAttention": (ByLibrary, ByLoop, Fused),
}

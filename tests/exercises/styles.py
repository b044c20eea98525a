"""Right answers in styles other than the reference's: none may be refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


def attend_by_loop(query, key, value, mask=None):
    shape = query.shape[:-2]
    q = query.reshape(-1, *query.shape[-2:])
    k = key.reshape(-1, *key.shape[-2:])
    v = value.reshape(-1, *value.shape[-2:])
    m = None
    if mask is not None:
        m = mask.expand(*shape, q.shape[1], k.shape[1]).reshape(-1, q.shape[1], k.shape[1])
    outputs, weights = [], []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            scores = torch.stack([(q[b, i] / math.sqrt(q.shape[-1]) * k[b, j]).sum() for j in range(k.shape[1])])
            if m is not None:
                scores = torch.where(m[b, i], scores, torch.finfo(scores.dtype).min)
            w = F.softmax(scores, dim=0)
            if m is not None:
                w = torch.where(m[b, i], w, torch.zeros_like(w))
            weights.append(w)
            outputs.append((w[:, None] * v[b]).sum(0))
    return (
        torch.stack(outputs).reshape(*shape, q.shape[1], v.shape[-1]),
        torch.stack(weights).reshape(*shape, q.shape[1], k.shape[1]),
    )


def attend_by_einsum(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query * query.shape[-1] ** -0.5, key)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
        weights = scores.softmax(-1).masked_fill(mask.logical_not(), 0.0)
    else:
        weights = torch.softmax(scores, -1)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


def attend_by_fourth_roots(query, key, value, mask=None):
    root = query.shape[-1] ** 0.25
    scores = torch.matmul(query / root, (key / root).mT)
    if mask is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores.float() if scores.dtype == torch.half else scores, dim=-1).to(query.dtype)
    if mask is not None:
        weights = weights * mask.any(dim=-1, keepdim=True)
    return weights @ value, weights


def attend_by_library(query, key, value, mask=None):
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    identity = torch.eye(key.size(-2), dtype=value.dtype).expand(*key.shape[:-1], key.size(-2))
    return output, F.scaled_dot_product_attention(query, key, identity, attn_mask=mask)


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


STYLES: dict[str, tuple[Callable[..., Any], ...]] = {
    "scaled_dot_product_attention": (attend_by_loop, attend_by_einsum, attend_by_fourth_roots, attend_by_library),
    "split_heads": (split_by_loop, split_by_chunk, split_by_einops, split_by_unflatten),
    "merge_heads": (merge_by_loop, merge_by_einops, merge_by_view),
    "MultiHeadAttention": (ByLibrary, ByLoop, Fused),
}

"""Chapter 4: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional as F

from mha_course.self_attention import scaled_dot_product_attention


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


def in_turn_concatenated(query, key, value, num_heads):
    size = query.shape[-1] // num_heads
    out = []
    for q, k, v in zip(query.split(size, -1), key.split(size, -1), value.split(size, -1), strict=True):
        out.append(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(size), -1) @ v)
    return torch.cat(out, 2)


def in_turn_permuted(query, key, value, num_heads):
    q, k, v = (rearrange(x, "b l (h d) -> h b l d", h=num_heads) for x in (query, key, value))
    heads = torch.stack([F.scaled_dot_product_attention(q[h], k[h], v[h]) for h in range(num_heads)])
    return heads.permute(1, 2, 0, 3).reshape(query.shape)


def in_turn_filled(query, key, value, num_heads):
    result = torch.empty_like(query)
    d = query.size(-1) // num_heads
    for h in range(num_heads):
        s = slice(h * d, h * d + d)
        result[..., s] = (query[..., s] @ key[..., s].mT / d**0.5).softmax(-1) @ value[..., s]
    return result


def masked_by_library(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.unsqueeze(1))


def masked_by_copies(query, key, value, mask):
    mask = mask.unsqueeze(1).repeat(1, query.shape[1], 1, 1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    weights = torch.softmax(torch.where(mask, scores, torch.full_like(scores, -1e9)), -1)
    return torch.where(mask, weights, torch.zeros_like(weights)) @ value


def masked_in_turn(query, key, value, mask):
    heads = [F.scaled_dot_product_attention(query[:, h], key[:, h], value[:, h], mask) for h in range(query.size(1))]
    return torch.stack(heads, dim=1)


def grouped_by_library(query, key, value, mask=None):
    if query.size(1) % key.size(1):
        raise ValueError("unequal groups")
    output = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    ones = torch.eye(key.size(2), dtype=value.dtype).expand(*key.shape[:2], -1, -1)
    return output, F.scaled_dot_product_attention(query, key, ones, mask, enable_gqa=True)


def grouped_by_an_axis(query, key, value, mask=None):
    b, h, n, d = query.shape
    g = key.size(1)
    assert h % g == 0
    scores = torch.einsum("bgrqd,bgkd->bgrqk", query.reshape(b, g, h // g, n, d) / math.sqrt(d), key)
    if mask is not None:
        mask = mask.expand(b, h, n, key.size(2)).reshape(scores.shape)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    if mask is not None:
        weights = weights * mask
    output = torch.einsum("bgrqk,bgkv->bgrqv", weights, value)
    return output.reshape(b, h, n, -1), weights.reshape(b, h, n, -1)


def grouped_by_loop(query, key, value, mask=None):
    heads, groups = query.size(1), key.size(1)
    if heads % groups != 0:
        raise ValueError(f"{heads} heads, {groups} groups")
    full = None if mask is None else mask.expand(query.size(0), heads, query.size(2), key.size(2))
    output, weights = [], []
    for h in range(heads):
        g = h * groups // heads
        s = query[:, h] @ key[:, g].mT / query.size(-1) ** 0.5
        if full is not None:
            s = s.masked_fill(~full[:, h], -1e30)
        w = s.softmax(-1)
        if full is not None:
            w = w * full[:, h]
        output.append(w @ value[:, g])
        weights.append(w)
    return torch.stack(output, 1), torch.stack(weights, 1)


def grouped_by_expand(query, key, value, mask=None):
    times, rest = divmod(query.size(1), key.size(1))
    if rest:
        raise ValueError
    key, value = (
        x[:, :, None].expand(-1, -1, times, -1, -1).reshape(x.size(0), -1, *x.shape[2:]) for x in (key, value)
    )
    return scaled_dot_product_attention(query, key, value, mask)


def examine_by_loops(split_heads):
    for batch, length, heads, size in ((2, 3, 4, 5), (1, 1, 3, 2), (2, 1, 1, 4), (3, 2, 2, 2)):
        plain = torch.randn(batch, length, heads * size)
        for x in (plain, plain.mT.contiguous().mT):
            before = x.tolist()
            result = split_heads(x, heads)
            assert x.tolist() == before
            assert list(result.shape) == [batch, heads, length, size]
            for b in range(batch):
                for h in range(heads):
                    for token in range(length):
                        assert result[b, h, token].tolist() == before[b][token][h * size : (h + 1) * size]
    try:
        split_heads(torch.zeros(1, 2, 7), 2)
    except ValueError:
        pass
    else:
        raise AssertionError("7 features, 2 heads")


def examine_by_einops(split_heads):
    refused = False
    for b, n, h, d in ((2, 3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 7), (2, 3, 5, 5)):
        x = torch.arange(b * n * h * d).reshape(n, b, h * d).transpose(0, 1)
        y = x.clone()
        torch.testing.assert_close(split_heads(x, h), rearrange(y, "b n (h d) -> b h n d", h=h))
        if not (x == y).all():
            raise ValueError("changed")
    try:
        split_heads(torch.ones(2, 3, 8), 3)
    except Exception:  # noqa: BLE001
        refused = True
    assert refused


STYLES = {
    "split_heads": (split_by_loop, split_by_chunk, split_by_einops, split_by_unflatten),
    "merge_heads": (merge_by_loop, merge_by_einops, merge_by_view),
    "heads_in_turn": (in_turn_concatenated, in_turn_permuted, in_turn_filled),
    "masked_heads": (masked_by_library, masked_by_copies, masked_in_turn),
    "MultiHeadAttention": (ByLibrary, ByLoop, Fused),
    "grouped_query_attention": (grouped_by_library, grouped_by_an_axis, grouped_by_loop, grouped_by_expand),
    "examine_split_heads": (examine_by_loops, examine_by_einops),
}

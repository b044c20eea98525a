"""Chapter 3: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


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


STYLES = {"scaled_dot_product_attention": (attend_by_loop, attend_by_einsum, attend_by_fourth_roots, attend_by_library)}

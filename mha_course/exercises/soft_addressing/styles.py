"""Chapter 2: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F


def softmax_of_library(x, dim):
    return F.softmax(x, dim=dim)


def softmax_by_logsumexp(x, dim):
    return torch.exp(x - torch.logsumexp(x, dim, keepdim=True))


def softmax_by_moved_axis(x, dim):
    rows = x.movedim(dim, -1)
    m, _ = rows.max(dim=-1, keepdim=True)
    e = torch.exp(rows - m.detach())
    return (e / e.sum(-1, keepdim=True)).movedim(-1, dim)


def softmax_by_loop(x, dim):
    rows = x.movedim(dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    out = torch.stack([torch.exp(row - row.max()) / torch.exp(row - row.max()).sum() for row in flat])
    return out.reshape(rows.shape).movedim(-1, dim)


def lookup_by_einsum(query, keys, values, temperature=1.0):
    weights = (torch.einsum("...d,nd->...n", query, keys) / temperature).softmax(-1)
    return torch.einsum("...n,nv->...v", weights, values)


def lookup_by_loop(query, keys, values, temperature=1.0):
    if query.dim() > 1:
        return torch.stack([lookup_by_loop(one, keys, values, temperature) for one in query])
    scores = torch.stack([(query * key).sum() / temperature for key in keys])
    weights = torch.softmax(scores, 0)
    return sum(w * v for w, v in zip(weights, values, strict=True))


def lookup_by_library(query, keys, values, temperature=1.0):
    rows = query.reshape(1, -1, query.shape[-1])
    found = F.scaled_dot_product_attention(rows, keys[None], values[None], scale=1 / temperature)
    return found.reshape(*query.shape[:-1], values.shape[-1])


def lookup_by_columns(query, keys, values, temperature=1.0):
    weights = F.softmax(keys @ (query / temperature).unsqueeze(-1), dim=-2)
    return (weights * values).sum(dim=-2)


def regression_by_cdist(query, keys, values, width=1.0):
    rows = query.reshape(-1, query.shape[-1])
    d = torch.cdist(rows, keys, compute_mode="donot_use_mm_for_euclid_dist")
    out = F.softmax(-0.5 * (d / width) ** 2, dim=1) @ values
    return out.reshape(*query.shape[:-1], -1)


def regression_by_loop(query, keys, values, width=1.0):
    if query.dim() > 1:
        return torch.stack([regression_by_loop(q, keys, values, width) for q in query])
    exponents = torch.stack([-((query - k) ** 2).sum() / (2 * width**2) for k in keys])
    weights = torch.exp(exponents - exponents.max())
    return (weights[:, None] * values).sum(0) / weights.sum()


def regression_in_widths(query, keys, values, width=1.0):
    steps = (query[..., None, :] - keys) / width
    weights = torch.softmax(-torch.einsum("...nd,...nd->...n", steps, steps) / 2, -1)
    return torch.einsum("...n,nv->...v", weights, values)


def additive_by_loop(query, keys, query_matrix, key_matrix, vector):
    q, k = query @ query_matrix, keys @ key_matrix
    columns = [torch.tanh(q + k[..., j : j + 1, :]) @ vector for j in range(k.shape[-2])]
    return torch.stack(columns, dim=-1)


def additive_by_einsum(query, keys, query_matrix, key_matrix, vector):
    q = torch.einsum("...qd,dh->...qh", query, query_matrix)
    k = torch.einsum("...kd,dh->...kh", keys, key_matrix)
    return torch.einsum("...qkh,h->...qk", torch.tanh(q[..., :, None, :] + k[..., None, :, :]), vector)


def additive_by_concatenation(query, keys, query_matrix, key_matrix, vector):
    n, m = query.shape[-2], keys.shape[-2]
    pairs = torch.cat([query.unsqueeze(-2).expand(*query.shape[:-1], m, -1),
                       keys.unsqueeze(-3).expand(*keys.shape[:-2], n, m, -1)], dim=-1)  # fmt: skip
    return (torch.tanh(pairs @ torch.cat([query_matrix, key_matrix])) * vector).sum(-1)


def cosine_of_library(query, keys):
    return F.cosine_similarity(query.unsqueeze(-2), keys.unsqueeze(-3), dim=-1)


def cosine_normalised(query, keys):
    return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).mT


def cosine_mended(query, keys):
    dots = query @ keys.transpose(-2, -1)
    lengths = query.norm(dim=-1).unsqueeze(-1) * keys.norm(dim=-1).unsqueeze(-2)
    return dots / lengths.clamp(min=1e-8)


def cosine_by_einsum(query, keys):
    lengths = (
        torch.linalg.vector_norm(query, dim=-1)[..., :, None] * torch.linalg.vector_norm(keys, dim=-1)[..., None, :]
    )
    return torch.einsum("...qd,...kd->...qk", query, keys) / (lengths + 1e-12)


def examine_by_hand(softmax):
    e = math.e
    close = {"rel": 1e-4, "abs": 1e-6}
    p, q = 1 / (1 + e), e / (1 + e)
    for x, dim, expected in (
        ([0.0, 1.0], 0, [p, q]),
        ([300.0, 0.0, 0.0], 0, [1.0, 0.0, 0.0]),
        ([[1000.0, 1001.0], [-1001.0, -1000.0]], 1, [[p, q]] * 2),
        ([[1000.0, -1001.0], [1001.0, -1000.0]], 0, [[p] * 2, [q] * 2]),
        ([[0.0, 1.0, -math.inf], [0.0, -math.inf, 1.0]], -1, [[p, q, 0], [p, 0, q]]),
        ([[0.0, 5.0], [1.0, 6.0], [-math.inf, -math.inf]], -2, [[p] * 2, [q] * 2, [0, 0]]),
        ([[[0.0], [1.0]], [[3.0], [3.0]]], 1, [[[p], [q]], [[0.5], [0.5]]]),
        ([[[0.0, 1.0]], [[3.0, 3.0]]], 2, [[[p, q]], [[0.5, 0.5]]]),
        ([[[0.0, 1.0]], [[1.0, 0.0]]], -3, [[[p, q]], [[q, p]]]),
    ):
        given = torch.tensor(x, requires_grad=True)
        weights = softmax(given, dim)
        assert weights.flatten().tolist() == pytest.approx(torch.tensor(expected).flatten().tolist(), **close)
        assert given.tolist() == x
        weights.flatten()[0].backward()
        assert given.grad is not None


def examine_by_properties(softmax):
    torch.manual_seed(1)
    for scale in (1.0, 30.0, 1000.0):
        for shape in ((7,), (3, 5), (3, 3), (2, 3, 5)):
            for dim in range(-len(shape), len(shape)):
                x = scale * torch.randn(shape)
                x.flatten()[0] = -math.inf
                kept = x.clone()
                weights = softmax(x, dim)
                torch.testing.assert_close(x, kept, rtol=0, atol=0)
                torch.testing.assert_close(weights, kept.softmax(dim), rtol=1e-3, atol=1e-6)
                torch.testing.assert_close(softmax(x - 500.0, dim), kept.softmax(dim), rtol=1e-1, atol=1e-3)
    x = torch.tensor([[1000.0, 999.0], [-1000.0, -999.0]], requires_grad=True)
    w = softmax(x, 1)
    torch.testing.assert_close(w, x.softmax(1))
    if not w.requires_grad:
        raise AssertionError("cut off")


STYLES = {
    "softmax": (softmax_of_library, softmax_by_logsumexp, softmax_by_moved_axis, softmax_by_loop),
    "soft_lookup": (lookup_by_einsum, lookup_by_loop, lookup_by_library, lookup_by_columns),
    "kernel_regression": (regression_by_cdist, regression_by_loop, regression_in_widths),
    "additive_scores": (additive_by_loop, additive_by_einsum, additive_by_concatenation),
    "cosine_scores": (cosine_of_library, cosine_normalised, cosine_mended, cosine_by_einsum),
    "examine_softmax": (examine_by_hand, examine_by_properties),
}

"""Chapter 3: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


def causal_by_comparison(length):
    place = torch.arange(length)
    return place[None, :] <= place[:, None]


def causal_by_triu(length):
    future = torch.ones(length, length).triu(diagonal=1)
    return future == 0


def causal_by_loop(length):
    rows = []
    for query in range(length):
        rows.append([key <= query for key in range(length)])
    return torch.tensor(rows)


def padding_by_loop(lengths, length):
    mask = torch.zeros(len(lengths), 1, 1, length, dtype=torch.bool)
    for example, real in enumerate(lengths.tolist()):
        mask[example, :, :, :real] = True
    return mask


def padding_by_expand(lengths, length):
    place = torch.arange(length).expand(lengths.size(0), 1, 1, length)
    return place < lengths.view(-1, 1, 1, 1)


def padding_by_unsqueeze(lengths, length):
    hidden = torch.arange(length).unsqueeze(0) >= lengths.unsqueeze(1)
    return hidden.logical_not().unsqueeze(1).unsqueeze(2)


def decoder_by_comparison(lengths, length):
    place = torch.arange(length)
    past = place[:, None] >= place
    real = place < lengths[:, None, None, None]
    return torch.logical_and(past, real)


def decoder_by_loop(lengths, length):
    mask = torch.zeros(len(lengths), 1, length, length, dtype=torch.bool)
    for example in range(len(lengths)):
        for query in range(length):
            mask[example, 0, query, : min(query + 1, int(lengths[example]))] = True
    return mask


def decoder_by_hiding(lengths, length):
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    padding = (torch.arange(length) >= lengths[:, None])[:, None, None]
    return ~(future | padding)


def window_by_triangles(length, window):
    ones = torch.ones(length, length, dtype=torch.bool)
    return ones.tril() & ones.triu(1 - window)


def window_by_loop(length, window):
    mask = torch.zeros(length, length, dtype=torch.bool)
    for query in range(length):
        mask[query, max(0, query - window + 1) : query + 1] = True
    return mask


def window_by_difference(length, window):
    ones = torch.ones(length, length)
    return (ones.tril() - ones.tril(-window)).bool()


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


def causal_by_steps(query, key, value, padding=None):
    length = query.shape[-2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    if padding is not None:
        hidden = hidden | ~padding
    weights = scores.masked_fill(hidden, -1e9).softmax(dim=-1)
    weights = weights.masked_fill(hidden, 0.0)
    return weights @ value, weights


def causal_by_added_masks(query, key, value, padding=None):
    hidden = torch.tensor(-1e20, dtype=query.dtype)
    length = query.shape[-2]
    past = torch.ones(length, length, dtype=torch.bool).tril()
    scores = query * query.shape[-1] ** -0.5 @ key.mT + hidden * ~past
    if padding is not None:
        past = past & padding
        scores = scores + hidden * ~padding
    weights = torch.softmax(scores, dim=-1) * past.any(dim=-1, keepdim=True)
    return weights @ value, weights


def causal_by_library(query, key, value, padding=None):
    mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool).tril()
    mask = mask if padding is None else mask & padding
    everything = torch.eye(key.size(-2), dtype=value.dtype).expand(*key.shape[:-1], -1)
    return (
        F.scaled_dot_product_attention(query, key, value, attn_mask=mask),
        F.scaled_dot_product_attention(query, key, everything, attn_mask=mask),
    )


def causal_row_by_row(query, key, value, padding=None):
    length = query.size(-2)
    weights = []
    for i in range(length):
        scores = (query[..., i : i + 1, :] / query.size(-1) ** 0.5) @ key[..., : i + 1, :].transpose(-2, -1)
        row = torch.zeros(*scores.shape[:-1], length, dtype=scores.dtype)
        if padding is None:
            row[..., : i + 1] = scores.softmax(dim=-1)
        else:
            real = padding[..., : i + 1].expand_as(scores)
            row[..., : i + 1] = scores.masked_fill(~real, -1e30).softmax(dim=-1) * real
        weights.append(row)
    weights = torch.cat(weights, dim=-2)
    return weights @ value, weights


def blocks_with_copy(query, key, value, block):
    query = query / math.sqrt(query.size(-1))
    largest = torch.full_like(query[..., :1], -math.inf)
    total = torch.zeros_like(largest)
    output = query.new_zeros(*query.shape[:-1], value.size(-1))
    for start in range(0, key.size(-2), block):
        scores = query @ key[..., start : start + block, :].transpose(-2, -1)
        before = largest.clone()
        torch.maximum(largest, scores.amax(dim=-1, keepdim=True), out=largest)
        weights = (scores - largest).exp()
        shrink = (before - largest).exp()
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        output = output * shrink + weights @ value[..., start : start + block, :]
    return output / total


def blocks_in_two_readings(query, key, value, block):
    query = query / math.sqrt(query.size(-1))
    blocks = list(zip(key.split(block, dim=-2), value.split(block, dim=-2), strict=True))
    largest = torch.full_like(query[..., :1], -math.inf)
    for keys, _ in blocks:
        largest = torch.maximum(largest, (query @ keys.mT).amax(dim=-1, keepdim=True))
    total, output = 0, 0
    for keys, values in blocks:
        weights = (query @ keys.mT - largest).exp()
        total = total + weights.sum(dim=-1, keepdim=True)
        output = output + weights @ values
    return output / total


def blocks_joined_by_their_sums(query, key, value, block):
    output, log_total = None, None
    for keys, values in zip(key.split(block, dim=-2), value.split(block, dim=-2), strict=True):
        scores = query / query.size(-1) ** 0.5 @ keys.mT
        mixed, log_sum = scores.softmax(dim=-1) @ values, scores.logsumexp(dim=-1, keepdim=True)
        if output is None:
            output, log_total = mixed, log_sum
        else:
            both = torch.logaddexp(log_total, log_sum)
            output = output * (log_total - both).exp() + mixed * (log_sum - both).exp()
            log_total = both
    return output


def examine_by_hand(attention):
    generator = torch.Generator().manual_seed(1)
    for leading in ((), (3,), (3, 2)):
        for queries, keys in ((2, 5), (5, 5), (7, 5)):
            for large in (1, 30, 2000):
                query = torch.randn(*leading, queries, 7, generator=generator) * large
                key = torch.randn(*leading, keys, 7, generator=generator)
                value = torch.randn(*leading, keys, 3, generator=generator)
                mask = torch.rand(*leading, queries, keys, generator=generator) < 0.6
                mask[..., 0, :] = False
                for given in (None, mask):
                    copy = query.clone()
                    output, weights = attention(query, key, value, given)
                    assert (query == copy).all(), "changes its input"
                    scores = copy.double() @ key.double().transpose(-2, -1) / 7**0.5
                    allowed = torch.ones_like(scores).bool() if given is None else given
                    right = scores.masked_fill(~allowed, -1e30).softmax(-1) * allowed
                    assert weights.shape == right.shape, "shape of the weights"
                    assert (weights - right).abs().max() < 1e-3, "weights"
                    assert output.shape == (*leading, queries, 3), "shape of the output"
                    assert (output - right @ value.double()).abs().max() < 1e-2, "output"


def examine_query_by_query(attention):
    torch.manual_seed(3)
    for shape in ((2, 3), (1, 2), (3, 1)):
        for queries, keys in ((3, 5), (5, 5)):
            for large in (1.0, 20.0, 1000.0):
                query, key = torch.randn(*shape, queries, 11), torch.randn(*shape, keys, 11)
                value, mask = torch.randn(*shape, keys, 13), torch.rand(*shape, queries, keys) < 0.5
                mask[:, :, 1] = False
                query = query * large
                for hidden in (None, mask):
                    kept = query.clone()
                    output, weights = attention(query, key, value, hidden)
                    torch.testing.assert_close(query, kept)
                    assert weights.shape == (*shape, queries, keys)
                    for b in range(shape[0]):
                        for h in range(shape[1]):
                            for q in range(queries):
                                seen = torch.arange(keys) if hidden is None else hidden[b, h, q].nonzero()[:, 0]
                                right = torch.zeros(keys)
                                right[seen] = (key[b, h, seen] @ kept[b, h, q] / 11**0.5).softmax(0)
                                torch.testing.assert_close(weights[b, h, q], right, atol=1e-3, rtol=1e-3)
                                torch.testing.assert_close(output[b, h, q], right @ value[b, h], atol=1e-3, rtol=1e-3)
        if shape == (2, 3):  # no heads, and neither heads nor batch
            for less in ((0,), (0, 0)):
                wanted = attention(kept, key, value, None)[1][less]
                torch.testing.assert_close(
                    attention(kept[less], key[less], value[less])[1], wanted, atol=1e-3, rtol=1e-3
                )


STYLES = {
    "causal_mask": (causal_by_comparison, causal_by_triu, causal_by_loop),
    "padding_mask": (padding_by_loop, padding_by_expand, padding_by_unsqueeze),
    "decoder_mask": (decoder_by_comparison, decoder_by_loop, decoder_by_hiding),
    "sliding_window_mask": (window_by_triangles, window_by_loop, window_by_difference),
    "scaled_dot_product_attention": (attend_by_loop, attend_by_einsum, attend_by_fourth_roots, attend_by_library),
    "causal_attention": (causal_by_steps, causal_by_added_masks, causal_by_library, causal_row_by_row),
    "attention_in_blocks": (blocks_with_copy, blocks_in_two_readings, blocks_joined_by_their_sums),
    "examine_attention": (examine_by_hand, examine_query_by_query),
}

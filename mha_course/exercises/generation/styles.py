"""Chapter 8, second half: right answers in other styles; each must pass, and a learner who has solved the exercise may read them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from mha_course.self_attention import causal_mask, scaled_dot_product_attention

INFINITY = float("inf")


def decode_text_by_text(model, source, max_length, bos, eos):
    texts = [[bos] for _ in source]
    ended = [False] * len(texts)
    for _ in range(max_length):
        if all(ended):
            break
        logits = model(source, torch.tensor(texts))
        for row, text in enumerate(texts):
            token = eos if ended[row] else logits[row, -1].argmax().item()
            text.append(token)
            ended[row] = ended[row] or token == eos
    return torch.tensor(texts)


def decode_by_where(model, source, max_length, bos, eos):
    training = model.training
    model.eval()
    target = source.new_full((len(source), 1), bos)
    unfinished = torch.ones(len(source), dtype=torch.long)
    while target.size(1) <= max_length and unfinished.any():
        with torch.no_grad():
            scores = model(source, target)[:, -1, :].log_softmax(-1)
        _, chosen = scores.max(dim=1)
        chosen = chosen * unfinished + eos * (1 - unfinished)
        target = torch.hstack([target, chosen.unsqueeze(1)])
        unfinished = unfinished.mul((chosen != eos).long())
    model.train(training)
    return target


def decode_into_a_table(model, source, max_length, bos, eos):
    target = torch.full((source.shape[0], max_length + 1), eos)
    target[:, 0] = bos
    alive = torch.arange(source.shape[0])
    for step in range(1, max_length + 1):
        best = model(source, target[:, :step])[:, -1].topk(1).indices[:, 0]
        target[alive, step] = best[alive]
        alive = alive[best[alive] != eos]
        if len(alive) == 0:
            return target[:, : step + 1]
    return target


def top_k_by_scatter(logits, k):
    values, indices = torch.topk(logits, min(k, logits.shape[-1]))
    return torch.full_like(logits, -INFINITY).scatter(-1, indices, values)


def top_k_by_rank(logits, k):
    rank = logits.argsort(dim=-1, descending=True).argsort(dim=-1)
    return torch.where(rank < k, logits, torch.tensor(-INFINITY, dtype=logits.dtype))


def top_k_by_loop(logits, k):
    out = logits.clone()
    for row in out.view(-1, logits.shape[-1]) if out.is_contiguous() else out:
        k = min(k, len(row))
        row[row < row.sort(descending=True)[0][k - 1]] = float("-inf")
    return out


def top_p_shifted(logits, p):
    """As it has been copied from repository to repository since 2019."""
    sorted_logits, sorted_indices = torch.sort(logits, descending=True)
    cumulative = torch.cumsum(F.softmax(sorted_logits, dim=-1), dim=-1)
    remove = cumulative > p
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    if p == 1:
        return logits
    return logits.masked_fill(remove.scatter(-1, sorted_indices, remove), -INFINITY)


def top_p_ascending(logits, p):
    """As transformers does it: what the least probable tokens reach together is ruled out, up to 1 - p."""
    sorted_logits, sorted_indices = torch.sort(logits, descending=False)
    remove = sorted_logits.softmax(dim=-1).cumsum(dim=-1) <= 1 - p
    remove[..., -1:] = False
    return logits.masked_fill(remove.scatter(-1, sorted_indices, remove), -INFINITY)


def top_p_by_inverse_order(logits, p):
    order = logits.argsort(-1, True)
    likely = logits.softmax(-1).gather(-1, order)
    before = torch.cat([torch.zeros_like(likely[..., :1]), likely.cumsum(-1)[..., :-1]], dim=-1)
    kept = (before < p).gather(-1, order.argsort(-1))
    return torch.where(kept, logits, -INFINITY)


def top_p_by_loop(logits, p):
    rows = []
    for row in logits.reshape(-1, logits.size(-1)):
        new, total = torch.full_like(row, -INFINITY), 0.0
        for token in row.argsort(descending=True):
            if total < p:
                new[token] = row[token]
            total += row.softmax(0)[token].item()
        rows.append(new)
    return torch.stack(rows).reshape(logits.shape)


def steps_by_formula(prompt_length, steps):
    return [0 if step == 0 else prompt_length + step - 1 for step in range(steps)]


def steps_by_sum(prompt_length, steps):
    sizes = torch.tensor([prompt_length] + [1] * (steps - 1))
    return (sizes.cumsum(0) - sizes).tolist()


def steps_as_a_tuple(prompt_length, steps):
    return (0, *range(prompt_length, prompt_length + steps - 1))


def positions_by_loop(mask):
    positions = torch.zeros(mask.shape, dtype=torch.int64)
    for row in range(mask.shape[0]):
        seen = 0
        for column in range(mask.shape[1]):
            positions[row, column] = min(seen, mask.shape[1] - 1)
            seen += bool(mask[row, column])
    return positions


def positions_filled(mask):
    """As transformers does it: padding gets 1, where there are two places."""
    positions = mask.long().cumsum(-1) - 1
    return positions.masked_fill(mask == 0, min(1, mask.size(1) - 1))


def positions_times_mask(mask):
    return (torch.cumsum(mask, dim=1) - 1) * mask


def positions_of_those_before(mask):
    return (torch.cumsum(mask.int(), 1) - mask.long()).clamp(max=mask.size(1) - 1)


def attend_by_package(query, key, value):
    return scaled_dot_product_attention(query, key, value, causal_mask(query.size(-2), key.size(-2)))


def attend_by_places(query, key, value):
    total, new = key.size(-2), query.size(-2)
    asking = torch.arange(total - new, total).unsqueeze(1)
    scores = torch.einsum("...qd,...kd->...qk", query, key) * query.size(-1) ** -0.5
    scores = scores + torch.zeros(new, total, dtype=scores.dtype).masked_fill(torch.arange(total) > asking, -INFINITY)
    weights = scores.softmax(-1)
    return torch.matmul(weights, value), weights


def attend_one_after_another(query, key, value):
    total, new = key.shape[-2], query.shape[-2]
    outputs, weights = [], []
    for i in range(new):
        seen = total - new + i + 1
        scores = query[..., i : i + 1, :] @ key[..., :seen, :].transpose(-2, -1) / math.sqrt(key.shape[-1])
        row = F.softmax(scores, dim=-1)
        outputs.append(row @ value[..., :seen, :])
        weights.append(F.pad(row, (0, total - seen)))
    return torch.cat(outputs, dim=-2), torch.cat(weights, dim=-2)


def attend_by_last_rows(query, key, value):
    n, m = query.size(-2), key.size(-2)
    mask = torch.tril(torch.ones(m, m, dtype=torch.bool))[-n:]
    scores = (query @ key.mT / math.sqrt(query.size(-1))).masked_fill(mask.logical_not(), -1e9)
    return scores.softmax(dim=-1) @ value, scores.softmax(dim=-1)


class CacheOfLists:
    def __init__(self):
        self.pieces = []

    def append(self, k, v):
        self.pieces.append((k, v))
        ks, vs = zip(*self.pieces, strict=True)
        self.pieces = [(torch.cat(ks, dim=2), torch.cat(vs, dim=2))]
        return self.pieces[0]

    @property
    def length(self):
        return sum(k.shape[2] for k, _ in self.pieces)

    def reorder(self, beams):
        self.pieces = [(k[beams], v[beams]) for k, v in self.pieces]
        return self


class CacheInAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def append(self, key, value):
        new = (key, value)
        self.kept = (
            new if self.kept is None else tuple(torch.cat(pair, -2) for pair in zip(self.kept, new, strict=True))
        )
        return self.kept

    @property
    def length(self):
        return self.kept[0].shape[-2] if self.kept else 0

    def reorder(self, beams):
        self.kept = tuple(torch.stack([x[i] for i in beams.tolist()]) for x in self.kept)


class CacheThatCounts:
    def __init__(self):
        self.length = 0
        self.k = self.v = None

    def append(self, k, v):
        self.length += k.size(2)
        if self.k is None:
            self.k, self.v = k.clone(), v.clone()
        else:
            self.k, self.v = torch.concat((self.k, k), 2), torch.concat((self.v, v), 2)
        return [self.k, self.v][0], [self.k, self.v][1]

    def reorder(self, beams):
        self.k = self.k.index_select(0, beams)
        self.v = self.v.index_select(0, beams)
        return self.k, self.v


class ByLibrary(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.out_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.q_proj = nn.Linear(d_model, d_model)
        self.h = num_heads

    def forward(self, x, cache=None):
        q, k, v = (p(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        past = cache.length if cache else 0
        if cache is not None:
            k, v = cache.append(k, v)
        mask = torch.arange(k.size(2)) <= torch.arange(past, past + x.size(1))[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class KeptUnsplit(nn.Module):
    """The cache gets keys and values at full width, and they are split afterwards."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_head = num_heads, d_model // num_heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(d_model, d_model))

    def forward(self, x, cache=None):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if cache is not None:
            k, v = cache.append(k, v)
        hidden = torch.ones(q.size(1), k.size(1)).triu(k.size(1) - q.size(1) + 1).bool()
        parts = []
        for h in range(self.num_heads):
            s = slice(h * self.d_head, (h + 1) * self.d_head)
            scores = torch.bmm(q[..., s], k[..., s].transpose(1, 2)) / self.d_head**0.5
            parts.append(scores.masked_fill(hidden, -1e30).softmax(-1) @ v[..., s])
        return self.out_proj(torch.cat(parts, dim=-1))


class OneProductForAllThree(nn.Module):
    """Projects once with the three matrices stacked, and scores with einsum."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))
        self.num_heads = num_heads

    def forward(self, x, cache=None):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        weight, bias = torch.cat([f.weight for f in layers]), torch.cat([f.bias for f in layers])
        q, k, v = F.linear(x, weight, bias).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.append(k, v)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.size(-1) ** 0.5
        behind = torch.arange(k.size(-2)) > torch.arange(k.size(-2))[-q.size(-2) :, None]
        weights = scores.masked_fill(behind, float("-inf")).softmax(-1)
        return self.out_proj(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2))


def step_by_loop(model, texts, sums, cache):
    scores = model(texts[:, -1:], cache)[:, 0].log_softmax(-1)
    found = [(sums[i] + scores[i, t], i, t) for i in range(len(texts)) for t in range(scores.size(1))]
    found = sorted(found, key=lambda one: -float(one[0]))[: len(texts)]
    cache.reorder(torch.tensor([i for _, i, _ in found]))
    texts = torch.stack([torch.cat([texts[i], torch.tensor([t])]) for _, i, t in found])
    return texts, torch.stack([total for total, _, _ in found])


def step_by_divmod(model, texts, sums, cache):
    steps = F.log_softmax(model(texts[:, [-1]], cache)[:, -1, :], dim=-1)
    values, flat = (sums.unsqueeze(1) + steps).view(-1).sort(descending=True)
    values, flat = values[: len(texts)], flat[: len(texts)]
    parents = torch.div(flat, steps.size(1), rounding_mode="floor")
    texts = torch.hstack([texts.index_select(0, parents), (flat - parents * steps.size(1)).unsqueeze(1)])
    cache.reorder(parents)
    return texts, values


STYLES = {
    "greedy_decode": (decode_text_by_text, decode_by_where, decode_into_a_table),
    "top_k_filter": (top_k_by_scatter, top_k_by_rank, top_k_by_loop),
    "top_p_filter": (top_p_shifted, top_p_ascending, top_p_by_inverse_order, top_p_by_loop),
    "step_positions": (steps_by_formula, steps_by_sum, steps_as_a_tuple),
    "positions_from_mask": (
        positions_by_loop,
        positions_filled,
        positions_times_mask,
        positions_of_those_before,
    ),
    "cached_causal_attention": (
        attend_by_package,
        attend_by_places,
        attend_one_after_another,
        attend_by_last_rows,
    ),
    "KVCache": (CacheOfLists, CacheInAModule, CacheThatCounts),
    "CachedSelfAttention": (ByLibrary, KeptUnsplit, OneProductForAllThree),
    "beam_step": (step_by_loop, step_by_divmod),
}

"""Chapter 8, second half: wrong answers that are right almost everywhere; none may get full marks."""

import torch

from mha_course.exercises import load
from mha_course.exercises.generation.beam_step import Step
from mha_course.exercises.generation.CachedSelfAttention import CachedSelfAttention
from mha_course.exercises.generation.KVCache import Cache
from mha_course.exercises.generation.styles import INFINITY


def instead(name, change):
    """Take the right answer, and let `change` put something else in place of its result."""

    def answer(*args):
        return change(load(name).reference(*args), *args)

    return answer


def decode_with_fixed(**ids):
    def answer(model, source, max_length, bos, eos):
        ids_now = {"bos": bos, "eos": eos} | ids
        return load("greedy_decode").reference(model, source, max_length, **ids_now)

    return answer


def decode_by_the_newest_token(model, source, max_length, bos, eos):
    target = torch.full((source.size(0), 1), bos)
    for _ in range(max_length):
        best = model(source, target)[:, -1].argmax(-1)
        target = torch.cat([target, best.masked_fill(target[:, -1] == eos, eos)[:, None]], dim=1)
        if (target[:, -1] == eos).all():
            break
    return target


def top_p_with_mask_as_factor(logits, p):
    kept = load("top_p_filter").reference(logits, p).isfinite()
    return logits * kept + torch.where(kept, 0.0, -INFINITY)


def top_p_in_two_dimensions(logits, p):
    rows = logits if logits.dim() == 2 else logits[None]
    ordered, order = rows.sort(dim=1, descending=True)
    before = ordered.softmax(dim=1).cumsum(dim=1) - ordered.softmax(dim=1)
    kept = torch.zeros_like(rows, dtype=torch.bool).scatter(1, order, before < p)
    return rows.masked_fill(~kept, -INFINITY).reshape(logits.shape)


class SharedWhereOfOneShape(Cache):
    kept = {}  # noqa: RUF012

    def append(self, key, value):
        if self.keys is None:
            self.kept.setdefault(key.shape, []).append(self)
            self.keys, self.values = self.kept[key.shape][0].keys, self.kept[key.shape][0].values
        return super().append(key, value)


class OnlyPermutations(Cache):
    def reorder(self, beams):
        if len(set(beams.tolist())) == self.keys.size(0):
            super().reorder(beams)
        else:
            super().reorder(beams.sort().values)


class LengthBeforeReordering(Cache):
    moved = 0

    def reorder(self, beams):
        super().reorder(beams)
        self.moved = 1

    @property
    def length(self):
        return super().length - self.moved


class InHalf(Cache):
    def append(self, key, value):
        return tuple(x.to(key.dtype) for x in super().append(key.float(), value.float()))


class RemembersTheWidth(CachedSelfAttention):
    """Keeps a mask for as many tokens as came first."""

    kept = None

    def mask(self, new, before, cache):
        if self.kept is None or self.kept.size(1) < before + new:
            self.kept = super().mask(new, before, cache)
        return self.kept[-new:, : before + new]


class CausalUnlessTwo(CachedSelfAttention):
    def mask(self, new, before, cache):
        return None if before and new == 2 else super().mask(new, before, cache)


class OnlyFloat32(CachedSelfAttention):
    def forward(self, x, cache=None):
        return super().forward(x.float(), cache)


class CacheIsTrueOrFalse(CachedSelfAttention):
    """Takes an empty cache for none."""

    def forward(self, x, cache=None):
        return super().forward(x, cache if cache is not None and cache.length else None)


class AppendsDetached(CachedSelfAttention):
    def keep(self, key, value, cache):
        return super().keep(key if cache is None else key.detach(), value, cache)


def reordering(when):
    class Reordering(Step):
        def reorder(self, cache, parents, tokens):
            if when(parents):
                cache.reorder(parents)

    return Reordering().__call__


SUBTLE = {
    "greedy_decode": [
        decode_with_fixed(bos=1),
        decode_with_fixed(eos=2),
        decode_by_the_newest_token,
        instead("greedy_decode", lambda ids, *args: ids.int()),
        instead("greedy_decode", lambda ids, *args: ids[:3]),
    ],
    "top_k_filter": [
        instead("top_k_filter", lambda kept, logits, k: kept if logits.dim() < 3 else logits),
        instead("top_k_filter", lambda kept, logits, k: kept.float()),
        instead("top_k_filter", lambda kept, logits, k: kept if k > 1 else logits),
        instead("top_k_filter", lambda kept, logits, k: kept.nan_to_num(neginf=-1e30)),
        instead("top_k_filter", lambda kept, logits, k: logits.view(-1).view(logits.shape) * 0 + kept),
        instead("top_k_filter", lambda kept, logits, k: kept.squeeze()),
    ],
    "top_p_filter": [
        top_p_with_mask_as_factor,
        top_p_in_two_dimensions,
        instead("top_p_filter", lambda kept, logits, p: kept.float()),
        instead("top_p_filter", lambda kept, logits, p: kept if p > 1e-3 else logits),
        instead("top_p_filter", lambda kept, logits, p: kept.squeeze()),
    ],
    "step_positions": [
        lambda prompt_length, steps: [0, prompt_length, prompt_length + 1, prompt_length + 2][:steps],
        lambda prompt_length, steps: [0, *range(max(prompt_length, 2), max(prompt_length, 2) + steps - 1)],
    ],
    "positions_from_mask": [
        instead("positions_from_mask", lambda ids, mask: ids if len(mask) < 5 else ids[:1].expand(mask.shape)),
        instead("positions_from_mask", lambda ids, mask: ids.int()),
        instead("positions_from_mask", lambda ids, mask: ids + ids.size(1) * ~mask.any(dim=1, keepdim=True)),
    ],
    "cached_causal_attention": [
        instead("cached_causal_attention", lambda both, q, k, v: both if q.dim() < 4 else (both[0] * 0, both[1])),
        instead("cached_causal_attention", lambda both, q, k, v: tuple(x.float() for x in both)),
        instead("cached_causal_attention", lambda both, q, k, v: (both[0], both[1].softmax(dim=-1))),
        instead("cached_causal_attention", lambda both, q, k, v: (both[1].detach() @ v, both[1])),
    ],
    "KVCache": [SharedWhereOfOneShape, OnlyPermutations, LengthBeforeReordering, InHalf],
    "CachedSelfAttention": [
        RemembersTheWidth,
        CausalUnlessTwo,
        OnlyFloat32,
        CacheIsTrueOrFalse,
        AppendsDetached,
    ],
    "beam_step": [
        reordering(lambda parents: len(parents.unique()) < len(parents)),
        reordering(lambda parents: len(parents.unique()) == len(parents)),
        reordering(lambda parents: len(parents) < 3),
    ],
}

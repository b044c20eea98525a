"""Exercise: causal self-attention that reads a text in pieces and computes each key and value once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mha_course.exercises.exercise import Call, Case, Exercise, Given, Misconception, Part, Property, given
from mha_course.exercises.properties import close, randn, sequence_first

SECTION = "transformer#the-key-value-cache"
CAUSAL, LAYER = "self_attention#causal-mask", "multi_head#the-layer"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class Cache:
    """What the learner's layer is given: our own cache, with the three things that it may use."""

    def __init__(self) -> None:
        self.k: Any = None
        self.v: Any = None

    @property
    def length(self) -> int:
        return 0 if self.k is None else int(self.k.size(-2))

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.k = key if self.k is None else torch.cat([self.k, key], dim=-2)
        self.v = value if self.v is None else torch.cat([self.v, value], dim=-2)
        return self.k, self.v

    def reorder(self, beams: Tensor) -> None:
        if self.k is not None:
            self.k, self.v = self.k.index_select(0, beams), self.v.index_select(0, beams)


class BegunCache(Cache):
    """A cache that holds one token from the start, all zeros, of the form that the layer's own keys and values have."""

    @property
    def length(self) -> int:
        return super().length or 1

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.k is None:
            super().append(torch.zeros_like(key[..., :1, :]), torch.zeros_like(value[..., :1, :]))
        return super().append(key, value)


def cases(rng: Generator) -> Iterator[Case]:
    for batch, length, d_model, heads in ((1, 3, 4, 2), (1, 5, 7, 1), (3, 5, 14, 2), (2, 7, 15, 3), (5, 1, 22, 11)):
        x = randn(rng, batch, length, d_model)
        yield layer(rng, "at once", heads, f"{describe(x, heads)}, an empty cache", Call((x, cache())))
    x = randn(rng, 2, 5, 14, dtype=torch.float64)
    yield layer(rng, "at once", 7, f"{describe(x, 7)}, an empty cache, float64", Call((x, cache())))
    x = sequence_first(randn(rng, 3, 2, 12))
    yield layer(rng, "at once", 3, f"{describe(x, 3)}, an empty cache, stored sequence first", Call((x, cache())))
    x = randn(rng, 7, 5, 6)
    x[1, :3] = x[0, :3]
    label = f"{describe(x, 2)}, an empty cache, two texts alike but for their last two tokens"
    yield layer(rng, "at once", 2, label, Call((x, cache())), holds=(no_token_sees_a_later_one,))

    for batch, pieces, d_model, heads in (
        (1, (1, 1), 4, 2),
        (1, (2, 1), 6, 3),
        (3, (3, 1, 1, 1), 14, 2),
        (2, (2, 2), 8, 2),
        (2, (3, 2, 5), 6, 1),
        (3, (1, 4), 10, 5),
    ):
        x = randn(rng, batch, sum(pieces), d_model)
        x[1:2, :-1] = x[0, :-1]
        label = f"{describe(x, heads)}, at once and in pieces of {listed(pieces)}"
        holds = (no_token_of_a_piece_sees_a_later_one,) * (batch > 1) + (as_at_once(pieces),)
        call = Call((x, *x.split(pieces, dim=1)))
        yield in_pieces(rng, "in pieces", heads, label, at_once_and_in_pieces, call, holds)
    x = randn(rng, 2, 3, 8)
    label = f"{describe(x, 2)}, in pieces of 2 and 1, and how many tokens the cache holds after each"
    yield in_pieces(rng, "in pieces", 2, label, lengths, Call((x[:, :2], x[:, 2:])))
    x, new = randn(rng, 3, 2, 10), randn(rng, 3, 1, 10)
    label = f"{describe(x, 2)}, then the cache's rows 2, 0 and 0, then one token more"
    yield in_pieces(rng, "in pieces", 2, label, beams_between, Call((x, torch.tensor([2, 0, 0]), new)))

    # All of one shape: a cache that outlives its text must show as such, and not as an error about shapes.
    x = randn(rng, 2, 11, 9)
    x[1, :3] = x[0, :3]
    label = f"{describe(x, 3)}, two texts of which the first three tokens are alike, without a cache"
    yield layer(rng, "without a cache", 3, label, Call((x,)), holds=(no_token_sees_a_later_one,))
    x, other = randn(rng, 2, 5, 9), randn(rng, 2, 4, 9)
    text = describe(x, 3)
    read = (Call((x,)), Call((other,)), Call((x,)))
    label = f"{text}, read twice, with another text in between"
    yield layer(rng, "without a cache", 3, label, *read, compare=False, holds=(same_again,))
    label = f"{text}, read by two layers with the same parameters, one after the other"
    script = given(by_two_layers)
    yield Case("without a cache", label, (Call((x,)),), through=script, compare=False, holds=(same_by_both,))
    label = f"{text}, with an empty cache and then without a cache"
    read_both_ways = (Call((x, cache())), Call((x,)))
    yield layer(rng, "without a cache", 3, label, *read_both_ways, compare=False, holds=(same_without,))
    texts = {"one": x, "other": x.flip(0)}
    in_turn = tuple(Call((texts[tag][:, n], cache(tag))) for n in (slice(3), slice(3, 5)) for tag in texts)
    label = "two batches of texts, piece by piece in turn, each with a cache of its own"
    yield layer(rng, "without a cache", 3, label, *in_turn)
    begun = given(BegunCache, Cache, args=())
    yield layer(rng, "without a cache", 3, f"{text}, a cache that holds one token of zeros", Call((x, begun)))

    for note, batch, calls_of in (
        ("", 2, lambda x: [Call((x, cache()), backward=True)]),
        (", in pieces of 3 and 2", 4, two_pieces),
    ):
        x = randn(rng, batch, 5, 12)
        yield layer(rng, "gradients", 2, f"{describe(x, 2)}{note}, with gradients", *calls_of(x))


def two_pieces(x: Tensor) -> list[Call]:
    return [Call((x[:, :3], cache())), Call((x[:, 3:], cache()), backward=True)]


def cache(tag: str = "") -> Given:
    return given(Cache, args=(), tag=tag)


def layer(
    rng: Generator,
    part: str,
    heads: int,
    label: str,
    *calls: Call,
    holds: tuple[Property, ...] = (),
    compare: bool = True,
) -> Case:
    x = calls[0].args[0]
    build, state = Call((x.size(-1), heads)), state_for(rng, x)
    tolerance = 1e-9 if x.dtype == torch.float64 else 1e-4
    return Case(part, label, calls, build, state, compare=compare, holds=holds, tolerance=tolerance)


def in_pieces(
    rng: Generator,
    part: str,
    heads: int,
    label: str,
    script: Callable[..., Any],
    call: Call,
    holds: tuple[Property, ...] = (),
) -> Case:
    """Make a case in which a script of ours drives the layer, with a cache of its own."""
    x = call.args[0]
    build = Call((x.size(-1), heads))
    return Case(part, label, (call,), build, state_for(rng, x), through=given(script, Cache), holds=holds)


def state_for(rng: Generator, x: Tensor) -> dict[str, Tensor]:
    """Draw projections that give scores of mixed size: some rows of weights are even, some nearly one-hot."""
    d_model = x.size(-1)
    return {
        f"{name}.{kind}": randn(rng, *shape, scale=scale, dtype=x.dtype)
        for name, size in zip(PROJECTIONS, (1.6, 1.6, 1.0, 1.0), strict=True)
        for kind, shape, scale in (("weight", (d_model, d_model), size / d_model**0.5), ("bias", (d_model,), 0.5))
    }


def describe(x: Tensor, heads: int) -> str:
    batch, length, d_model = x.shape
    tokens = f"{length} token{'s' * (length > 1)}"
    return f"batch {batch}, {tokens}, d_model {d_model}, {heads} head{'s' * (heads > 1)}"


def listed(numbers: tuple[int, ...]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def at_once_and_in_pieces(attention: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, *pieces: Tensor) -> Any:
        cache = Cache()
        return attention(x, Cache()), torch.cat([attention(piece, cache) for piece in pieces], dim=1)

    return run


def lengths(attention: Callable[..., Any]) -> Callable[..., Any]:
    def run(*pieces: Tensor) -> Any:
        cache, found = Cache(), []
        for piece in pieces:
            attention(piece, cache)
            found.append(cache.length)
        return torch.tensor(found)

    return run


def beams_between(attention: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, beams: Tensor, new: Tensor) -> Any:
        cache = Cache()
        attention(x, cache)
        cache.reorder(beams)
        return attention(new, cache)

    return run


def by_two_layers(attention: Callable[[int, int], Any]) -> Callable[..., Any]:
    def run(x: Tensor) -> Any:
        layers = []
        for _ in range(2):
            torch.manual_seed(1)
            layers.append(attention(9, 3))
        return tuple(layer(x) for layer in layers)

    return run


def equal(rule: str, evidence: str, find: Callable[[Sequence[Any]], tuple[Tensor, Tensor]]) -> Property:
    """Demand that two results are equal."""

    def broken(outputs: Sequence[Any]) -> str | None:
        one, other = find(outputs)
        return None if close(other, one) else evidence.format(change=f"{(other - one).abs().max():.2g}")

    return Property(rule, broken)


same_again = equal(
    "Without a cache nothing is left of an earlier call.",
    "the two results for one and the same text differ by {change}",
    lambda outputs: (outputs[0], outputs[2]),
)
same_by_both = equal(
    "A layer knows nothing of what another layer has read.",
    "the second layer's result differs from that of the first by {change}",
    lambda outputs: outputs[0],
)
same_without = equal(
    "A text that is read without a cache gives what it gives with an empty one.",
    "the two results differ by {change}",
    lambda outputs: (outputs[0], outputs[1]),
)


def _foresight(outputs: Sequence[Any]) -> str | None:
    one, other = outputs[0][:2, :3]
    if close(other, one):
        return None
    return f"two texts have the same first three tokens, but the results of these differ by {(other - one).abs().max():.2g}"


def _foresight_in_pieces(outputs: Sequence[Any]) -> str | None:
    one, other = outputs[0][1][:2, :-1]
    if close(other, one):
        return None
    return (
        "two texts differ in their last token alone, and in pieces the results of the tokens before it differ by "
        f"{(other - one).abs().max():.2g}"
    )


no_token_sees_a_later_one = Property("No token sees a later one.", _foresight)
no_token_of_a_piece_sees_a_later_one = Property("No token sees a later one.", _foresight_in_pieces)


def as_at_once(pieces: tuple[int, ...]) -> Property:
    ends = list(itertools.accumulate(pieces))

    def broken(outputs: Sequence[Any]) -> str | None:
        for token in range(ends[-1]):
            at_once, in_pieces = (found[:, token] for found in outputs[0])
            if not close(in_pieces, at_once):
                piece = next(i for i, end in enumerate(ends) if token < end)
                place = token - ends[piece] + pieces[piece]
                return (
                    f"token {token} of the text, which is token {place} of piece {piece} (all counted from 0), gets "
                    f"another result than at once; the two differ by {(in_pieces - at_once).abs().max():.2g}"
                )
        return None

    return Property("A text that is read in pieces gives the same as one that is read at once.", broken)


class CachedSelfAttention(nn.Module):
    """The layer in steps, for wrong answers to replace one of."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in PROJECTIONS)

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        query, key, value = map(self.split, self.project(x))
        before = 0 if cache is None else cache.length
        key, value = self.keep(key, value, cache)
        weights = self.weigh(query, key, self.mask(x.size(1), before, cache))
        return self.finish(self.merge(weights @ value))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def finish(self, x: Tensor) -> Tensor:
        return self.out_proj(x)

    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return (key, value) if cache is None else cache.append(key, value)

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return torch.ones(new, before + new, dtype=torch.bool).tril(before)

    def weigh(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.score(query, key)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(dim=-1)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)


# --- wrong answers -------------------------------------------------------------------------------------------------


class KeepsItsOwnCache(CachedSelfAttention):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.cache = Cache()

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x, self.cache if cache is None else cache)


class KeepsTheLastCache(CachedSelfAttention):
    cache: Any = None

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        self.cache = self.cache if cache is None else cache
        return super().forward(x, self.cache)


class KeepsTheFirstCache(CachedSelfAttention):
    cache: Any = None

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        self.cache = cache if self.cache is None else self.cache
        return super().forward(x, self.cache)


class SharedDefault(CachedSelfAttention):
    """Has one cache for all layers, which has read something before."""

    shared = Cache()
    shared.append(torch.ones(2, 3, 1, 3), torch.ones(2, 3, 1, 3))

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x, self.shared if cache is None else cache)


class CacheIgnored(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x)


class FilledNotRead(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        super().keep(key, value, cache)
        return key, value

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return super().mask(new, 0, cache)


class EmptyIsNone(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x, cache if cache is not None and cache.length else Cache())


class SeveralStartAnew(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        if cache is not None and x.size(1) > 1:
            cache.k = cache.v = None
        return super().forward(x, cache)


class FilledOnce(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return (cache.k, cache.v) if cache is not None and cache.length else super().keep(key, value, cache)

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if before else super().mask(new, before, cache)


class AppendedTwice(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        super().keep(key, value, cache)
        return super().keep(key, value, cache)

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return super().mask(new, before + (new if cache is not None else 0), cache)


class JoinedAfterAppending(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        if cache is None:
            return key, value
        keys, values = cache.append(key, value)
        return torch.cat([keys, key], dim=-2), torch.cat([values, value], dim=-2)

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return super().mask(new, before + (new if cache is not None else 0), cache)


class KeysAlone(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return super().keep(key, value, cache)[0], value


class KeysAsValues(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return super().keep(key, key, cache)


class ExchangedInTheCache(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return super().keep(value, key, cache)


class NewTokensBeforeTheOld(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        if cache is None or not cache.length:
            return super().keep(key, value, cache)
        old = cache.k, cache.v
        cache.append(key, value)
        return torch.cat([key, old[0]], dim=-2), torch.cat([value, old[1]], dim=-2)


class OnlyThePast(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        if cache is None or not cache.length:
            return super().keep(key, value, cache)
        old = cache.k, cache.v
        cache.append(key, value)
        return old

    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if before else super().mask(new, before, cache)


class AnswersForAll(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x if cache is None else cache.append(x, x)[0])


class NoMask(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None


class MaskOnlyWithoutPast(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if before else super().mask(new, before, cache)


class MaskOnlyWithCache(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if cache is None else super().mask(new, before, cache)


class MaskOnlyWithoutCache(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if cache is not None else super().mask(new, before, cache)


class LinedUpAtTheBeginning(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return torch.ones(new, before + new, dtype=torch.bool).tril()


class LinedUpAtTheBeginningUnlessOne(LinedUpAtTheBeginning):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return None if new == 1 else super().mask(new, before, cache)


class OneAhead(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return torch.ones(new, before + new, dtype=torch.bool).tril(before + 1)


class MaskOfTheNewAlone(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return super().mask(new, 0, cache)


class LengthOfTheNew(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        new = key.shape
        key, value = super().keep(key, value, cache)
        return key.reshape(new), value.reshape(new)


class MaskTransposed(CachedSelfAttention):
    def mask(self, new: int, before: int, cache: Any) -> Tensor | None:
        return torch.ones(new, before + new, dtype=torch.bool).triu(before)


class NoScale(CachedSelfAttention):
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-2, -1)


class ScaleByModelWidth(CachedSelfAttention):
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return query / math.sqrt(self.q_proj.out_features) @ key.transpose(-2, -1)


class ScaleByLength(CachedSelfAttention):
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return query / math.sqrt(key.size(-2)) @ key.transpose(-2, -1)


class SplitWithoutTranspose(CachedSelfAttention):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), self.num_heads, x.size(1), -1)


class MergeWithoutTranspose(CachedSelfAttention):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), x.size(2), -1)


class SplitAndMergeWithoutTranspose(SplitWithoutTranspose):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), x.size(2), -1)


class OneBigHead(CachedSelfAttention):
    def split(self, x: Tensor) -> Tensor:
        return x[:, None]


class NoOutputProjection(CachedSelfAttention):
    def finish(self, x: Tensor) -> Tensor:
        return x


class SoftmaxOverQueries(CachedSelfAttention):
    def weigh(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.score(query, key)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(dim=-2)


class KeysThroughQueryProjection(CachedSelfAttention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.q_proj(x), self.v_proj(x)


class NothingProjected(CachedSelfAttention):
    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x, x


class AcrossTheBatch(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return super().forward(x.transpose(0, 1), cache).transpose(0, 1)


class DetachedCache(CachedSelfAttention):
    def keep(self, key: Tensor, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        return super().keep(key.detach(), value.detach(), cache) if cache is not None else (key, value)


class DetachedWeights(CachedSelfAttention):
    def weigh(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        return super().weigh(query, key, mask).detach()


class NothingLearned(CachedSelfAttention):
    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        with torch.no_grad():
            return super().forward(x, cache)


MISCONCEPTIONS = (
    Misconception(
        "kv_cache_sticky",
        "A cache stays on the layer, and a later call finds it there. The first text comes out right; the second one still "
        "attends to the first, which nothing in its result shows at a glance. A layer's parameters belong to it, but a text "
        "belongs to the caller: who wants tokens to be remembered hands in a cache, and where none is handed in, none is "
        "left behind.",
        SECTION,
        (KeepsItsOwnCache, KeepsTheLastCache, KeepsTheFirstCache),
        ("https://github.com/rajveer43/VeloxQuant-MLX/issues/53", "https://github.com/Lightning-AI/litgpt/pull/1596"),
    ),
    Misconception(
        "kv_mutable_default",
        "The cache that stands in for a missing one is made once, for all calls and all layers. The default of an argument "
        "is evaluated when the function is *defined*, not when it's called; so `cache=SomeCache()` is one single cache, to "
        "which every call adds. (What stands in the body of a class is made once, too.) Take None for the default, and "
        "decide inside the function what that means.",
        SECTION,
        (SharedDefault,),
        ("https://github.com/Comfy-Org/ComfyUI/pull/12939",),
    ),
    Misconception(
        "cache_ignored",
        "The cache is not read: the new tokens see only one another. Attention has to go over everything that "
        "cache.append returns, which is all keys and values so far.",
        SECTION,
        (CacheIgnored, FilledNotRead),
    ),
    Misconception(
        "empty_cache_taken_for_none",
        "A cache that is handed in empty is treated as if there were none: the layer works with another one, or without, and "
        "the caller's stays empty. So it is empty in the next call too, and nothing is ever remembered. That a cache holds "
        "nothing *yet* is no reason not to fill it; whether there is one is asked with `is None`, which neither its length "
        "nor its truth value answers.",
        SECTION,
        (EmptyIsNone,),
        ("https://github.com/langchain-ai/langchain/pull/38441", "https://github.com/psf/cachecontrol/pull/195"),
    ),
    Misconception(
        "several_tokens_start_anew",
        "A piece of several tokens is taken for the beginning of a text, and the cache is emptied for it. Often several come "
        "first and the others one by one, but a long text is read in pieces too, and a dialogue goes on with whole "
        "sentences. Where a text begins is for the caller to say, who then hands in a new cache.",
        SECTION,
        (SeveralStartAnew,),
        ("https://github.com/abdelfattah-lab/xKV/pull/6",),
    ),
    Misconception(
        "filled_once",
        "The cache gets the first piece and none of those that follow, as the one for cross-attention does. In "
        "self-attention each piece brings new keys and values.",
        SECTION,
        (FilledOnce,),
    ),
    Misconception(
        "new_tokens_twice",
        "The new tokens are among the keys twice. append adds the new ones itself and returns all: call it once, and join "
        "nothing to its result.",
        SECTION,
        (AppendedTwice, JoinedAfterAppending),
    ),
    Misconception(
        "sizes_of_the_new_alone",
        "It works as long as nothing was kept, and then sizes no longer fit: one of them is taken from the new tokens that "
        "should be taken from all. Keys, values and the mask's columns have the length of the whole text so far; queries "
        "and the mask's rows have that of the new tokens. Are the values kept as well as the keys? Is anything reshaped, or "
        "any mask made, with the length of x, after append?",
        SECTION,
        (KeysAlone, MaskOfTheNewAlone, LengthOfTheNew),
        ("https://github.com/huggingface/candle/pull/3743",),
    ),
    Misconception(
        "keys_and_values_exchanged",
        "Keys and values have changed places, or the keys serve as values too. Both have the same shape here, so that nothing "
        "complains.",
        SECTION,
        (KeysAsValues, ExchangedInTheCache),
    ),
    Misconception(
        "new_tokens_in_front",
        "The new keys and values stand in front of the earlier ones, while the mask takes the last columns for the newest "
        "tokens.",
        SECTION,
        (NewTokensBeforeTheOld,),
    ),
    Misconception(
        "new_tokens_left_out",
        "The new tokens see what was kept before them and not themselves. A token's own key and value are among those that "
        "it may attend to.",
        SECTION,
        (OnlyThePast,),
    ),
    Misconception(
        "answers_for_all_tokens",
        "The result has a vector for every token so far. Asked for is one for each *new* token: the earlier ones have had "
        "theirs, and to compute them again is just what the cache is to save. A query is used once and not kept.",
        SECTION,
        (AnswersForAll,),
    ),
    Misconception(
        "no_mask",
        "Nothing is hidden. For a single new token that is right; where several come at once, the first must not see the "
        "others.",
        CAUSAL,
        (NoMask,),
    ),
    Misconception(
        "kv_chunk_not_causal",
        "The causal mask is there for the first piece, and missing once something has been kept. Then several new tokens "
        "are not hidden from one another. A single new token needs no mask, which is why it works token by token.",
        SECTION,
        (MaskOnlyWithoutPast,),
        ("https://github.com/mlx-node/mlx-node/pull/24",),
    ),
    Misconception(
        "mask_only_without_a_cache",
        "With a cache nothing is hidden, not even in the first piece. Either a mask is made only where there is no cache, or "
        "its edge is taken from the cache's length *after* append, which has the new tokens in it already: the triangle is "
        "then moved so far that it hides nothing.",
        SECTION,
        (MaskOnlyWithoutCache,),
        ("https://github.com/fla-org/flash-linear-attention/issues/766",),
    ),
    Misconception(
        "mask_only_with_a_cache",
        "The causal mask is made in the branch that has a cache, and without a cache nothing is hidden. But then the layer "
        "reads a whole text at once, as it does in training, and each token sees the one that it's to predict.",
        CAUSAL,
        (MaskOnlyWithCache,),
        ("https://github.com/facebookresearch/xformers/issues/103",),
    ),
    Misconception(
        "mask_lined_up_at_the_beginning",
        "The triangle of the mask starts at the first key, as is_causal=True does. But the new tokens are the last ones: "
        "their first one comes after everything that was kept, and may see all of it.",
        SECTION,
        (LinedUpAtTheBeginning, LinedUpAtTheBeginningUnlessOne),
        (
            "https://github.com/pytorch/pytorch/issues/144858",
            "https://github.com/pytorch/executorch/pull/21749",
        ),
    ),
    Misconception(
        "mask_one_too_far",
        "Each token sees its own successor too. The diagonal belongs to a token itself; what is right of it comes later.",
        CAUSAL,
        (OneAhead,),
    ),
    Misconception(
        "mask_transposed",
        "The triangle is the wrong way round: each token sees itself and what comes later. Rows are queries, columns are "
        "keys.",
        CAUSAL,
        (MaskTransposed,),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the width of a head.",
        "multi_head#scale",
        (NoScale,),
    ),
    Misconception(
        "scale_by_d_model",
        "The scores are divided by the root of d_model. A head's dot products have d_head terms only, so the scale is the "
        "root of d_head = d_model / num_heads. With one head the two are the same.",
        "multi_head#scale",
        (ScaleByModelWidth,),
        ("https://github.com/karpathy/ng-video-lecture/pull/6",),
    ),
    Misconception(
        "scale_by_length",
        "The scores are divided by the root of the number of tokens. What makes a dot product large is the number of its "
        "terms, the width of a head.",
        "multi_head#scale",
        (ScaleByLength,),
    ),
    Misconception(
        "split_no_transpose",
        "The projections are cut straight into (batch, head, length, d_head). Each head then holds pieces of several "
        "tokens. The feature axis must be cut first, and the head axis moved in a second step.",
        "multi_head#why-view-then-transpose",
        (SplitWithoutTranspose, SplitAndMergeWithoutTranspose),
        ("https://github.com/reczoo/FuxiCTR/issues/30",),
    ),
    Misconception(
        "merge_no_transpose",
        "The heads' results are reshaped straight into (batch, length, d_model). The head axis must first stand next to the "
        "features.",
        "multi_head#split-and-merge",
        (MergeWithoutTranspose,),
        ("https://github.com/jsbaan/transformer-from-scratch/pull/6",),
    ),
    Misconception(
        "one_big_head",
        "The width is never shared out among the heads: there is a single pattern of weights, whatever num_heads says.",
        "multi_head#what-one-head-cannot-do",
        (OneBigHead,),
    ),
    Misconception(
        "no_out_proj",
        "The last step is missing: out_proj, which combines what the heads have found.",
        "multi_head#output-projection",
        (NoOutputProjection,),
    ),
    Misconception(
        "wrong_projection",
        "The keys go through q_proj, or nothing goes through a projection. The three have different tasks: what to ask, what "
        "to be found by, and what to hand over.",
        "multi_head#three-projections",
        (KeysThroughQueryProjection, NothingProjected),
    ),
    Misconception(
        "softmax_over_queries",
        "softmax runs over the queries. Each query should share itself out among the keys, the last axis.",
        "self_attention#which-axis-does-softmax-run-along",
        (SoftmaxOverQueries,),
    ),
    Misconception(
        "attends_across_batch",
        "The first axis is treated as the sequence, so that the texts of a batch attend to one another. All is batch first "
        "here.",
        "multi_head#batch-first",
        (AcrossTheBatch,),
        ("https://github.com/om-ai-lab/OmDet/issues/19",),
    ),
    Misconception(
        "gradients_cut",
        "The result is right, but gradients are missing: keys and values are detached before they are kept, the weights "
        "have been cut off, or all is computed under no_grad. Whether gradients are wanted is for the caller to say.",
        "self_attention#gradients",
        (DetachedCache, DetachedWeights, NothingLearned),
    ),
)

EXERCISE = Exercise(
    name="CachedSelfAttention",
    chapter="generation",
    kind="class",
    minutes=30,
    parts=(
        Part("at once", 2, "be causal self-attention in several heads", CAUSAL),
        Part("in pieces", 3, "give the same, piece by piece, as if the text had been read at once", SECTION),
        Part("without a cache", 1, "keep nothing from one call to the next but what is in the caller's cache", SECTION),
        Part("gradients", 1, "let the right gradients reach the input and all four projections", LAYER),
    ),
    hints=(
        "Five tokens are read, first three, then two. Which queries, which keys and which values take part in the second "
        "call, and what shape have the scores?",
        "Only keys and values go through the cache: hand it the new ones, split into heads, and go on with what append "
        "returns. For the mask you need the number of queries and the number of keys; both are to be seen from the "
        "tensors. What should happen where cache is None?",
        "Project x and split it three times; if there is a cache, key and value become what cache.append(key, value) "
        "returns; attend as in cached_causal_attention, with as many rows as there are queries and as many columns as there "
        "are keys now; merge; out_proj. Put nothing on self in forward.",
    ),
    cases=cases,
    reference=CachedSelfAttention,
    misconceptions=MISCONCEPTIONS,
    results=("results at once", "results in pieces"),
    imports=("soft_addressing", "self_attention"),
)

"""Exercise: keep the keys and values of all tokens so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import cache
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import randn

SECTION, BEAMS = "transformer#the-key-value-cache", "transformer#beams"
LONG = 1091  # tokens: more than any round number that somebody might make room for


def cases(rng: Generator) -> Iterator[Case]:
    # All of one shape: a memory that all caches share must show as such, and not as an error about shapes.
    first = Call(pair(rng, 2, 3, 2, 5, 3), method="append")
    yield Case("a new cache", "batch 2, 3 heads, key width 5, value width 3, 2 tokens", (first,), Call(()))
    yield Case(
        "a new cache",
        "a new cache",
        (Call(()),),
        Call(()),
        through=given(length_of),
        holds=(starts_empty,),
        compare=False,
    )
    call = Call(pair(rng, 2, 3, 4, 5, 3))
    for made, script, rule in (("before", two_made_before, other_stays_empty), ("after", two_made_after, stays_full)):
        label = f"two caches, the second made {made} the first gets 4 tokens"
        yield Case("a new cache", label, (call,), through=given(script), holds=(rule,), compare=False)

    for batch, heads, d_head, d_value, pieces, note in (
        (1, 2, 3, 3, (1, 1), ""),
        (2, 3, 5, 7, (3, 1, 1), ""),
        (3, 2, 2, 2, (2, 5, 1), ""),
        (2, 5, 7, 3, (2, 2, 2), ", pieces of one length"),
        (5, 1, 3, 2, (1,), ""),
        (1, 3, 2, 5, (11, 7, 5), ""),
        (3, 3, 1, 1, (3, 3), ", as many tokens as heads and texts"),
        (2, 1, 3, 2, (1,) * 7, ", one token at a time"),
    ):
        shapes = f"batch {batch}, {heads} head{'s' * (heads > 1)}, key width {d_head}, value width {d_value}"
        calls = [appended(rng, batch, heads, new, d_head, d_value) for new in pieces]
        yield Case("append", f"{shapes}, pieces of {listed(pieces)} tokens{note}", with_lengths(calls), Call(()))
    calls = [appended(rng, 2, 3, new, 4, 4, torch.float64) for new in (2, 1)]
    yield Case(
        "append", "batch 2, 3 heads, float64, pieces of 2 and 1 tokens", with_lengths(calls), Call(()), tolerance=1e-9
    )
    calls = [appended(rng, 3, 1, new, 4, 4, torch.float16) for new in (2, 1)]
    yield Case("append", "batch 3, 1 head, float16, pieces of 2 and 1 tokens", with_lengths(calls), Call(()))
    calls = [appended(rng, 1, 5, new, 4, 4) for new in (2, 3)]
    calls[1] = Call(calls[1].args, method="append", backward=True)
    yield Case("append", "batch 1, 5 heads, pieces of 2 and 3 tokens, with gradients", tuple(calls), Call(()))
    call = Call((*pair(rng, 1, 5, 2, 4, 4), *pair(rng, 1, 5, 3, 4, 4)), backward=True)
    label = "batch 1, 5 heads, gradients of the first of two pieces, through what comes back with the second"
    yield Case("append", label, (call,), Call(()), through=given(one_after_the_other))
    call = Call(pair(rng, 1, 1, LONG, 1, 1))
    label = f"batch 1, 1 head, widths 1, a piece of {LONG - 67} tokens and then 67 tokens one at a time"
    yield Case("append", label, (call,), Call(()), through=given(long_text), holds=(nothing_forgotten,), compare=False)
    for note, other in (("", (2, 2, 2, 3, 3)), (", of one shape", (1, 2, 2, 3, 2))):
        tensors = (*pair(rng, 1, 2, 2, 3, 2), *pair(rng, *other))
        for which, name in enumerate(("first", "second")):
            label = f"two caches that are filled in turn{note}, the {name} of them"
            yield Case("append", label, (Call((*tensors, which)),), through=given(in_turn))

    for part, batch, heads, tokens, rows in (
        ("reorder", 2, 3, 2, (1, 0)),
        ("reorder", 3, 2, 5, (2, 0, 1)),
        ("reorder", 3, 5, 2, (1, 1, 0)),
        ("reorder", 5, 2, 3, (4, 4, 1, 0, 0)),
        ("reorder", 4, 4, 4, (1, 2, 3, 0)),
        ("more rows, or fewer", 1, 3, 2, (0, 0, 0)),
        ("more rows, or fewer", 5, 3, 2, (3, 1)),
        ("more rows, or fewer", 2, 3, 5, (1, 0, 1)),
    ):
        label = f"batch {batch}, {heads} heads, {tokens} tokens, then rows {listed(rows)}, then one token more"
        call = Call((*numbered(batch, heads, tokens), torch.tensor(rows), *numbered(len(rows), heads, 1)))
        yield Case(part, label, (call,), Call(()), through=given(reordered), holds=(come_from(rows),))
    one, two, three = (pair(rng, 3, 2, new, 3, 2) for new in (2, 1, 3))
    call = Call((*one, torch.tensor([2, 2, 0]), *two, torch.tensor([1, 0, 2]), *three))
    yield Case("reorder", "batch 3, 2 heads, reordered twice", (call,), Call(()), through=given(reordered_twice))


def numbered(batch: int, heads: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Number texts in thousands, heads in hundreds and tokens in tens, so that every number tells its origin."""
    text, head, token = (torch.arange(size, dtype=torch.float32) for size in (batch, heads, tokens))
    origin = 1000 * (text[:, None, None, None] + 1) + 100 * head[:, None, None] + 10 * token[:, None]
    return origin + torch.arange(3), origin + torch.arange(2) + 0.5


def come_from(rows: tuple[int, ...]) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        for name, kept in zip(("keys", "values"), outputs[0][:2], strict=True):
            for row, text in enumerate(rows):
                found = int(kept[row, 0, 0, 0]) // 1000 - 1
                if found != text:
                    return f"row {row} should be what row {text} was, but its {name} are those of row {found}"
        return None

    return Property("Row i becomes what row beams[i] was: beams[i] says where it comes from.", broken)


def pair(
    rng: Generator, batch: int, heads: int, new: int, d_head: int, d_value: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    return randn(rng, batch, heads, new, d_head, dtype=dtype), randn(rng, batch, heads, new, d_value, dtype=dtype)


def appended(
    rng: Generator, batch: int, heads: int, new: int, d_head: int, d_value: int, dtype: torch.dtype = torch.float32
) -> Call:
    return Call(pair(rng, batch, heads, new, d_head, d_value, dtype), method="append")


def with_lengths(calls: list[Call]) -> tuple[Call, ...]:
    """Ask for the length before the first piece and after each."""
    length = Call((), method="length")
    return (length, *(call for append in calls for call in (append, length)))


def listed(numbers: tuple[int, ...]) -> str:
    if len(numbers) > 5:
        return f"{numbers[0]}, {numbers[1]}, …"
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def length_of(cache: Any) -> Callable[..., Any]:
    return lambda: cache.length


def two_made_before(cache: Callable[[], Any]) -> Callable[..., Any]:
    def run(key: Tensor, value: Tensor) -> Any:
        one, other = cache(), cache()
        one.append(key, value)
        return other.length

    return run


def two_made_after(cache: Callable[[], Any]) -> Callable[..., Any]:
    def run(key: Tensor, value: Tensor) -> Any:
        one = cache()
        one.append(key, value)
        before = one.length
        cache()
        return before, one.length

    return run


def in_turn(cache: Callable[[], Any]) -> Callable[..., Any]:
    def run(key: Tensor, value: Tensor, other_key: Tensor, other_value: Tensor, which: int) -> Any:
        one, other = cache(), cache()
        one.append(key, value)
        other.append(other_key, other_value)
        return (one.append(key, value), other.append(other_key, other_value))[which]

    return run


def one_after_the_other(cache: Any) -> Callable[..., Any]:
    def run(key: Tensor, value: Tensor, next_key: Tensor, next_value: Tensor) -> Any:
        cache.append(key, value)
        return cache.append(next_key, next_value)

    return run


def long_text(cache: Any) -> Callable[..., Any]:
    """Read a long piece and then token by token; return how many keys and values come back in the end."""

    def run(key: Tensor, value: Tensor) -> Any:
        first = key.size(-2) - 67
        kept = cache.append(key[..., :first, :], value[..., :first, :])
        for i in range(first, key.size(-2)):
            kept = cache.append(key[..., i : i + 1, :], value[..., i : i + 1, :])
        return [x.size(-2) for x in kept] if isinstance(kept, (list, tuple)) else kept

    return run


def _forgotten(outputs: Sequence[Any]) -> str | None:
    for name, found in zip(("keys", "values"), outputs[0], strict=True):
        if found < LONG:
            return f"of {LONG} {name} only {found} come back with the last token"
    return None


def _not_empty(outputs: Sequence[Any]) -> str | None:
    return None if outputs[0] == 0 else f"a cache that has just been made holds {int(outputs[0])} tokens"


def _filled_by_another(outputs: Sequence[Any]) -> str | None:
    found = int(outputs[0])
    return None if found == 0 else f"what one cache was given is found in the other, which holds {found} tokens"


def _emptied_by_another(outputs: Sequence[Any]) -> str | None:
    before, after = outputs[0]
    if after == before:
        return None
    return f"when another cache is made, the first one holds {after} tokens instead of {before}"


starts_empty = Property("A new cache is empty.", _not_empty)
other_stays_empty = Property("Each cache has a memory of its own.", _filled_by_another)
nothing_forgotten = Property("A cache forgets nothing, however long the text is.", _forgotten)
stays_full = Property("Each cache has a memory of its own.", _emptied_by_another)


def reordered(cache: Any) -> Callable[..., Any]:
    def run(key: Tensor, value: Tensor, beams: Tensor, new_key: Tensor, new_value: Tensor) -> Any:
        cache.append(key, value)
        cache.reorder(beams)
        keys, values = cache.append(new_key, new_value)
        return keys, values, cache.length

    return run


def reordered_twice(cache: Any) -> Callable[..., Any]:
    def run(*given: Tensor) -> Any:
        cache.append(*given[:2])
        cache.reorder(given[2])
        cache.append(*given[3:5])
        cache.reorder(given[5])
        return cache.append(*given[6:])

    return run


class Reference(cache.KVCache):
    forward = cache.KVCache.append  # from which the grader takes the names of the arguments


# --- wrong answers -------------------------------------------------------------------------------------------------


class Cache:
    """A cache in steps that are right, for wrong answers to replace one of."""

    axis = -2

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else int(self.keys.size(-2))

    def append(self, key: Tensor, value: Tensor) -> Any:
        self.keys, self.values = self.join(self.keys, key), self.join(self.values, value)
        return self.keys, self.values

    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([old, new], dim=self.axis)

    def reorder(self, beams: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, beams), self.values.index_select(0, beams)


class ReturnsTheNew(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        super().append(key, value)
        return key, value


class ReturnsTheOld(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        old = self.keys, self.values
        super().append(key, value)
        return old


class ReturnsNothing(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        super().append(key, value)


class KeepsTheLast(Cache):
    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new


class KeepsTheFirst(Cache):
    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else old


class AlongTheHeads(Cache):
    axis = 1


class AlongTheBatch(Cache):
    axis = 0


class AlongTheWidth(Cache):
    axis = -1


class NewOnesFirst(Cache):
    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return new if old is None else torch.cat([new, old], dim=-2)


class ValuesFirst(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        return super().append(key, value)[::-1]


class KeysTwice(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        return super().append(key, key)


class ValuesBehindKeys(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        old = self.keys
        self.keys, self.values = self.join(old, key), self.join(old, value)
        return self.keys, self.values


class OneLess(Cache):
    """Gives the position of the last token instead of the number of tokens."""

    @property
    def length(self) -> int:
        return max(0, super().length - 1)


class CountsCalls(Cache):
    calls = 0

    def append(self, key: Tensor, value: Tensor) -> Any:
        self.calls += 1
        return super().append(key, value)

    @property
    def length(self) -> int:
        return self.calls


class CountsHeads(Cache):
    @property
    def length(self) -> int:
        return 0 if self.keys is None else int(self.keys.size(1))


class CountsTexts(Cache):
    @property
    def length(self) -> int:
        return 0 if self.keys is None else int(self.keys.size(0))


class CountsTheLastPiece(Cache):
    last = 0

    def append(self, key: Tensor, value: Tensor) -> Any:
        self.last = key.size(-2)
        return super().append(key, value)

    @property
    def length(self) -> int:
        return self.last


class EmptyHasNoLength(Cache):
    @property
    def length(self) -> int:
        return int(self.keys.size(-2))


class LengthIsAMethod:
    def __init__(self) -> None:
        self.cache = Cache()
        self.append, self.reorder = self.cache.append, self.cache.reorder

    def length(self) -> int:
        return self.cache.length


class OneForAll(Cache):
    """Stands for a memory that all caches share, and that earlier ones have left something in."""

    def __init__(self) -> None:
        self.keys, self.values = torch.zeros(2, 3, 1, 5), torch.zeros(2, 3, 1, 3)

    @property
    def length(self) -> int:
        return 7


class EmptiedByTheNext(Cache):
    shared: list[Any] = []  # noqa: RUF012 (the slip itself)

    def __init__(self) -> None:
        type(self).shared = [None, None]

    def append(self, key: Tensor, value: Tensor) -> Any:
        kept = type(self).shared
        kept[:] = [self.join(kept[0], key), self.join(kept[1], value)]
        return kept[0], kept[1]

    @property
    def length(self) -> int:
        kept = type(self).shared[0]
        return 0 if kept is None else int(kept.size(-2))

    def reorder(self, beams: Tensor) -> None:
        type(self).shared[:] = [kept.index_select(0, beams) for kept in type(self).shared]


class Detached(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        return super().append(key.detach(), value.detach())


class DetachedOnceKept(Cache):
    def append(self, key: Tensor, value: Tensor) -> Any:
        kept = super().append(key, value)
        self.keys, self.values = kept[0].detach(), kept[1].detach()
        return kept


class OnlyTheLast(Cache):
    def join(self, old: Tensor | None, new: Tensor) -> Tensor:
        return super().join(old, new)[..., -32:, :]


class FixedSize(Cache):
    size = 16

    def append(self, key: Tensor, value: Tensor) -> Any:
        if self.keys is None:
            self.keys = torch.zeros(*key.shape[:2], self.size, key.size(-1))
            self.values = torch.zeros(*value.shape[:2], self.size, value.size(-1))
            self.used = 0
        end = self.used + key.size(-2)
        self.keys[:, :, self.used : end] = key
        self.values[:, :, self.used : end] = value
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.used


class FixedSizeOfTheRightType(FixedSize):
    def append(self, key: Tensor, value: Tensor) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(key.dtype)
        try:
            return super().append(key, value)
        finally:
            torch.set_default_dtype(before)


class WholeBufferReturned(FixedSizeOfTheRightType):
    def append(self, key: Tensor, value: Tensor) -> Any:
        super().append(key, value)
        return self.keys, self.values


class OnlyKeysReordered(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys = self.keys.index_select(0, beams)


class OnlyValuesReordered(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.values = self.values.index_select(0, beams)


class ReorderedTheOtherWay(Cache):
    def reorder(self, beams: Tensor) -> None:
        keys, values = self.keys.clone(), self.values.clone()
        keys[beams], values[beams] = self.keys[: len(beams)].clone(), self.values[: len(beams)].clone()
        self.keys, self.values = keys, values


class ReorderedByRank(Cache):
    def reorder(self, beams: Tensor) -> None:
        super().reorder(beams.argsort())


class HeadsReordered(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(1, beams), self.values.index_select(1, beams)


class TokensReordered(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(2, beams), self.values.index_select(2, beams)


class NotKept(Cache):
    def reorder(self, beams: Tensor) -> Any:
        self.keys.index_select(0, beams)
        self.values.index_select(0, beams)


class ReturnedNotKept(Cache):
    def reorder(self, beams: Tensor) -> Any:
        return self.keys.index_select(0, beams), self.values.index_select(0, beams)


class MovedInPlace(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys[beams] = self.keys[: len(beams)].clone()
        self.values[beams] = self.values[: len(beams)].clone()


class RowsOfTheCaller(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys[:] = self.keys[beams]
        self.values[:] = self.values[beams]


class SameNumberOfRows(Cache):
    def reorder(self, beams: Tensor) -> None:
        self.keys, self.values = self.keys.clone(), self.values.clone()
        self.keys[:] = self.keys[beams]
        self.values[:] = self.values[beams]


class RowByRowOfTheCaller(Cache):
    def reorder(self, beams: Tensor) -> None:
        for row, beam in enumerate(beams.tolist()):
            self.keys[row], self.values[row] = self.keys[beam], self.values[beam]


class RowByRowInPlace(RowByRowOfTheCaller):
    def reorder(self, beams: Tensor) -> None:
        self.keys, self.values = self.keys.clone(), self.values.clone()
        super().reorder(beams)


MISCONCEPTIONS = (
    Misconception(
        "shared_by_all_caches",
        "All caches share one memory. What is written in the body of a class, or as the default of an argument, is made "
        "once, when the class is defined, and belongs to all its objects; every layer, and every later text, then finds "
        "what the others left there. What each object is to have for itself is made in __init__ and put on self.",
        SECTION,
        (OneForAll, EmptiedByTheNext),
        ("https://github.com/Comfy-Org/ComfyUI/pull/12939",),
    ),
    Misconception(
        "only_the_new_returned",
        "append returns what it was handed, and not what has been kept. The new query is to be compared with the keys of "
        "*all* tokens so far; that is what the cache is for.",
        SECTION,
        (ReturnsTheNew,),
    ),
    Misconception(
        "only_the_old_returned",
        "append returns what was kept before the new tokens came. A new token may see itself, so its own key and value have "
        "to be among those that come back.",
        SECTION,
        (ReturnsTheOld,),
    ),
    Misconception(
        "nothing_returned",
        "append keeps what it is handed, but returns nothing. The attention that calls it goes on with what it returns.",
        SECTION,
        (ReturnsNothing,),
    ),
    Misconception(
        "earlier_tokens_overwritten",
        "The new keys and values take the place of the earlier ones, where they should be added behind them.",
        SECTION,
        (KeepsTheLast,),
    ),
    Misconception(
        "filled_once",
        "Only the first piece is kept. A cache for cross-attention works like that, as the text that was read does not "
        "change. Self-attention gets new tokens at each step.",
        SECTION,
        (KeepsTheFirst,),
    ),
    Misconception(
        "joined_along_the_wrong_axis",
        "The pieces are joined along another axis than that of the tokens: in (batch, head, token, width) it's the last but "
        "one. With a single token in each piece that may even run without an error, and there are then more heads, more "
        "texts or wider keys instead of more tokens.",
        SECTION,
        (AlongTheHeads, AlongTheBatch, AlongTheWidth),
    ),
    Misconception(
        "new_tokens_in_front",
        "The new keys and values are put in front. Attention itself would not mind, as long as both are in the same order; "
        "but a causal mask counts on the order of the text, with the newest token last.",
        SECTION,
        (NewOnesFirst,),
    ),
    Misconception(
        "keys_and_values_exchanged",
        "Keys and values have changed places on the way, or keys are kept in the place of values. They often have one "
        "width, so that nothing complains.",
        SECTION,
        (ValuesFirst, KeysTwice, ValuesBehindKeys),
    ),
    Misconception(
        "length_is_not_tokens",
        "length counts something else than tokens: calls, the last piece, heads or texts; or it's the position of the last "
        "token, which is one less. A piece may have any number of tokens, and the length is the size of the token axis, the "
        "last but one; positions and masks are made from it.",
        SECTION,
        (CountsCalls, CountsTheLastPiece, CountsHeads, CountsTexts, OneLess),
    ),
    Misconception(
        "empty_cache_has_no_length",
        "An empty cache fails when it's asked for its length. It holds no tokens, so its length is 0; the first piece needs "
        "to know that.",
        SECTION,
        (EmptyHasNoLength,),
    ),
    Misconception(
        "length_is_a_method",
        "length has to be called, as cache.length(). Asked for is a property, which reads like an attribute; that's what "
        "the decorator @property above it does. Written without the parentheses it would give the method itself.",
        SECTION,
        (LengthIsAMethod,),
    ),
    Misconception(
        "of_fixed_size",
        "Room was made in advance: tensors of zeros, of a size (and of a number type) that was guessed. Fast "
        "implementations do so, and then have to be told the greatest length and the type, and to hand out only the part "
        "that is filled. Here nothing is known beforehand; the cache grows with the text and keeps the type of its input.",
        SECTION,
        (FixedSize, FixedSizeOfTheRightType, WholeBufferReturned),
        ("https://github.com/ml-explore/mlx-lm/pull/1673",),
    ),
    Misconception(
        "earliest_tokens_forgotten",
        "Only a fixed number of the newest tokens is kept; with a longer text the beginning is lost, and nothing complains. "
        "There are models whose attention reaches back no further than that. This cache doesn't know its model, and has to "
        "keep everything; besides, a length that stands still makes wrong positions and masks.",
        SECTION,
        (OnlyTheLast,),
    ),
    Misconception(
        "detached",
        "What is kept is cut off from what it was made of, so that no gradient passes through the cache, or none to earlier "
        "pieces. In writing nobody "
        "asks for gradients; but that is for the caller to say, with torch.no_grad(). A cache keeps what it's given.",
        SECTION,
        (Detached, DetachedOnceKept),
    ),
    Misconception(
        "only_one_of_the_two_reordered",
        "Only the keys, or only the values, are reordered. A text then looks with the keys of its own past, and fetches the "
        "values of another's.",
        BEAMS,
        (OnlyKeysReordered, OnlyValuesReordered),
    ),
    Misconception(
        "reordered_the_other_way",
        "The rows move in the opposite direction: row i was moved *to* place beams[i], or the numbers were taken for "
        "ranks. beams[i] says where row i comes *from*. For an exchange of two rows that is the same; where one row goes "
        "on twice, the other way can't even be carried out.",
        BEAMS,
        (ReorderedTheOtherWay, ReorderedByRank, MovedInPlace),
    ),
    Misconception(
        "wrong_axis_reordered",
        "Heads, or tokens, are put into another order, where the texts should be: these stand along axis 0.",
        BEAMS,
        (HeadsReordered, TokensReordered),
        ("https://github.com/huggingface/transformers/pull/2292",),
    ),
    Misconception(
        "reordered_but_not_kept",
        "reorder has no lasting effect: the reordered tensors are made, and perhaps returned, but not put on self. Indexing "
        "and index_select change nothing; they make new tensors.",
        BEAMS,
        (NotKept, ReturnedNotKept),
    ),
    Misconception(
        "number_of_rows_fixed",
        "The reordered rows are written into the old tensor. That has room for as many rows as before, while there may be "
        "more beams than there were texts (at the beginning there is one), or fewer. And it may be the very tensor that the "
        "caller handed to append, who then finds it changed. Put a new tensor in its place.",
        BEAMS,
        (SameNumberOfRows, RowsOfTheCaller),
    ),
    Misconception(
        "rows_overwritten_too_early",
        "The rows are copied one after the other within one tensor. A row that has been overwritten may still be needed: "
        "when rows 0 and 1 are to be exchanged, row 0 is gone by the time row 1 wants it. And if it's the tensor that was "
        "handed to append, the caller finds it changed. Make a new tensor of all rows at once.",
        BEAMS,
        (RowByRowInPlace, RowByRowOfTheCaller),
    ),
)

EXERCISE = Exercise(
    name="KVCache",
    chapter="generation",
    kind="class",
    minutes=15,
    parts=(
        Part("a new cache", 1, "start empty, with a memory of its own", SECTION),
        Part(
            "append",
            2,
            "keep all keys and values, in the order of the text, and return them; length counts tokens",
            SECTION,
        ),
        Part("reorder", 1, "make row i what row beams[i] was, keys and values alike", BEAMS),
        Part("more rows, or fewer", 1, "take as many rows from reorder as beams has entries", BEAMS),
    ),
    hints=(
        "Keys of three tokens are kept, (batch, head, 3, width); those of one more token come. Which shape must the result "
        "have, and which axis grows?",
        "What does a cache hold before the first piece, and what is its length then? And for reorder: x[beams] takes rows "
        "of a tensor in a new order, as many as beams has entries.",
        "In __init__ both are None. append: the new ones themselves if nothing is kept, else torch.cat of old and new along "
        "dim=-2; return both. length is a property: 0, or the size of that axis. reorder: index both along axis 0, and put "
        "the results on self.",
    ),
    cases=cases,
    reference=Reference,
    misconceptions=MISCONCEPTIONS,
    results=("keys", "values", "length"),
    imports=("soft_addressing", "self_attention"),
    keeps_state=True,
)

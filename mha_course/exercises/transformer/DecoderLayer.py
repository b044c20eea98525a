"""Exercise: masked self-attention, cross-attention and feed-forward, each followed by Add & Norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course import decoder
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.multi_head.MultiHeadAttention import state_for as attention_state
from mha_course.exercises.properties import close, ragged_mask, randn, unchanged
from mha_course.self_attention import causal_mask, decoder_mask, padding_mask

SECTION, CROSS = "transformer#the-decoder-layer", "transformer#from-memory-to-keys-and-values"
MASKS, AHEAD = "transformer#who-may-ask-whom", "transformer#masked-self-attention"
NORM, RESIDUAL = "encoder#post-norm-and-pre-norm", "encoder#residual-path"
SLIPS, DROPOUT, FORWARD = "encoder#slips-around-a-norm", "encoder#dropout", "encoder#feed-forward"
GRADIENTS = "self_attention#gradients"
NEARLY_ALL = 0.9999999  # exactly 1 would divide 0 by 0 in a dropout written by hand


def cases(rng: Generator) -> Iterator[Case]:
    yield from _layer_cases(rng)
    yield from _mask_cases(rng)
    padding = padding_mask(torch.tensor([3, 2]), 3)
    for train, target, source, masks, label in (
        (False, 3, 5, (), "no masks"),
        (False, 5, 3, (causal_mask(5), padding), "both masks"),
        (True, 5, 3, (causal_mask(5), padding), "both masks, training mode"),
        (
            True,
            3,
            3,
            (causal_mask(3), padding_mask(torch.tensor([3, 0]), 3)),
            "a source that is all padding, training mode",
        ),
    ):
        call = Call(_inputs(rng, 2, target, source, 14, *masks), backward=True)
        yield _case(rng, "gradients", f"{label}, with gradients", call, train=train)
    yield from _dropout_cases(rng)


def _layer_cases(rng: Generator) -> Iterator[Case]:
    x, memory = _inputs(rng, 2, 3, 5, 14)
    yield _case(
        rng, "layer", "then another memory", Call((x, memory)), Call((x, randn(rng, 2, 5, 14))), holds=(reads_memory,)
    )
    plain = {"norm3.weight": torch.ones(14), "norm3.bias": torch.zeros(14)}
    label = "norm3 with scale 1 and shift 0"
    yield _case(rng, "layer", label, Call((x, memory)), state=plain, holds=(normalised_last,))
    silent = state_for(rng, 14, 11)
    for name in ("self_attn.out_proj", "cross_attn.out_proj", "ffn.2"):
        for kind in ("weight", "bias"):
            silent[f"{name}.{kind}"] = torch.zeros_like(silent[f"{name}.{kind}"])
    label = "parameters with which every sublayer returns zeros"
    yield _case(rng, "layer", label, Call((x, memory)), state=silent, holds=(only_norms_left(PATH, x, silent),))
    later = torch.cat([x[:, :-1], randn(rng, 2, 1, 14)], dim=1)
    label = "no mask, then another last token"
    yield _case(rng, "layer", label, Call((x, memory)), Call((later, memory)), holds=(hides_nothing,))
    others = torch.cat([x[:1], randn(rng, 1, 3, 14)]), torch.cat([memory[:1], randn(rng, 1, 5, 14)])
    label = "then another second example"
    yield _case(rng, "layer", label, Call((x, memory)), Call(others), holds=(examples_apart,))
    for batch, target, source, d_model, heads, d_ff in (
        (1, 2, 3, 4, 2, 7),
        (1, 1, 1, 6, 3, 5),
        (2, 3, 5, 14, 2, 11),
        (3, 5, 2, 15, 3, 7),
    ):
        yield _case(rng, "layer", "", Call(_inputs(rng, batch, target, source, d_model)), sizes=(d_model, heads, d_ff))
    yield _case(rng, "layer", "the memory of as many tokens as the target", Call(_inputs(rng, 2, 5, 5, 14)))
    calls = [Call(_inputs(rng, *size, 14)) for size in ((2, 3, 5), (2, 3, 5), (3, 5, 2), (1, 1, 1))]
    yield _case(rng, "layer", "one layer called again with other lengths and batches", *calls)
    x, memory = (value.double() for value in _inputs(rng, 2, 3, 5, 14))
    state = {name: value.double() for name, value in state_for(rng, 14, 11).items()}
    yield Case(
        "layer", f"{_describe(x, memory, 2)}, float64", (Call((x, memory)),), Call((14, 2, 11)), state, tolerance=1e-8
    )


def _mask_cases(rng: Generator) -> Iterator[Case]:
    x, memory = _inputs(rng, 2, 5, 7, 14)
    later = torch.cat([x[:, :3], randn(rng, 2, 2, 14)], dim=1)
    calls = Call((x, memory, causal_mask(5))), Call((later, memory, causal_mask(5)))
    yield _case(rng, "masks", "a causal self_mask, then two other last tokens", *calls, holds=(sees_no_later_token,))
    lengths = torch.tensor([4, 4])
    padding = padding_mask(lengths, 7)
    other = torch.cat([memory[:, :4], randn(rng, 2, 3, 14, scale=3)], dim=1)
    calls = Call((x, memory, None, padding)), Call((x, other, None, padding))
    label = "a memory_mask for 3 of 7 source tokens, then other ones there"
    yield _case(rng, "masks", label, *calls, holds=(sees_no_padding,))
    x, memory = _inputs(rng, 2, 5, 5, 14)
    other = torch.cat([memory[:, :-1], randn(rng, 2, 1, 14, scale=3)], dim=1)
    calls = Call((x, memory, causal_mask(5))), Call((x, other, causal_mask(5)))
    label = "a causal self_mask, no memory_mask, then another last source token"
    yield _case(rng, "masks", label, *calls, holds=(whole_source,))
    for target, source, self_mask, memory_mask, label in (
        (5, 5, causal_mask(5), padding_mask(torch.tensor([5, 2]), 5), "both masks, source and target equally long"),
        (
            5,
            3,
            decoder_mask(torch.tensor([5, 2]), 5),
            padding_mask(torch.tensor([3, 1]), 3),
            "self_mask (batch, 1, target, target)",
        ),
        (
            3,
            3,
            ragged_mask(rng, 3, 3),
            ragged_mask(rng, 3, 3),
            "masks (target, target) and (target, source) without any order",
        ),
        (3, 3, causal_mask(3), padding_mask(torch.tensor([3, 0]), 3), "one source that is all padding"),
    ):
        yield _case(rng, "masks", label, Call(_inputs(rng, 2, target, source, 14, self_mask, memory_mask)))
    args = _inputs(rng, 2, 3, 5, 14, causal_mask(3), padding_mask(torch.tensor([5, 2]), 5))
    named = {"memory_mask": args[3], "self_mask": args[2]}
    yield _case(rng, "masks", "both masks, given by name", Call(args[:2], kwargs=named))
    again = _inputs(rng, 2, 5, 3, 14, causal_mask(5), padding_mask(torch.tensor([1, 3]), 3))
    label = "one layer called again with other masks, and without"
    yield _case(rng, "masks", label, Call(args), Call(again), Call(args[:2]))


def _dropout_cases(rng: Generator) -> Iterator[Case]:
    x, memory = _inputs(rng, 2, 3, 5, 14)
    twice = (Call((x, memory)),) * 2
    yield _case(rng, "dropout", "dropout 0.5, evaluation mode", *twice, sizes=(14, 2, 11, 0.5), holds=(no_chance,))
    chance: dict[str, Any] = {"sizes": (14, 2, 11, 0.5), "train": True, "compare": False}
    yield _case(rng, "dropout", "dropout 0.5, training mode", *twice, holds=(differs,), **chance)
    for name in ("self_attn", "cross_attn"):
        label = f"dropout 0.5, training mode, {name} alone"
        through = given(self_attention_alone if name == "self_attn" else cross_attention_alone)
        yield _case(rng, "dropout", label, *twice, holds=(weights_dropped(name),), through=through, **chance)
    state = state_for(rng, 14, 11)
    label = f"dropout {NEARLY_ALL}, training mode"
    yield _case(
        rng,
        "dropout",
        label,
        Call((x, memory)),
        state=state,
        sizes=(14, 2, 11, NEARLY_ALL),
        train=True,
        holds=(only_norms_left(DROPPED, x, state),),
    )


def _inputs(
    rng: Generator,
    batch: int,
    target: int,
    source: int,
    d_model: int,
    self_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> tuple[Any, ...]:
    """Draw target and memory of unlike size, and leave out masks that are None at the end."""
    x, memory = randn(rng, batch, target, d_model), randn(rng, batch, source, d_model, scale=1.5) + 0.5
    if memory_mask is not None:
        return x, memory, self_mask, memory_mask
    return (x, memory) if self_mask is None else (x, memory, self_mask)


def _case(
    rng: Generator,
    part: str,
    label: str,
    *calls: Call,
    sizes: tuple[Any, ...] = (14, 2, 11),
    state: dict[str, Tensor] | None = None,
    **settings: Any,
) -> Case:
    where = _describe(calls[0].args[0], calls[0].args[1], sizes[1])
    full = {**state_for(rng, sizes[0], sizes[2]), **(state or {})}
    return Case(part, f"{where}, {label}" if label else where, calls, Call(sizes), full, **settings)


def state_for(rng: Generator, d_model: int, d_ff: int) -> dict[str, Tensor]:
    """Draw parameters in which no two parts are alike."""
    state = {
        f"{attention}.{name}": value
        for attention in ("self_attn", "cross_attn")
        for name, value in attention_state(rng, d_model).items()
    }
    for name, (rows, columns) in {"ffn.0": (d_ff, d_model), "ffn.2": (d_model, d_ff)}.items():
        state[f"{name}.weight"] = randn(rng, rows, columns, scale=1.5 / columns**0.5)
        state[f"{name}.bias"] = randn(rng, rows, scale=0.5)
    for name in ("norm1", "norm2", "norm3"):
        state[f"{name}.weight"] = 1 + randn(rng, d_model, scale=0.3)
        state[f"{name}.bias"] = randn(rng, d_model, scale=0.5)
    return state


def _describe(x: Tensor, memory: Tensor, heads: int) -> str:
    batch, target, d_model = x.shape
    return (
        f"batch {batch}, {target} target and {memory.size(1)} source token{'s' * (memory.size(1) > 1)}, "
        f"d_model {d_model}, {heads} head{'s' * (heads > 1)}"
    )


def self_attention_alone(layer: Any) -> Callable[..., Any]:
    return lambda x, memory: layer.self_attn(x, x, x)


def cross_attention_alone(layer: Any) -> Callable[..., Any]:
    return lambda x, memory: layer.cross_attn(x, memory, memory)


def moves(rule: str, evidence: str, where: Any = ...) -> Property:
    """Demand that the second call gives something else than the first, at the index `where`."""

    def broken(outputs: Sequence[Any]) -> str | None:
        return evidence if close(outputs[0][where], outputs[1][where], 1e-5) else None

    return Property(rule, broken)


def weights_dropped(name: str) -> Property:
    return moves(
        f"In training {name} drops attention weights; it is made with the same dropout.",
        f"two runs of {name} on one input are equal",
    )


def only_norms_left(rule: str, x: Tensor, state: dict[str, Tensor]) -> Property:
    """Demand norm3(norm2(norm1(x))), which is left where the sublayers add nothing."""
    left = x
    for name in ("norm1", "norm2", "norm3"):
        left = F.layer_norm(left, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    def broken(outputs: Sequence[Any]) -> str | None:
        if close(outputs[0], left):
            return None
        off = (outputs[0] - left).abs().max()
        return f"only norm3(norm2(norm1(x))) should be left, but the result is off by up to {off:.2g}"

    return Property(rule, broken)


PATH = "A path leads round each sublayer: what a sublayer returns is added to its input, and the sum goes through its own norm."
DROPPED = "Dropout acts on what each of the three sublayers adds, before it is added."


def _not_normalised(outputs: Sequence[Any]) -> str | None:
    mean, spread = outputs[0].mean(-1), outputs[0].std(-1, unbiased=False)
    if mean.abs().max() < 1e-3 and (spread - 1).abs().max() < 1e-2:
        return None
    token = (mean.abs() + (spread - 1).abs()).flatten().argmax()
    return (
        f"a token came out with mean {mean.flatten()[token]:.2f} and standard deviation {spread.flatten()[token]:.2f}"
    )


reads_memory = moves(
    "What comes out depends on the source sentence, that is on the memory.",
    "with another memory exactly the same came out",
)
normalised_last = Property(
    "Norm comes last: each token leaves the layer with mean 0 and standard deviation 1.", _not_normalised
)
hides_nothing = moves(
    "Without a mask nothing is hidden, not even what comes later: masks are used exactly as they are given.",
    "with another last token, nothing changed at the first one",
    where=(slice(None), 0),
)
examples_apart = unchanged(
    "The examples of a batch do not affect one another.",
    "when only the second example was changed, the first one's result moved by {change}",
    where=0,
)
sees_no_later_token = unchanged(
    "What self_mask hides has no effect.",
    "when only the last two tokens were changed, which the mask hides from the first three, these moved by {change}",
    where=(slice(None), slice(3)),
)
sees_no_padding = unchanged(
    "What memory_mask hides has no effect.",
    "when only source tokens were changed that the mask hides, the result moved by {change}",
)
whole_source = moves(
    "self_mask is for self-attention alone: every target token may look at the whole source.",
    "with another last source token, nothing changed at the first target token",
    where=(slice(None), 0),
)
no_chance = unchanged("In evaluation mode nothing is left to chance.", "two runs on one input differ by {change}")
differs = moves("In training, dropout is at work.", "two runs on one input are equal")


# --- wrong answers -------------------------------------------------------------------------------------------------

Mask = Tensor | None


class Steps(decoder.DecoderLayer):
    """The layer in steps that are right, for wrong answers to replace one of."""

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = self.first(x, self_mask, memory_mask)
        x = self.second(x, memory, self_mask, memory_mask)
        return self.third(x)

    def first(self, x: Tensor, self_mask: Mask, memory_mask: Mask) -> Tensor:
        return self.add(x, self.own(x, self_mask), self.norm1)

    def second(self, x: Tensor, memory: Tensor, self_mask: Mask, memory_mask: Mask) -> Tensor:
        return self.add(x, self.other(x, memory, memory_mask), self.norm2)

    def third(self, x: Tensor) -> Tensor:
        return self.add(x, self.ffn(x), self.norm3)

    def own(self, x: Tensor, mask: Mask) -> Tensor:
        found: Tensor = self.self_attn(x, x, x, mask)
        return found

    def other(self, x: Tensor, memory: Tensor, mask: Mask) -> Tensor:
        found: Tensor = self.cross_attn(x, memory, memory, mask)
        return found

    def add(self, x: Tensor, found: Tensor, norm: nn.Module) -> Tensor:
        result: Tensor = norm(x + self.dropout(found))
        return result


def changed(**methods: Callable[..., Any]) -> type[Steps]:
    """Replace steps of the layer."""
    return type("Wrong", (Steps,), methods)


def by_norms(first: str, second: str, third: str) -> type[Steps]:
    """Use norms of these names after the three sublayers; no name, no norm."""

    def norm(layer: Any, name: str) -> Any:
        return getattr(layer, name) if name else nn.Identity()

    def forward(self: Any, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = self.add(x, self.own(x, self_mask), norm(self, first))
        x = self.add(x, self.other(x, memory, memory_mask), norm(self, second))
        return self.add(x, self.ffn(x), norm(self, third))

    return changed(forward=forward)


class PreNorm(decoder.PreNormDecoderLayer):
    """The same parts, with the norms in front."""


class ResidualFromTheStart(Steps):
    """Adds what came in to the result of the last sublayer, or of the last two."""

    since = 2

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        start = x
        x = self.first(x, self_mask, memory_mask)
        x = self.add(start if self.since < 3 else x, self.other(x, memory, memory_mask), self.norm2)
        return self.add(start, self.ffn(x), self.norm3)


class AfterSelfAttentionAddedTwice(Steps):
    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = self.first(x, self_mask, memory_mask)
        return self.add(x, self.ffn(self.second(x, memory, self_mask, memory_mask)), self.norm3)


class OnlySecondFromTheStart(Steps):
    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        asking = self.first(x, self_mask, memory_mask)
        return self.third(self.add(x, self.other(asking, memory, memory_mask), self.norm2))


class QueryBeforeNorm(Steps):
    """Asks the memory with what self-attention returned, or with what came in, instead of with the normalised sum."""

    raw = True

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        found = self.dropout(self.own(x, self_mask))
        asking = found if self.raw else x
        x = self.norm1(x + found)
        return self.third(self.add(x, self.other(asking, memory, memory_mask), self.norm2))


class FeedForwardBeforeNorm(Steps):
    """Feeds forward what cross-attention returned, or what stood before it, instead of the normalised sum."""

    raw = True

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = self.first(x, self_mask, memory_mask)
        found = self.dropout(self.other(x, memory, memory_mask))
        inner = found if self.raw else x
        return self.add(self.norm2(x + found), self.ffn(inner), self.norm3)


class CrossFirst(Steps):
    """Asks the memory first; the norms go with their places, or with their sublayers."""

    norms_by_place = True

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        one, two = (self.norm1, self.norm2) if self.norms_by_place else (self.norm2, self.norm1)
        x = self.add(x, self.other(x, memory, memory_mask), one)
        return self.third(self.add(x, self.own(x, self_mask), two))


class AttentionsExchanged(Steps):
    def own(self, x: Tensor, mask: Mask) -> Tensor:
        return super().other(x, x, mask)

    def other(self, x: Tensor, memory: Tensor, mask: Mask) -> Tensor:
        found: Tensor = self.self_attn(x, memory, memory, mask)
        return found


class NoAttentionDropout(Steps):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, d_ff)
        self.dropout = nn.Dropout(dropout)


class NoDropoutAtAll(Steps):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, d_ff)


class MasksCombined(Steps):
    def second(self, x: Tensor, memory: Tensor, self_mask: Mask, memory_mask: Mask) -> Tensor:
        given = [mask for mask in (self_mask, memory_mask) if mask is not None]
        return self.add(x, self.other(x, memory, given[0] & given[-1] if given else None), self.norm2)


class InPlace(Steps):
    def first(self, x: Tensor, self_mask: Mask, memory_mask: Mask) -> Tensor:
        found = self.dropout(self.own(x, self_mask))
        with torch.no_grad():
            x += found
        result: Tensor = self.norm1(x)
        return result


class KeepsItsMemory(Steps):
    """Keeps the memory of the first call, or of the first of its shape."""

    kept: Tensor | None = None
    for_its_shape = True

    def other(self, x: Tensor, memory: Tensor, mask: Mask) -> Tensor:
        if self.kept is None or (self.for_its_shape and self.kept.shape != memory.shape):
            self.kept = memory
        return super().other(x, self.kept, mask)


class ResidualFromNormed(Steps):
    """Pre-norm in which the normalised input takes the place of the residual."""

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = self.norm1(x)
        x = x + self.dropout(self.own(x, self_mask))
        x = self.norm2(x)
        x = x + self.dropout(self.other(x, memory, memory_mask))
        x = self.norm3(x)
        return x + self.dropout(self.ffn(x))


class OnlyQueriesNormed(Steps):
    """Pre-norm in which self-attention's keys and values are not normalised."""

    def forward(self, x: Tensor, memory: Tensor, self_mask: Mask = None, memory_mask: Mask = None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.norm1(x), x, x, self_mask))
        x = x + self.dropout(self.other(self.norm2(x), memory, memory_mask))
        return x + self.dropout(self.ffn(self.norm3(x)))


class AcrossTheBatch(Steps):
    def own(self, x: Tensor, mask: Mask) -> Tensor:
        return super().own(x.transpose(0, 1), mask).transpose(0, 1)


def half_of_the_memory(error: type[Exception], keys: bool) -> type[Steps]:
    """Take keys or values alone from the memory; PyTorch's fused kernel does not look whether there are as many of each."""

    def other(self: Any, x: Tensor, memory: Tensor, mask: Mask) -> Tensor:
        if x.size(1) != memory.size(1):
            raise error("there must be as many keys as values")
        found: Tensor = self.cross_attn(x, *((memory, x) if keys else (x, memory)), mask)
        return found

    return changed(other=other)


def triangle(x: Tensor) -> Tensor:
    return torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()


def inverted(mask: Mask) -> Mask:
    return None if mask is None else ~mask


MISCONCEPTIONS = (
    Misconception(
        "cross_kv_from_decoder",
        "Cross-attention takes its keys and values from the decoder's own tokens, so that it is self-attention once more. The "
        "layer never looks at the source: every sentence gets the same translation. Who asks are the target tokens; who is "
        "asked is the memory, for keys and for values.",
        CROSS,
        (
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, x, x)),
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, x, x, mask)),
        ),
        ("https://github.com/bentrevett/pytorch-seq2seq/issues/143",),
    ),
    Misconception(
        "cross_query_from_memory",
        "In cross-attention the memory asks and the decoder's tokens are asked. Then there is one result for each *source* token, "
        "which fits nowhere unless both sentences have equally many. Queries come from what is being written, keys and values "
        "from what was read.",
        CROSS,
        (
            changed(other=lambda self, x, memory, mask: self.cross_attn(memory, x, x, mask)),
            changed(other=lambda self, x, memory, mask: self.cross_attn(memory, memory, x, mask)),
            changed(other=lambda self, x, memory, mask: self.cross_attn(memory, memory, memory, mask)),
        ),
        (
            "https://github.com/humza909/LLM_Survey/issues/2",
            "https://github.com/pbloem/former/issues/19",
        ),
    ),
    Misconception(
        "half_of_the_memory",
        "Only the keys, or only the values, come from the memory. A key and a value belong together: what a token is found by, and "
        "what it then hands over. Both come from the memory.",
        CROSS,
        (
            half_of_the_memory(RuntimeError, keys=True),
            half_of_the_memory(RuntimeError, keys=False),
            half_of_the_memory(ValueError, keys=True),
            half_of_the_memory(ValueError, keys=False),
        ),
    ),
    Misconception(
        "memory_cut_to_length",
        "The memory is cut to the length of the target. The two sentences need not be equally long; attention has as many queries "
        "as the one has tokens, and as many keys as the other.",
        CROSS,
        (
            changed(
                other=lambda self, x, memory, mask: self.cross_attn(
                    x, *(memory[:, : x.size(1)],) * 2, mask if mask is None else mask[..., : x.size(1)]
                )
            ),
        ),
    ),
    Misconception(
        "memory_normed",
        "The memory goes through one of the decoder's norms as well. It comes from the encoder ready for use, and is the same in "
        "every layer.",
        CROSS,
        (changed(other=lambda self, x, memory, mask: self.cross_attn(x, *(self.norm2(memory),) * 2, mask)),),
    ),
    Misconception(
        "memory_kept",
        "The memory of an earlier call is used again. It may be kept while *one* text is being written; the next one has another "
        "source, and a layer that remembers the first translates it over and over.",
        CROSS,
        (KeepsItsMemory, type("TheVeryFirst", (KeepsItsMemory,), {"for_its_shape": False})),
    ),
    Misconception(
        "float32_only",
        "The layer computes in float32 whatever it is given. Let the inputs and parameters decide: a model that was moved to another "
        "type has all of them in it.",
        "self_attention#half-precision",
        (
            changed(
                forward=lambda self, x, memory, *masks, **named: Steps.forward(
                    self, x.float(), memory.float(), *masks, **named
                )
            ),
        ),
    ),
    Misconception(
        "attentions_shared",
        "One attention does both jobs. Each has projections of its own: what to ask one's own sentence is another question than "
        "what to ask the source.",
        CROSS,
        (
            changed(other=lambda self, x, memory, mask: self.self_attn(x, memory, memory, mask)),
            changed(own=lambda self, x, mask: self.cross_attn(x, x, x, mask)),
        ),
    ),
    Misconception(
        "attentions_exchanged",
        "The two attentions have changed places: cross_attn looks at the target, self_attn at the memory. A model trained from "
        "zero doesn't mind; loaded weights do.",
        CROSS,
        (AttentionsExchanged,),
    ),
    Misconception(
        "cross_before_self",
        "The memory is asked first. Then the queries know nothing yet of what stands around them; a token that has looked at its "
        "own sentence can ask for what comes next. Self-attention, cross-attention, feed-forward is the order.",
        SECTION,
        (CrossFirst, type("WithItsNorms", (CrossFirst,), {"norms_by_place": False})),
    ),
    Misconception(
        "sublayer_missing",
        "One of the two attentions is missing, and its Add & Norm with it. A decoder layer has three sublayers where an encoder "
        "layer has two.",
        SECTION,
        (
            changed(first=lambda self, x, self_mask, memory_mask: x),
            changed(second=lambda self, x, memory, self_mask, memory_mask: x),
        ),
    ),
    Misconception(
        "no_feed_forward",
        "The feed-forward part is missing. Attention only mixes tokens; this is where each of them is transformed, and half of the "
        "layer's parameters.",
        FORWARD,
        (
            changed(third=lambda self, x: x),
            changed(third=lambda self, x: self.norm3(x)),
        ),
    ),
    Misconception(
        "pre_norm",
        "The norms stand in front of the sublayers. That's the pre-norm layer, which is as good (and easier to train), but here "
        "the layer of the 2017 paper is asked for: first the sublayer, then the sum, then the norm.",
        NORM,
        (PreNorm, ResidualFromNormed, OnlyQueriesNormed),
        (
            "https://github.com/hkproj/pytorch-transformer/issues/14",
            "https://github.com/harvardnlp/annotated-transformer/issues/110",
        ),
    ),
    Misconception(
        "norm_before_the_sum",
        "Only what the sublayer returns is normalised, and the sum is not. Post-norm means that the sum is.",
        SLIPS,
        (changed(add=lambda self, x, found, norm: x + self.dropout(norm(found))),),
    ),
    Misconception(
        "residual_missing",
        "At least one sublayer's result replaces its input instead of being added to it. Without the residual path everything "
        "that a token has been must be carried through the sublayer, and the gradient has no short way back.",
        RESIDUAL,
        (
            changed(first=lambda self, x, self_mask, memory_mask: self.norm1(self.dropout(self.own(x, self_mask)))),
            changed(
                second=lambda self, x, memory, self_mask, memory_mask: self.norm2(
                    self.dropout(self.other(x, memory, memory_mask))
                )
            ),
            changed(third=lambda self, x: self.norm3(self.dropout(self.ffn(x)))),
            changed(add=lambda self, x, found, norm: norm(self.dropout(found))),
        ),
        (
            "https://github.com/tensorflow/text/issues/1104",
            "https://github.com/OpenNMT/OpenNMT-py/issues/1689",
        ),
    ),
    Misconception(
        "residual_from_the_start",
        "A later sublayer's result is added to what stood there before an earlier one. What the sublayers in between have found "
        "is left out of the sum. Each adds to its own input.",
        RESIDUAL,
        (
            ResidualFromTheStart,
            type("LastOnly", (ResidualFromTheStart,), {"since": 3}),
            OnlySecondFromTheStart,
            AfterSelfAttentionAddedTwice,
        ),
        ("https://github.com/strutive07/transformer-tensorflow2.0/issues/14",),
    ),
    Misconception(
        "query_before_norm",
        "Cross-attention does not ask with what the first Add & Norm has made, but with something from before it: what "
        "self-attention returned, without the residual, or what came into the layer. The sum is right, the question is not.",
        SECTION,
        (QueryBeforeNorm, type("WithTheInput", (QueryBeforeNorm,), {"raw": False})),
        ("https://github.com/ml-explore/mlx/pull/3382",),
    ),
    Misconception(
        "feed_forward_before_norm",
        "The feed-forward part gets something from before the second Add & Norm: what cross-attention returned, without the "
        "residual, or what stood there before it. The three sublayers follow one another.",
        SECTION,
        (FeedForwardBeforeNorm, type("WithItsInput", (FeedForwardBeforeNorm,), {"raw": False})),
        ("https://github.com/OpenNMT/OpenNMT-py/issues/1689",),
    ),
    Misconception(
        "norm_reused",
        "One norm is used after two sublayers, and another never. Each norm learns a scale and a shift for the place where it "
        "stands; the unused one has parameters that never get a gradient.",
        SLIPS,
        (
            by_norms("norm1", "norm1", "norm3"),
            by_norms("norm1", "norm1", "norm2"),
            by_norms("norm1", "norm1", "norm1"),
            by_norms("norm1", "norm2", "norm2"),
        ),
        (
            "https://github.com/ml-explore/mlx/issues/1636",
            "https://github.com/ml-explore/mlx-swift/pull/171",
        ),
    ),
    Misconception(
        "norms_exchanged",
        "The norms have changed places. They are numbered in the order of the sublayers: norm1 after self-attention, norm2 after "
        "cross-attention, norm3 after the feed-forward part. Loaded weights count on it.",
        SLIPS,
        (
            by_norms("norm1", "norm3", "norm2"),
            by_norms("norm2", "norm1", "norm3"),
            by_norms("norm3", "norm2", "norm1"),
        ),
    ),
    Misconception(
        "norm_missing",
        "At least one of the sums is not normalised. Post-norm has a norm after each of the three.",
        SLIPS,
        (
            by_norms("", "norm2", "norm3"),
            by_norms("norm1", "", "norm3"),
            by_norms("norm1", "norm2", ""),
            by_norms("", "", ""),
        ),
        ("https://github.com/tensorflow/text/issues/1104",),
    ),
    Misconception(
        "ffn_trailing_relu",
        "There is a second ReLU, behind the last dense layer. The feed-forward part can then only add to features and never take "
        "away from them.",
        "encoder#no-relu-at-the-end",
        (changed(third=lambda self, x: self.add(x, self.ffn(x).relu(), self.norm3)),),
        ("https://github.com/namedtensor/notation/issues/72",),
    ),
    Misconception(
        "ffn_without_activation",
        "There is nothing between the two dense layers, so that they are no more than one.",
        FORWARD,
        (changed(third=lambda self, x: self.add(x, self.ffn[2](self.ffn[0](x)), self.norm3)),),
    ),
    Misconception(
        "ffn_gelu",
        "Between the two dense layers stands GELU. Later models use it; here it's ReLU, as in the 2017 paper.",
        FORWARD,
        (changed(third=lambda self, x: self.add(x, self.ffn[2](F.gelu(self.ffn[0](x))), self.norm3)),),
    ),
    Misconception(
        "causal_on_its_own",
        "The layer makes a causal mask of its own. Masks are the caller's business here: a layer that hides the future whatever "
        "it's told can't be used where all is known, and adds its mask to one that was made with care.",
        AHEAD,
        (
            changed(own=lambda self, x, mask: self.self_attn(x, x, x, triangle(x) if mask is None else mask)),
            changed(
                own=lambda self, x, mask: self.self_attn(x, x, x, triangle(x) if mask is None else mask & triangle(x))
            ),
        ),
    ),
    Misconception(
        "masks_exchanged",
        "The two masks have changed places: self-attention gets the one for the source, cross-attention the one for the target. "
        "Where both sentences have the same length, nothing complains. A mask goes where its *keys* are.",
        MASKS,
        (
            changed(
                first=lambda self, x, self_mask, memory_mask: self.add(x, self.own(x, memory_mask), self.norm1),
                second=lambda self, x, memory, self_mask, memory_mask: self.add(
                    x, self.other(x, memory, self_mask), self.norm2
                ),
            ),
        ),
    ),
    Misconception(
        "self_mask_on_memory",
        "self_mask is used in cross-attention (too). The first target token then sees only the first word of the source, and its "
        "padding stays in sight. Every target token may look at the whole source; what has to be hidden there is padding, by "
        "memory_mask.",
        MASKS,
        (
            changed(
                second=lambda self, x, memory, self_mask, memory_mask: self.add(
                    x, self.other(x, memory, self_mask), self.norm2
                )
            ),
            MasksCombined,
        ),
        (
            "https://github.com/Kamichanw/SeekDeeper/issues/3",
            "https://github.com/keras-team/keras-io/pull/1046",
            "https://github.com/fchollet/deep-learning-with-python-notebooks/issues/209",
        ),
    ),
    Misconception(
        "memory_mask_on_target",
        "memory_mask is used in self-attention. It's for source tokens, and there are none; a mask goes where its *keys* are.",
        MASKS,
        (changed(first=lambda self, x, self_mask, memory_mask: self.add(x, self.own(x, memory_mask), self.norm1)),),
    ),
    Misconception(
        "self_mask_ignored",
        "self_mask has no effect. In training every place then sees the word that it shall say: the loss falls to almost 0, "
        "and the model can't write.",
        AHEAD,
        (
            changed(own=lambda self, x, mask: self.self_attn(x, x, x)),
            changed(own=lambda self, x, mask: self.self_attn(x, x, x, None if self.training else mask)),
        ),
        ("https://github.com/alex-matton/causal-transformer-decoder/issues/1",),
    ),
    Misconception(
        "first_example_alone",
        "Behind an attention stands [0]. nn.MultiheadAttention returns a pair, output and weights, of which [0] takes the output. "
        "This attention returns the output alone, and [0] takes the first example of the batch, which is then added to every "
        "example without any error.",
        "transformer#the-decoder-layer",
        (
            changed(own=lambda self, x, mask: self.self_attn(x, x, x, mask)[0]),
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, mask)[0]),
            changed(
                own=lambda self, x, mask: self.self_attn(x, x, x, mask)[0],
                other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, mask)[0],
            ),
        ),
    ),
    Misconception(
        "memory_mask_ignored",
        "memory_mask has no effect: the target looks at the padding of the source, and a sentence is translated differently when a "
        "longer one stands beside it in the batch.",
        MASKS,
        (
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory)),
            changed(
                other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, None if self.training else mask)
            ),
        ),
        ("https://github.com/keras-team/keras-io/pull/1046",),
    ),
    Misconception(
        "masks_ignored",
        "Neither mask has any effect.",
        MASKS,
        (
            changed(
                own=lambda self, x, mask: self.self_attn(x, x, x),
                other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory),
            ),
        ),
    ),
    Misconception(
        "masks_inverted",
        'A mask is turned round before it is used. True means "may attend" here, in the layer as in its attentions; it is in '
        "nn.Transformer that True means the opposite.",
        "self_attention#boolean-or-additive",
        (
            changed(
                own=lambda self, x, mask: self.self_attn(x, x, x, inverted(mask)),
                other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, inverted(mask)),
            ),
            changed(own=lambda self, x, mask: self.self_attn(x, x, x, inverted(mask))),
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, inverted(mask))),
        ),
    ),
    Misconception(
        "attends_across_batch",
        "Batch and length are exchanged on the way into an attention: tokens look at the same place of the other sentences. All is "
        "batch first here.",
        "multi_head#batch-first",
        (AcrossTheBatch,),
    ),
    Misconception(
        "input_overwritten",
        "The residual is added in place (+=), into the caller's own tensor. Whoever uses the input afterwards gets another one.",
        RESIDUAL,
        (InPlace,),
    ),
    Misconception(
        "memory_cut_off",
        "The output is right, but no gradient reaches the memory (.detach(), .data, no_grad). It is by way of the decoder alone "
        "that an encoder learns: yours would stay as it is.",
        GRADIENTS,
        (
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, memory.detach(), memory.detach(), mask)),
            changed(other=lambda self, x, memory, mask: self.cross_attn(x, memory, memory, mask).detach()),
        ),
    ),
    Misconception(
        "gradient_cut",
        "The output is right, but gradients don't get through self-attention or the feed-forward part.",
        GRADIENTS,
        (
            changed(own=lambda self, x, mask: self.self_attn(x, x, x, mask).detach()),
            changed(third=lambda self, x: self.add(x, self.ffn(x).detach(), self.norm3)),
        ),
    ),
    Misconception(
        "two_results",
        "More than the tokens is returned. Layers are stacked: what one returns goes into the next.",
        SECTION,
        (
            changed(
                forward=lambda self, x, memory, *masks, **named: (
                    Steps.forward(self, x, memory, *masks, **named),
                    memory,
                )
            ),
            changed(
                forward=lambda self, x, memory, *masks, **named: (Steps.forward(self, x, memory, *masks, **named), None)
            ),
        ),
    ),
    Misconception(
        "dropout_in_eval",
        "Dropout is at work in evaluation mode too: F.dropout is on unless it's told otherwise (training=self.training). nn.Dropout "
        "follows the mode by itself.",
        DROPOUT,
        (changed(add=lambda self, x, found, norm: norm(x + F.dropout(found, self.dropout.p))),),
        (
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/pytorch/pytorch/issues/124464",
        ),
    ),
    Misconception(
        "no_dropout",
        "dropout has no effect on what the sublayers add.",
        DROPOUT,
        (changed(add=lambda self, x, found, norm: norm(x + found)), NoDropoutAtAll),
    ),
    Misconception(
        "attention_without_dropout",
        "The attentions are made without dropout. They take it as their third argument, and drop attention weights in training.",
        DROPOUT,
        (NoAttentionDropout,),
    ),
    Misconception(
        "dropout_forgotten_once",
        "One or two of the three sublayers add all that they return, where dropout should act on what each of them adds.",
        DROPOUT,
        (
            changed(first=lambda self, x, self_mask, memory_mask: self.norm1(x + self.own(x, self_mask))),
            changed(
                second=lambda self, x, memory, self_mask, memory_mask: self.norm2(
                    x + self.other(x, memory, memory_mask)
                )
            ),
            changed(third=lambda self, x: self.norm3(x + self.ffn(x))),
            changed(
                first=lambda self, x, self_mask, memory_mask: self.norm1(x + self.own(x, self_mask)),
                second=lambda self, x, memory, self_mask, memory_mask: self.norm2(
                    x + self.other(x, memory, memory_mask)
                ),
            ),
        ),
    ),
    Misconception(
        "dropout_on_the_sum",
        "Dropout acts on the sum, or on what the norm returns. That damages the residual path itself, and in a deep stack hardly "
        "anything of the input survives. It belongs on what a sublayer adds, before it's added.",
        DROPOUT,
        (
            changed(add=lambda self, x, found, norm: norm(self.dropout(x + found))),
            changed(add=lambda self, x, found, norm: self.dropout(norm(x + found))),
        ),
        ("https://github.com/hyunwoongko/transformer/issues/8",),
    ),
)

EXERCISE = Exercise(
    name="DecoderLayer",
    chapter="transformer",
    kind="class",
    minutes=35,
    parts=(
        Part(
            "layer",
            3,
            "attend to the target, attend to the memory, feed forward, each followed by its own Add & Norm",
            SECTION,
        ),
        Part(
            "masks",
            2,
            "use self_mask in self-attention and memory_mask in cross-attention, exactly as they are given",
            MASKS,
        ),
        Part("gradients", 1, "pass the right gradients to target, memory and all parameters", GRADIENTS),
        Part("dropout", 2, "drop part of what each sublayer adds, in training only", DROPOUT),
    ),
    hints=(
        "An encoder layer has two sublayers. Which one is new here, who asks in it, and who is asked? And between which two "
        "others does it stand?",
        "Three times the same pattern, x = norm(x + dropout(sublayer(x))): each starts from what the one before has made. For each "
        "attention, ask whose tokens are its keys; that is whose mask it takes.",
        "self_attn(x, x, x, self_mask) goes with norm1, cross_attn(x, memory, memory, memory_mask) with norm2, ffn(x) with norm3. "
        "Both attentions are made with the dropout too.",
    ),
    cases=cases,
    reference=decoder.DecoderLayer,
    misconceptions=MISCONCEPTIONS,
)

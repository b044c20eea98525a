"""Exercise: the whole layer, from the projections in to the projection out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import REFUSALS, close, ragged_mask, randn, sequence_first, unchanged
from mha_course.multi_head import MultiHeadAttention, merge_heads, split_heads
from mha_course.self_attention import causal_mask, padding_mask

SECTION = "multi_head#the-layer"
MASKS, DROPOUT, WIDTH = "multi_head#masks-and-heads", "multi_head#dropout", "multi_head#width-must-divide"
THREE = "multi_head#three-projections"
CLEARER = (
    "One thing could be better: d_model 10 with 4 heads is not refused at once by a ValueError when the layer is made. "
    "An error that names both numbers, at the line that got them, spares a search."
)


def cases(rng: Generator) -> Iterator[Case]:
    yield from _self_attention_cases(rng)
    yield from _probes(rng)
    yield from _cross_attention_cases(rng)
    yield from _mask_cases(rng)
    for label, mask in (("no mask", None), ("query 1 may attend to nothing", _blind(rng, 2, 3, 5))):
        yield _case(rng, "gradients", 2, 3, 5, 14, 2, mask, f"{label}, with gradients", backward=True)
    for training in (False, True):
        x = randn(rng, 2, 5, 15)
        label = f"{describe(x, x, 3)}, a causal mask, {'training' if training else 'evaluation'} mode, with gradients"
        yield _layer(rng, "gradients", (15, 3), label, Call((x, x, x, causal_mask(5)), backward=True), train=training)
    yield from _dropout_cases(rng)
    for d_model, heads in ((10, 4), (6, 5), (3, 7)):
        x = randn(rng, 2, 3, d_model)
        label = f"d_model {d_model}, {heads} heads"
        yield Case("width", label, (Call((x, x, x)),), build=Call((d_model, heads)), expects_error=REFUSALS)
    yield Case("width", "d_model 10, 4 heads", (), Call((10, 4)), expects_error=("ValueError",), advice=CLEARER)


def _self_attention_cases(rng: Generator) -> Iterator[Case]:
    for batch, length, d_model, heads in (
        (1, 2, 4, 2),
        (1, 5, 7, 1),
        (3, 5, 14, 2),
        (2, 7, 15, 3),
        (5, 1, 22, 11),
        (2, 7, 14, 2),  # as many keys as a head is wide
        (2, 11, 15, 5),
        (7, 3, 24, 12),
        (1, 3, 16, 8),
        (2, 3, 12, 4),
    ):
        x = randn(rng, batch, length, d_model)
        yield _layer(
            rng, "self-attention", (d_model, heads), f"{describe(x, x, heads)}, self-attention", Call((x, x, x))
        )
    x = randn(rng, 2, 3, 14, dtype=torch.float64)
    state = {name: value.double() for name, value in state_for(rng, 14).items()}
    label = f"{describe(x, x, 2)}, float64"
    yield Case("self-attention", label, (Call((x, x, x)),), Call((14, 2)), state, tolerance=1e-9)
    x = sequence_first(randn(rng, 2, 3, 14))
    yield _layer(rng, "self-attention", (14, 2), f"{describe(x, x, 2)}, stored sequence first", Call((x, x, x)))
    x = randn(rng, 3, 5, 14)
    other = torch.cat([x[:1], randn(rng, 2, 5, 14)])
    yield _layer(
        rng,
        "self-attention",
        (14, 2),
        f"{describe(x, x, 2)}, all examples but the first changed",
        Call((x, x, x)),
        Call((other, other, other)),
        holds=(
            unchanged(
                "The examples of a batch do not affect one another.",
                "when only the other examples were changed, the first one's result moved by {change}",
                where=0,
            ),
        ),
    )
    order = torch.randperm(5, generator=rng)
    yield _layer(
        rng,
        "self-attention",
        (14, 2),
        f"{describe(x, x, 2)}, keys and values in another order",
        Call((x, x, x)),
        Call((x, x[:, order], x[:, order])),
        holds=(
            unchanged(
                "The order of the keys does not matter, as long as each keeps its value.",
                "with keys and values in another order the result moved by {change}",
            ),
        ),
    )


def _probes(rng: Generator) -> Iterator[Case]:
    """Switch off one projection at a time: what is left shows whether it is used, and for what."""
    x = randn(rng, 2, 5, 14)
    for name, holds in (
        ("q_proj", all_queries_alike),
        ("k_proj", all_queries_alike),
        ("v_proj", only_bias_left),
        ("out_proj", only_bias_left),
    ):
        state = state_for(rng, 14)
        state[f"{name}.weight"] = torch.zeros(14, 14)
        if name != "out_proj":
            state[f"{name}.bias"] = torch.zeros(14)
        label = f"{describe(x, x, 2)}, self-attention, {name} all zeros"
        rule = Property(holds.rule.format(name=name), holds.evidence)
        yield Case("self-attention", label, (Call((x, x, x)),), Call((14, 2)), state, holds=(rule,))


def _cross_attention_cases(rng: Generator) -> Iterator[Case]:
    for batch, queries, keys, d_model, heads in (
        (1, 2, 3, 4, 2),
        (2, 3, 5, 14, 2),
        (3, 7, 2, 15, 3),
        (2, 1, 11, 15, 5),
    ):
        yield _case(rng, "cross-attention", batch, queries, keys, d_model, heads, None, "cross-attention")
    yield _case(rng, "cross-attention", 2, 3, 3, 14, 2, None, "another sequence of the same length")


def _mask_cases(rng: Generator) -> Iterator[Case]:
    for label, batch, heads, mask in (
        ("a mask (batch, 1, 1, key) for the padding", 3, 2, padding_mask(torch.tensor([5, 3, 2]), 5)),
        ("a mask (query, key)", 3, 2, ragged_mask(rng, 3, 5)),
        ("a mask (1, 1, query, key)", 3, 2, ragged_mask(rng, 1, 1, 3, 5)),
        ("a mask (batch, 1, query, key)", 3, 2, ragged_mask(rng, 3, 1, 3, 5)),
        ("a mask (batch, 1, query, key), as many examples as heads", 2, 2, ragged_mask(rng, 2, 1, 3, 5)),
        ("a mask (batch, head, query, key)", 3, 2, ragged_mask(rng, 3, 2, 3, 5)),
        ("one example, a mask (1, 1, query, key)", 1, 2, ragged_mask(rng, 1, 1, 3, 5)),
        ("query 1 may attend to nothing", 2, 2, _blind(rng, 2, 3, 5)),
    ):
        yield _case(rng, "mask", batch, 3, 5, 14, heads, mask, label)
    q, k, v = (randn(rng, 3, length, 14) for length in (3, 5, 5))
    yield _layer(
        rng,
        "mask",
        (14, 2),
        f"{describe(q, k, 2)}, one layer called again with another mask, then without",
        Call((q, k, v, ragged_mask(rng, 3, 1, 3, 5))),
        Call((q, k, v, ragged_mask(rng, 3, 1, 3, 5))),
        Call((q, k, v)),
    )
    yield _layer(
        rng,
        "mask",
        (14, 2),
        f"{describe(q, k, 2)}, one layer called again with another batch, other lengths, a mask",
        Call((q, k, v)),
        Call((q[:1], k[:1], v[:1])),
        Call((q, k[:, :2], v[:, :2])),
        Call((q, k[:, :2], v[:, :2], ragged_mask(rng, 3, 2))),
    )
    x = randn(rng, 2, 5, 14)
    later = torch.cat([x[:, :3], randn(rng, 2, 2, 14)], dim=1)
    for label, mask in (("causal", causal_mask(5)), ("padding", padding_mask(torch.tensor([3, 3]), 5))):
        yield _layer(
            rng,
            "mask",
            (14, 2),
            f"{describe(x, x, 2)}, a {label} mask, the last two tokens changed",
            Call((x, x, x, mask)),
            Call((later, later, later, mask)),
            holds=(
                unchanged(
                    "What a mask hides has no effect.",
                    "when only the last two tokens were changed, which the mask hides from the first three, "
                    "the first three moved by {change}",
                    where=(slice(None), slice(3)),
                ),
            ),
        )


def _dropout_cases(rng: Generator) -> Iterator[Case]:
    x = randn(rng, 2, 5, 14)
    label = f"{describe(x, x, 2)}, dropout 0.5"
    yield _layer(
        rng,
        "dropout",
        (14, 2, 0.5),
        f"{label}, evaluation mode",
        *(Call((x, x, x)),) * 2,
        holds=(unchanged("In evaluation mode nothing is left to chance.", "two runs on one input differ by {change}"),),
    )
    yield _layer(
        rng,
        "dropout",
        (14, 2, 0.5),
        f"{label}, training mode",
        *(Call((x, x, x)),) * 2,
        holds=(differs,),
        train=True,
        compare=False,
    )
    yield _layer(
        rng, "dropout", (14, 2, 0.0), f"{describe(x, x, 2)}, dropout 0, training mode", Call((x, x, x)), train=True
    )
    x = randn(rng, 2, 5, 14)
    yield _layer(
        rng,
        "dropout",
        (14, 2, 0.5),
        f"{label}, in training, then twice in evaluation mode",
        Call((x, x, x)),
        *(Call((x, x, x), train=False),) * 2,
        holds=(Property("In evaluation mode nothing is left to chance.", lambda outputs: _moved(outputs[1:])),),
        train=True,
        compare=False,
    )
    # With v_proj and out_proj the identity and values of 1, a head's result is the sum of the weights that it kept.
    state = {**state_for(rng, 14), "v_proj.weight": torch.eye(14), "out_proj.weight": torch.eye(14)}
    state |= {name: torch.zeros(14) for name in ("v_proj.bias", "out_proj.bias")}
    x = torch.ones(61, 1, 14)
    for p in (0.5, 0.2):
        yield Case(
            "dropout",
            f"one key of ones, v_proj and out_proj the identity, dropout {p}, training mode",
            (Call((x, x, x)),),
            build=Call((14, 2, p)),
            state=state,
            train=True,
            compare=False,
            holds=(dropped_or_scaled(p),),
        )
    q, k = torch.ones(61, 5, 14), torch.ones(61, 10, 14)
    yield Case(
        "dropout",
        "10 equal keys of ones, v_proj and out_proj the identity, dropout 0.2, training mode",
        (Call((q, k, k)),),
        build=Call((14, 2, 0.2)),
        state=state,
        train=True,
        compare=False,
        holds=(each_on_its_own,),
    )


def _blind(rng: Generator, batch: int, queries: int, keys: int) -> Tensor:
    mask = ragged_mask(rng, batch, 1, queries, keys)
    mask[:, :, 1] = False
    return mask


def _case(
    rng: Generator,
    part: str,
    batch: int,
    queries: int,
    keys: int,
    d_model: int,
    heads: int,
    mask: Tensor | None,
    label: str,
    backward: bool = False,
) -> Case:
    q, k, v = (randn(rng, batch, length, d_model) for length in (queries, keys, keys))
    args = (q, k, v) if mask is None else (q, k, v, mask)
    return _layer(rng, part, (d_model, heads), f"{describe(q, k, heads)}, {label}", Call(args, backward=backward))


def _layer(
    rng: Generator,
    part: str,
    build: tuple[Any, ...],
    label: str,
    *calls: Call,
    holds: tuple[Property, ...] = (),
    train: bool = False,
    compare: bool = True,
) -> Case:
    state = state_for(rng, build[0])
    return Case(part, label, calls, Call(build), state, train, compare=compare, holds=holds)


def state_for(rng: Generator, d_model: int) -> dict[str, Tensor]:
    """Draw projections that give scores of mixed size: some rows of weights are even, some nearly one-hot."""
    return {
        f"{name}.{kind}": randn(rng, *shape, scale=scale)
        for name, size in (("q_proj", 1.6), ("k_proj", 1.6), ("v_proj", 1.0), ("out_proj", 1.0))
        for kind, shape, scale in (("weight", (d_model, d_model), size / d_model**0.5), ("bias", (d_model,), 0.5))
    }


def describe(query: Tensor, key: Tensor, heads: int) -> str:
    batch, queries, d_model = query.shape
    lengths = f"length {queries}" if queries == key.size(1) else f"{queries} queries, {key.size(1)} keys"
    return f"batch {batch}, {lengths}, d_model {d_model}, {heads} head{'s' * (heads > 1)}"


def _unlike(outputs: Sequence[Any]) -> str | None:
    spread = (outputs[0] - outputs[0][:, :1]).abs().max()
    return None if spread < 1e-4 else f"every token should get the same result then, but yours differ by {spread:.3g}"


def _more_than_bias(outputs: Sequence[Any]) -> str | None:
    spread = (outputs[0] - outputs[0][:1, :1]).abs().max()
    return (
        None if spread < 1e-4 else f"only out_proj's bias should be left then, but your results differ by {spread:.3g}"
    )


def _differ(outputs: Sequence[Any]) -> str | None:
    return "two runs on one input are equal" if close(outputs[0], outputs[1], 1e-6) else None


def _moved(outputs: Sequence[Any]) -> str | None:
    change = (outputs[1] - outputs[0]).abs().max()
    return None if change < 1e-6 else f"two runs on one input differ by {change:.2g}"


def dropped_or_scaled(p: float) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        heads = outputs[0].unflatten(-1, (2, 7))
        if (heads - heads[..., :1]).abs().max() > 1e-4:
            return "some features of a head were dropped and others not"
        sizes = heads[..., 0].flatten()
        kept = 1 / (1 - p)
        odd = sizes[((sizes - kept).abs() > 1e-4) & (sizes.abs() > 1e-4)]
        if len(odd):
            exchanged = f" = 1 / {p}" * bool((odd - 1 / p).abs().max() < 1e-4)
            return (
                f"a head's result was {odd[0]:.3g}{exchanged} times its value, where it should be 0 or {kept:g} times"
            )
        dropped = float((sizes == 0).float().mean())
        return None if abs(dropped - p) < 0.2 else f"{dropped:.0%} of the weights were dropped"

    return Property(
        "Dropout acts on the attention weights: a head loses a key altogether, and keeps the others scaled up.", broken
    )


def _together(outputs: Sequence[Any]) -> str | None:
    sums = outputs[0].unflatten(-1, (2, 7))[..., 0]  # (batch, query, head)
    if abs(float(sums.mean()) - 1) > 0.08:
        return f"the weights of a query sum to {sums.mean():.2f} on average, where it should stay 1"
    if (sums - 1).abs().max() < 1e-4:
        return "the weights of every query still sum to 1, so that none of them was lost"
    for axis, name in ((1, "queries"), (2, "heads")):
        if (sums.std(dim=axis).mean()) < 0.05:
            return f"all {name} lost the same keys"
    return (
        None
        if 0.1 < float(sums.std()) < 0.22
        else f"the sums of the weights spread by {sums.std():.2f} instead of 0.16"
    )


each_on_its_own = Property("Each attention weight is dropped on its own, and the mean of their sum stays 1.", _together)
all_queries_alike = Property("Scores come from {name}: without it every key weighs the same.", _unlike)
only_bias_left = Property("Everything that is handed over goes through {name}.", _more_than_bias)
differs = Property("In training, dropout is at work.", _differ)


# --- wrong answers -------------------------------------------------------------------------------------------------


class Steps(MultiHeadAttention):
    """The layer in steps that are right, for wrong answers to replace one of."""

    softmax_axis = -1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        weights = self.drop(self.weigh(q, k, self.shape_mask(mask, query, key)))
        return self.out_proj(self.merge(weights @ v))

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(query), self.k_proj(key), self.v_proj(value)

    def split(self, x: Tensor) -> Tensor:
        return split_heads(x, self.num_heads)

    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        return mask

    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / self.divisor(q)
        if mask is None:
            return scores.softmax(dim=self.softmax_axis)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=self.softmax_axis) * mask

    def divisor(self, q: Tensor) -> float:
        return float(q.size(-1)) ** 0.5

    def drop(self, weights: Tensor) -> Tensor:
        return self.dropout(weights)

    def merge(self, x: Tensor) -> Tensor:
        return merge_heads(x)


class ScaleByModelWidth(Steps):
    def divisor(self, q: Tensor) -> float:
        return float(self.num_heads * q.size(-1)) ** 0.5


class ScaledTwice(Steps):
    def divisor(self, q: Tensor) -> float:
        return float(q.size(-1))


class NoScale(Steps):
    def divisor(self, q: Tensor) -> float:
        return 1.0


class SoftmaxOverHeads(Steps):
    softmax_axis = 1


class SoftmaxOverQueries(Steps):
    softmax_axis = -2


class SplitWithoutTranspose(Steps):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), self.num_heads, x.size(1), -1)


class MergeWithoutTranspose(Steps):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), x.size(2), -1)


class SplitAndMergeWithoutTranspose(SplitWithoutTranspose, MergeWithoutTranspose):
    pass


class StackedHeads(Steps):
    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(x.size(0), x.size(2), -1)


class MergedWeights(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, _ = (self.split(x) for x in self.project(query, key, value))
        merged = self.weigh(q, k, mask).transpose(1, 2).reshape(query.size(0), -1, query.size(-1))
        return self.out_proj(merged)


class OneBigHead(Steps):
    def split(self, x: Tensor) -> Tensor:
        return split_heads(x, 1)


class HeadsAmongThemselves(Steps):
    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))

    def merge(self, x: Tensor) -> Tensor:
        return x.flatten(2)


class AcrossTheBatch(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(*(x.transpose(0, 1) for x in (query, key, value))).transpose(0, 1)


class NoOutputProjection(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(x) for x in self.project(query, key, value))
        return self.merge(self.drop(self.weigh(q, k, mask)) @ v)


class SharedSmallProjections(nn.Module):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        d_head = d_model // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_head, d_head) for _ in range(3))
        self.out_proj = nn.Linear(d_model, d_model)


class SelfOnly(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(query, query, query)


class KeyAsValue(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(query, key, key)


class ValuesThroughKeyProjection(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(query), self.k_proj(key), self.k_proj(value)


class KeysThroughQueryProjection(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(query), self.q_proj(key), self.v_proj(value)


class QueryNotProjected(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, self.k_proj(key), self.v_proj(value)


class ValueNotProjected(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(query), self.k_proj(key), value


class NothingProjected(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, key, value


class ResidualAdded(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return query + super().forward(query, key, value, mask)


class WeightsReturnedToo(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        return self.with_weights(query, key, value, mask)


class QueryAndKeyExchanged(Steps):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k_proj(query), self.q_proj(key), self.v_proj(value)


class LengthOfTheQuery(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, d_model = query.shape
        shape = (batch, length, -1, d_model // self.num_heads)
        q, k, v = (x.view(shape).transpose(1, 2) for x in self.project(query, key, value))
        return self.out_proj(merge_heads(self.drop(self.weigh(q, k, mask)) @ v))


class MaskWithoutHeadAxis(Steps):
    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        return mask[:, 0] if mask is not None and mask.dim() == 4 else mask


class SquareMask(Steps):
    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        if mask is None or mask.size(-2) == 1:
            return mask
        return mask.reshape(-1, 1, mask.size(-2), mask.size(-2))


class MaskTiled(Steps):
    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        if mask is None or (mask.dim() == 4 and mask.size(1) == self.num_heads):
            return mask
        rows = mask.squeeze(1) if mask.dim() == 4 else mask
        return self.copy(rows.expand(query.size(0), query.size(1), key.size(1)))

    def copy(self, mask: Tensor) -> Tensor:
        return mask.repeat(self.num_heads, 1, 1).unflatten(0, (-1, self.num_heads))


class MaskTiledHeadFirst(MaskTiled):
    def copy(self, mask: Tensor) -> Tensor:
        return mask.repeat_interleave(self.num_heads, dim=0).unflatten(0, (self.num_heads, -1)).transpose(0, 1)


class MaskRemembered(Steps):
    kept: Tensor | None = None

    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        self.kept = mask if self.kept is None else self.kept
        return self.kept


class MaskIgnored(Steps):
    def shape_mask(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        return None


class MaskInverted(Steps):
    fill = torch.finfo(torch.float32).min

    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / self.divisor(q)
        return scores.softmax(dim=-1) if mask is None else self.cover(scores.masked_fill(mask, self.fill), mask)

    def cover(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * ~mask


class MaskInvertedUncovered(MaskInverted):
    def cover(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


class MaskInvertedCovered(MaskInverted):
    def cover(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * mask


class MaskInvertedInfinite(MaskInvertedUncovered):
    fill = -torch.inf


class MaskMultiplied(Steps):
    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / self.divisor(q)
        return (scores if mask is None else scores * mask).softmax(dim=-1)


class BlindQueryIsNaN(Steps):
    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / self.divisor(q)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(dim=-1)


class BlindQuerySeesAll(Steps):
    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / self.divisor(q)
        return (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(dim=-1)


class DetachedWeights(Steps):
    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return super().weigh(q, k, mask).detach()


class NoGradientInEvaluation(Steps):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(self.training):
            return super().forward(query, key, value, mask)


class NoGradient(Steps):
    @torch.no_grad()
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(query, key, value, mask)


class KeepProbability(Steps):
    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, 1 - self.dropout.p, self.training)


class DropoutOfATenth(Steps):
    p = 0.1

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.p, self.training)


class DropoutOfHalf(DropoutOfATenth):
    p = 0.5


class DropoutNotScaled(Steps):
    def drop(self, weights: Tensor) -> Tensor:
        p = self.dropout.p
        return weights * (torch.rand_like(weights) >= p) * self.factor(p) if self.training and p else weights

    def factor(self, p: float) -> float:
        return 1.0


class DropoutScaledByFixedNumber(DropoutNotScaled):
    def factor(self, p: float) -> float:
        return 2.0


class DropoutForHeads(Steps):
    def drop(self, weights: Tensor) -> Tensor:
        return weights * self.dropout(torch.ones_like(self.sample(weights)))

    def sample(self, weights: Tensor) -> Tensor:
        return weights[..., :1, :1]


class DropoutForKeys(DropoutForHeads):
    def sample(self, weights: Tensor) -> Tensor:
        return weights[..., :1, :]


class DropoutAlways(Steps):
    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout.p)


class NoDropout(Steps):
    def drop(self, weights: Tensor) -> Tensor:
        return weights


class DropoutOnTheResult(NoDropout):
    def merge(self, x: Tensor) -> Tensor:
        return self.dropout(super().merge(x))


class DropoutOnTheScores(Steps):
    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = self.dropout(q @ k.transpose(-2, -1) / self.divisor(q))
        if mask is None:
            return scores.softmax(dim=-1)
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask

    def drop(self, weights: Tensor) -> Tensor:
        return weights


class LeftOverFeatures(Steps):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, 1, dropout)
        self.num_heads, self.d_head = num_heads, d_model // num_heads

    def split(self, x: Tensor) -> Tensor:
        return x[..., : self.num_heads * self.d_head].unflatten(-1, (self.num_heads, self.d_head)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return F.pad(super().merge(x), (0, self.out_proj.in_features - self.num_heads * self.d_head))


MISCONCEPTIONS = (
    Misconception(
        "scale_by_d_model",
        "The scores are divided by the root of d_model, but each head's dot product has only d_head terms. Attention "
        "comes out flatter than it should, by the root of num_heads in the scores. With one head it is invisible.",
        "multi_head#scale",
        (ScaleByModelWidth,),
        (
            "https://github.com/karpathy/ng-video-lecture/pull/6",
            "https://github.com/lucidrains/vit-pytorch/issues/65",
            "https://github.com/juho-lee/set_transformer/issues/18",
        ),
    ),
    Misconception(
        "scaled_twice",
        "The scores are divided by the root twice (once in the queries and once more in the function that they are "
        "given to), or by the width of a head itself. Attention comes out nearly even.",
        "multi_head#scale",
        (ScaledTwice,),
        ("https://github.com/RL-Align/RL-Kernel/issues/81",),
    ),
    Misconception(
        "no_scale",
        "The scores are not divided by the root of the head's width. Attention comes out too sharp.",
        "multi_head#scale",
        (NoScale,),
    ),
    Misconception(
        "softmax_over_heads",
        "softmax runs over the heads, so that the heads share out each pair of tokens among themselves. Each head should "
        "share out its own weights among the keys, the last axis.",
        "self_attention#which-axis-does-softmax-run-along",
        (SoftmaxOverHeads,),
    ),
    Misconception(
        "softmax_over_queries",
        "softmax runs over the queries. Each key then shares itself out among the queries, where each query should share "
        "itself out among the keys, the last axis.",
        "self_attention#which-axis-does-softmax-run-along",
        (SoftmaxOverQueries,),
        ("https://github.com/PetrochukM/PyTorch-NLP/issues/2",),
    ),
    Misconception(
        "split_no_transpose",
        "The projections are cut straight into (batch, head, length, d_head). Each head then holds pieces of several "
        "tokens. The feature axis must be cut first, and the head axis moved in a second step.",
        "multi_head#why-view-then-transpose",
        (SplitWithoutTranspose,),
        (
            "https://github.com/reczoo/FuxiCTR/issues/30",
            "https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10",
        ),
    ),
    Misconception(
        "merge_no_transpose",
        "The heads' results are reshaped straight into (batch, length, d_model). Each vector is then made of one head's "
        "results for several tokens. The head axis must first stand next to the features.",
        "multi_head#split-and-merge",
        (MergeWithoutTranspose,),
        (
            "https://github.com/jsbaan/transformer-from-scratch/pull/6",
            "https://github.com/ajhalthor/Transformer-Neural-Network/pull/4",
        ),
    ),
    Misconception(
        "split_and_merge_no_transpose",
        "Both the split and the merge are plain reshapes. They undo one another, which hides the slip in every test of "
        "shapes, but in between the heads hold pieces of several tokens.",
        "multi_head#why-view-then-transpose",
        (SplitAndMergeWithoutTranspose,),
    ),
    Misconception(
        "stack_heads_view",
        "The heads' results are stacked with the head axis in front and then viewed as (batch, length, d_model), with "
        "no permute in between: the numbers of different examples, tokens and heads change places. With one head it is "
        "invisible. Concatenate along the last axis instead.",
        "multi_head#split-and-merge",
        (StackedHeads,),
        ("https://github.com/hackiey/QAnet-pytorch/issues/2",),
    ),
    Misconception(
        "merge_attention_instead_of_output",
        "The attention weights are merged in place of the mixed values. That fits in shape only where there are as many "
        "keys as a head is wide; then the layer returns a rearranged map.",
        SECTION,
        (MergedWeights,),
        ("https://github.com/Kamichanw/SeekDeeper/issues/9",),
    ),
    Misconception(
        "one_big_head",
        "The width is never shared out: this is one attention over all features, with a single pattern of weights, "
        "whatever num_heads says.",
        "multi_head#what-one-head-cannot-do",
        (OneBigHead,),
    ),
    Misconception(
        "heads_attend_to_heads",
        "The head axis stands behind the length when the products are formed, so within each token the heads attend to "
        "one another, and no token ever sees another token.",
        "multi_head#why-view-then-transpose",
        (HeadsAmongThemselves,),
    ),
    Misconception(
        "attends_across_batch",
        "The first axis is treated as the sequence. Each position attends to the same position of the other examples: "
        "predictions for one example change with its neighbours in the batch. All is batch first here.",
        "multi_head#batch-first",
        (AcrossTheBatch,),
        (
            "https://github.com/om-ai-lab/OmDet/issues/19",
            "https://github.com/aipixel/AEMatter/issues/3",
            "https://github.com/kyegomez/movie-gen/issues/8",
        ),
    ),
    Misconception(
        "no_out_proj",
        "The last step is missing: out_proj. Without it the heads' results only lie side by side and are never combined.",
        "multi_head#output-projection",
        (NoOutputProjection,),
        ("https://github.com/huggingface/transformers/issues/8814",),
    ),
    Misconception(
        "shared_head_projection",
        "The input is split first, and one small projection of width d_head is used for every slice. Then all heads ask "
        "the same question of different features. It is the projection that is split: each head's query depends on all "
        "d_model features, so q_proj, k_proj and v_proj map d_model to d_model.",
        "multi_head#what-is-split",
        (SharedSmallProjections,),
        ("https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22",),
    ),
    Misconception(
        "self_attention_only",
        "Keys and values are computed from the query. In self-attention all three are the same tensor and nobody "
        "notices; in cross-attention the other sequence is never looked at.",
        SECTION,
        (SelfOnly,),
    ),
    Misconception(
        "key_as_value",
        "The values are computed from the key. They are what is fetched, and may be another tensor than what is "
        "compared with.",
        SECTION,
        (KeyAsValue,),
        ("https://github.com/fchollet/deep-learning-with-python-notebooks/issues/261",),
    ),
    Misconception(
        "value_through_k_proj",
        "The values go through k_proj. The three projections have different tasks: what to ask, what to be found by, "
        "and what to hand over.",
        THREE,
        (ValuesThroughKeyProjection,),
    ),
    Misconception(
        "q_and_k_exchanged",
        "q_proj and k_proj have changed places. A model trained from zero does not mind, but pretrained weights come "
        "out wrong: who attends to whom is turned round.",
        THREE,
        (QueryAndKeyExchanged,),
    ),
    Misconception(
        "key_through_q_proj",
        "The keys go through q_proj. The three projections have different tasks: what to ask, what to be found by, and "
        "what to hand over. With one projection for both, tokens look above all at what resembles them.",
        THREE,
        (KeysThroughQueryProjection,),
    ),
    Misconception(
        "query_not_projected",
        "The query is used as it came, without q_proj.",
        THREE,
        (QueryNotProjected,),
    ),
    Misconception(
        "value_not_projected",
        "The values are used as they came, without v_proj.",
        THREE,
        (ValueNotProjected,),
    ),
    Misconception(
        "nothing_projected",
        "Query, key and value are split as they came, without their projections. Then nothing can be learned about where "
        "to look, and every head only sees its own slice of the input.",
        THREE,
        (NothingProjected,),
        ("https://www.reddit.com/r/deeplearning/comments/1ml6mkd/why_do_transformers_learn_separate_projections/",),
    ),
    Misconception(
        "residual_added",
        "The query is added to the result. The residual path is the encoder layer's business; this layer returns what "
        "attention found, and nothing else.",
        SECTION,
        (ResidualAdded,),
    ),
    Misconception(
        "weights_returned_too",
        "The weights are returned beside the result, as nn.MultiheadAttention does. Here one tensor is asked for.",
        SECTION,
        (WeightsReturnedToo,),
    ),
    Misconception(
        "kv_shape_from_query",
        "Keys and values are cut with the length of the query. In self-attention that is the same number; in "
        "cross-attention it is not, and the axis that was left to be inferred takes a wrong size or none fits.",
        SECTION,
        (LengthOfTheQuery,),
        (
            "https://github.com/huggingface/transformers/pull/48356",
            "https://github.com/idiap/fast-transformers/issues/98",
        ),
    ),
    Misconception(
        "mask_missing_head_axis",
        "The mask meets the scores without a head axis. Broadcasting lines axes up from the end, so the batch axis of "
        "the mask falls on the head axis of the scores: an error for most sizes, and silently example b's mask on head b "
        "where there are as many examples as heads.",
        MASKS,
        (MaskWithoutHeadAxis,),
        (
            "https://github.com/lucidrains/graph-transformer-pytorch/pull/2",
            "https://github.com/lucidrains/vit-pytorch/issues/71",
            "https://github.com/hyunwoongko/transformer/issues/32",
        ),
    ),
    Misconception(
        "mask_square_reshape",
        "The mask is reshaped as if it were square, with the query length used twice. In cross-attention a mask has as "
        "many columns as there are keys.",
        MASKS,
        (SquareMask,),
        ("https://github.com/harvard-edge/cs249r_book/pull/1875",),
    ),
    Misconception(
        "masks_tiled",
        "Masks are copied for the heads in another order than the heads lie in. repeat lays whole copies one behind the "
        "other, example 0, example 1, example 0, example 1; where all heads of example 0 come first, the heads of one "
        "example then get the masks of others. No shape gives it away. An axis of size 1 needs no copies at all.",
        MASKS,
        (MaskTiled, MaskTiledHeadFirst),
        (
            "https://github.com/line/lighthouse/pull/77",
            "https://github.com/ArrowLuo/CLIP4Clip/issues/22",
        ),
    ),
    Misconception(
        "mask_remembered",
        "The mask of an earlier call is kept and used again. The next batch has padding of its own, another length, or "
        "no mask at all: what it is called with is what holds.",
        MASKS,
        (MaskRemembered,),
    ),
    Misconception(
        "mask_ignored",
        "The mask has no effect: it is not passed on, or masked_fill is called and its result thrown away.",
        MASKS,
        (MaskIgnored,),
        ("https://github.com/facebookresearch/ParlAI/pull/3068",),
    ),
    Misconception(
        "mask_inverted",
        'The mask is read the wrong way round. True means "may attend" here; in nn.MultiheadAttention it means the '
        "opposite.",
        MASKS,
        (MaskInverted, MaskInvertedUncovered, MaskInvertedCovered, MaskInvertedInfinite),
        ("https://github.com/facebookresearch/detr/issues/96",),
    ),
    Misconception(
        "mask_multiplied",
        "Hidden keys get a score of about 0 (multiplied by the mask, or filled with 0). But 0 is an ordinary score: "
        "exp(0) = 1, and those keys keep a sizeable weight. What is hidden needs the lowest score there is.",
        MASKS,
        (MaskMultiplied,),
        ("https://github.com/georg-wolflein/good-features/pull/1",),
    ),
    Misconception(
        "fully_masked_nan",
        "A query that may attend to nothing gets NaN: 0 divided by 0, in softmax of a row of minus infinities or by "
        "dividing by a sum of no weights. One such row turns the whole loss into NaN.",
        MASKS,
        (BlindQueryIsNaN,),
        ("https://github.com/pytorch/pytorch/issues/41508",),
    ),
    Misconception(
        "fully_masked_uniform",
        "A query that may attend to nothing gets the mean of everything it must not see, since all its scores are "
        "equally low. Its weights have to be set to zero.",
        MASKS,
        (BlindQuerySeesAll,),
    ),
    Misconception(
        "weights_detached",
        "The result is right, but q_proj and k_proj get no gradient: the weights have been rebuilt from raw data (.data, "
        ".detach(), torch.tensor(...)). Such a layer never learns where to look.",
        "self_attention#gradients",
        (DetachedWeights,),
        ("https://github.com/paiml/aprender/pull/2203",),
    ),
    Misconception(
        "no_gradient_in_eval",
        "In evaluation mode no gradients are recorded. eval() switches dropout off, and that is all it is about: whoever "
        "fine-tunes a model with its dropout off, or asks which tokens a result depends on, wants gradients. Whether "
        "they are recorded is for the caller to decide, with torch.no_grad().",
        "self_attention#gradients",
        (NoGradientInEvaluation,),
    ),
    Misconception(
        "result_detached",
        "The result is right, and nothing gets a gradient: it has been cut off (torch.no_grad(), .detach(), .data, "
        "numpy). Such a layer, and everything before it, never learns.",
        "self_attention#gradients",
        (NoGradient,),
    ),
    Misconception(
        "dropout_keep_probability",
        "Dropout was told which share to keep. nn.Dropout and functional.dropout want the share to DROP: with 1 - dropout "
        "a layer of dropout 0.1 loses nine tenths of its weights in training, and one of dropout 0 loses all. (The "
        "keep_prob of old TensorFlow was the other way round.)",
        DROPOUT,
        (KeepProbability,),
        (
            "https://github.com/candle-org/MindAct/pull/387",
            "https://github.com/mindspore-lab/mindrl/pull/20",
        ),
    ),
    Misconception(
        "dropout_fixed",
        "Weights are dropped with a fixed probability, whatever the layer was asked for: the argument is not used, or "
        "torch's own default, 0.5, is at work. A layer with dropout 0 loses weights too.",
        DROPOUT,
        (DropoutOfATenth, DropoutOfHalf),
    ),
    Misconception(
        "dropout_not_scaled",
        "Weights are dropped, and those that stay are not scaled up to match: not at all, or by a number that does not "
        "follow the probability. The weights of a query then sum to another number in training than in evaluation. With "
        "probability p, what stays is divided by 1 - p.",
        DROPOUT,
        (DropoutNotScaled, DropoutScaledByFixedNumber),
    ),
    Misconception(
        "dropout_shared",
        "One throw of the dice decides for many weights at once: a whole head is lost, or one key for all queries. Each "
        "weight, of each head, query and key, is to be dropped on its own.",
        DROPOUT,
        (DropoutForHeads, DropoutForKeys),
    ),
    Misconception(
        "dropout_in_eval",
        "Dropout is at work in evaluation mode too. functional.dropout does not know the module's mode unless it is "
        "told with training=self.training; the module nn.Dropout knows it.",
        DROPOUT,
        (DropoutAlways,),
        (
            "https://github.com/huggingface/pytorch-image-models/pull/1978",
            "https://github.com/pytorch/pytorch/issues/124464",
            "https://github.com/meta-pytorch/torchtune/issues/1791",
        ),
    ),
    Misconception(
        "no_dropout",
        "Dropout is created, perhaps, but never applied.",
        DROPOUT,
        (NoDropout,),
    ),
    Misconception(
        "dropout_on_the_result",
        "Dropout is applied to the mixed values. On the attention weights it has another effect: a query loses whole "
        "keys for a step and must not rely on one of them.",
        DROPOUT,
        (DropoutOnTheResult,),
        ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/72",),
    ),
    Misconception(
        "dropout_on_the_scores",
        "Dropout is applied to the scores, before softmax. A score of 0 is an ordinary score, so nothing is dropped: the "
        "weights are only shuffled a little. It belongs on the weights, after softmax.",
        DROPOUT,
        (DropoutOnTheScores,),
        ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/72",),
    ),
    Misconception(
        "features_left_over",
        "Where num_heads does not divide d_model the features left over are dropped without a word. An error that names "
        "both numbers tells at once.",
        WIDTH,
        (LeftOverFeatures,),
    ),
)

EXERCISE = Exercise(
    name="MultiHeadAttention",
    chapter="multi_head",
    kind="class",
    minutes=40,
    parts=(
        Part("self-attention", 4, "project, attend in every head, concatenate and project", SECTION),
        Part("cross-attention", 1, "let queries attend to another sequence, of another length", SECTION),
        Part("mask", 2, "keep what the mask hides out of the result, whatever shape the mask broadcasts from", MASKS),
        Part("gradients", 1, "let the right gradients reach the inputs and all four projections", SECTION),
        Part("dropout", 1, "drop attention weights in training, and only then", DROPOUT),
        Part("width", 1, "refuse a width that the heads cannot share out equally", WIDTH),
    ),
    hints=(
        "Follow one tensor: what shape has it after q_proj, after the split, after the product with the keys, after the "
        "sum of the values, after the merge? Write the five shapes down before you write code.",
        "Project first, split second: query, key and value each go through their own projection at full width. The two "
        "lengths are those of query and key, and need not be equal.",
        "In __init__: four nn.Linear(d_model, d_model) and nn.Dropout(dropout). In forward: split_heads of each "
        "projection; scores divided by the root of d_head; hidden scores filled with the lowest finite number; softmax; "
        "times the mask; dropout; times the values; merge_heads; out_proj.",
    ),
    cases=cases,
    reference=MultiHeadAttention,
    misconceptions=MISCONCEPTIONS,
)

"""Exercise: attention and feed-forward, each with a residual path around it and a norm after the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course.encoder import EncoderLayer
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import close, ragged_mask, randn, sequence_first, unchanged
from mha_course.self_attention import causal_mask, padding_mask

ADD, ORDER, PATH = "encoder#add-and-norm", "encoder#post-norm-and-pre-norm", "encoder#residual-path"
FEED_FORWARD, DROPOUT, MASK = "encoder#feed-forward", "encoder#dropout", "encoder#padding-through-the-stack"
NO_RELU, SLIPS = "encoder#no-relu-at-the-end", "encoder#slips-around-a-norm"


def cases(rng: Generator) -> Iterator[Case]:
    yield from layer_cases(rng, norm_first=False)


def layer_cases(rng: Generator, norm_first: bool) -> Iterator[Case]:
    """The cases of a layer, of either order."""
    yield from _value_cases(rng)
    yield from _independence_cases(rng)
    yield from _mask_cases(rng)
    yield from _gradient_cases(rng)
    yield from _dropout_cases(rng)
    yield from _added_cases(rng, norm_first)


def _value_cases(rng: Generator) -> Iterator[Case]:
    for batch, length, d_model, heads, d_ff in (
        (2, 3, 14, 2, 11),
        (1, 1, 4, 2, 7),
        (3, 5, 15, 3, 7),
        (1, 5, 7, 1, 3),
        (5, 1, 6, 3, 6),
        (3, 6, 6, 3, 13),  # as many tokens as features, as many examples as heads
    ):
        x = tokens(rng, batch, length, d_model)
        yield layer(rng, "layer", x, heads, d_ff)
    x = tokens(rng, 2, 3, 14)
    state = {name: value.double() for name, value in state_for(rng, 14, 11).items()}
    label = f"{describe(x, 2, 11)}, float64"
    yield Case("layer", label, (Call((x.double(),)),), Call((14, 2, 11)), state, tolerance=1e-9)
    yield layer(rng, "layer", sequence_first(x), 2, 11, "stored sequence first")
    yield layer(rng, "layer", x, 2, 11, "in training, dropout not given", train=True)
    both = {**silence("self_attn.out_proj", 14, 14), **silence("ffn.2", 14, 11)}
    for size, which in ((1.0, "both"), (1e-3, "tiny tokens, both")):
        small = size * tokens(rng, 2, 3, 14)
        label = f"{which} sublayers adding nothing (out_proj and ffn[2] all zeros)"
        yield layer(rng, "layer", small, 2, 11, label, changes=both)
    for part, changes in (
        ("attention", silence("self_attn.out_proj", 14, 14)),
        ("feed-forward", silence("ffn.2", 14, 11)),
    ):
        yield layer(rng, "layer", tokens(rng, 2, 3, 14), 2, 11, f"{part} adding nothing", changes=changes)
    falling = {"ffn.2.weight": torch.zeros(14, 11), "ffn.2.bias": -randn(rng, 14).abs() - 1}
    yield layer(
        rng, "layer", tokens(rng, 2, 3, 14), 2, 11, "feed-forward making every feature smaller", changes=falling
    )


def _independence_cases(rng: Generator) -> Iterator[Case]:
    x = tokens(rng, 3, 5, 14)
    other = torch.cat([x[:1], tokens(rng, 2, 5, 14)])
    rule = unchanged(
        "The examples of a batch do not affect one another.",
        "when only the other examples were changed, the first one's result moved by {change}",
        where=0,
    )
    calls = Call((x,)), Call((other,))
    yield layer(rng, "layer", x, 2, 11, "all examples but the first changed", calls=calls, holds=(rule,))
    order = torch.tensor([4, 0, 3, 1, 2])
    calls = Call((x,)), Call((x[:, order],))
    yield layer(rng, "layer", x, 2, 11, "tokens in another order", calls=calls, holds=(reordered(order),))
    neighbour = x.clone()
    neighbour[:, 3:] = tokens(rng, 3, 2, 14)
    rule = unchanged(
        "Only attention carries something from one token to another.",
        "with an attention that adds nothing, when only the last two tokens were changed, the others moved by {change}",
        where=(slice(None), slice(3)),
    )
    calls = Call((x,)), Call((neighbour,))
    changes = silence("self_attn.out_proj", 14, 14)
    label = "attention adding nothing, the last two tokens changed"
    yield layer(rng, "layer", x, 2, 11, label, calls=calls, changes=changes, holds=(rule,))


def _mask_cases(rng: Generator) -> Iterator[Case]:
    for label, batch, mask in (
        ("a mask (batch, 1, 1, key) for the padding", 3, padding_mask(torch.tensor([5, 3, 2]), 5)),
        ("a mask (query, key)", 3, ragged_mask(rng, 5, 5)),
        ("a mask (batch, 1, query, key)", 3, ragged_mask(rng, 3, 1, 5, 5)),
        ("a mask (batch, head, query, key), as many examples as heads", 2, ragged_mask(rng, 2, 2, 5, 5)),
        ("one sentence is all padding", 3, padding_mask(torch.tensor([5, 0, 2]), 5)),
        ("a single sentence, a mask (1, 1, 1, key)", 1, padding_mask(torch.tensor([3]), 5)),
    ):
        x = tokens(rng, batch, 5, 14)
        yield layer(rng, "mask", x, 2, 11, label, calls=(Call((x, mask)),))
    x = tokens(rng, 2, 5, 14)
    later = torch.cat([x[:, :3], tokens(rng, 2, 2, 14)], dim=1)
    for name, mask in (("causal", causal_mask(5)), ("padding", padding_mask(torch.tensor([3, 3]), 5))):
        rule = unchanged(
            "What a mask hides has no effect.",
            "when only the last two tokens were changed, which the mask hides from the first three, "
            "the first three moved by {change}",
            where=(slice(None), slice(3)),
        )
        label = f"a {name} mask, the last two tokens changed"
        yield layer(rng, "mask", x, 2, 11, label, calls=(Call((x, mask)), Call((later, mask))), holds=(rule,))
    calls = (
        Call((x, ragged_mask(rng, 5, 5))),
        Call((x, ragged_mask(rng, 5, 5))),
        Call((x,)),
        Call((x[:, :3], ragged_mask(rng, 3, 3))),
        Call((x[:1], None)),
    )
    label = "one layer called again with another mask, without one, with fewer tokens, with one example"
    yield layer(rng, "mask", x, 2, 11, label, calls=calls)


def _gradient_cases(rng: Generator) -> Iterator[Case]:
    x = tokens(rng, 2, 3, 14)
    for train in (False, True):
        mode = "training" if train else "evaluation"
        yield layer(
            rng, "gradients", x, 2, 11, f"{mode} mode, with gradients", train=train, calls=(Call((x,), backward=True),)
        )
    x = tokens(rng, 3, 5, 15)
    mask = padding_mask(torch.tensor([5, 0, 2]), 5)
    label = "one sentence is all padding, with gradients"
    yield layer(rng, "gradients", x, 3, 7, label, calls=(Call((x, mask), backward=True),))


def _dropout_cases(rng: Generator) -> Iterator[Case]:
    x = tokens(rng, 2, 5, 14)
    yield layer(
        rng, "dropout", x, 2, 11, "dropout 0.5, evaluation mode, asked twice", calls=(Call((x,)),) * 2, dropout=0.5,
        holds=(unchanged("In evaluation mode nothing is left to chance.", "two runs on one input differ by {change}"),),
    )  # fmt: skip
    rule = Property("In evaluation mode nothing is left to chance.", lambda outputs: _moved(outputs[1:]))
    calls: tuple[Call, ...] = Call((x,)), *(Call((x,), train=False),) * 2
    label = "dropout 0.5, in training, then twice in evaluation mode"
    yield layer(rng, "dropout", x, 2, 11, label, calls=calls, dropout=0.5, train=True, compare=False, holds=(rule,))
    nothing = {**silence("self_attn.out_proj", 14, 14), **silence("ffn.2", 14, 11)}
    label = "dropout 0.5, training mode, both sublayers adding nothing"
    rule = unchanged(
        "Dropout acts on what a sublayer adds: what comes along the residual path is never dropped.",
        "with sublayers that add nothing, two runs on one input differ by {change}",
    )
    calls = Call((x,)), Call((x,))
    yield layer(rng, "dropout", x, 2, 11, label, calls=calls, changes=nothing, dropout=0.5, train=True, holds=(rule,))


def _added_cases(rng: Generator, norm_first: bool) -> Iterator[Case]:
    """Let one sublayer add 8 to every feature but the last, on a residual path that holds 1 there and 0 elsewhere."""
    path = torch.eye(14)[-1].expand(31, 2, 14).clone()
    all_but_last = torch.ones(14) - torch.eye(14)[-1]
    plain = {name: torch.ones(14) for name in ("norm1.weight", "norm2.weight")}
    plain |= {name: torch.zeros(14) for name in ("norm1.bias", "norm2.bias")}
    by_attention = {"self_attn.out_proj.weight": torch.zeros(14, 14), "self_attn.out_proj.bias": 8 * all_but_last}
    # A norm makes the root of 13 of the last feature. Hidden units of 1, of which each feature adds up eight sevenths, so that
    # one that is dropped shows.
    by_feed_forward = {
        "ffn.0.weight": torch.eye(14)[-1].expand(7, 14) / 13**0.5,
        "ffn.0.bias": torch.zeros(7),
        "ffn.2.weight": 8 * all_but_last[:, None].expand(14, 7) / 7,
        "ffn.2.bias": torch.zeros(14),
    }
    path_height = 1.0 if norm_first else 14 / 13**0.5  # of the last feature above the others, past feed-forward
    silent = silence("self_attn.out_proj", 14, 14) | silence("ffn.2", 14, 7)
    for name, added, height in (("attention", by_attention, 1.0), ("feed-forward", by_feed_forward, path_height)):
        for p in (0.5, 0.2):
            yield layer(
                rng,
                "dropout",
                path,
                2,
                7,
                f"{name} adding 8 to every feature but the last, dropout {p}, training mode",
                changes={**plain, **silent, **added},
                dropout=p,
                train=True,
                compare=False,
                holds=(dropped_or_scaled(name, p, height),),
            )
    # Values of 1 and one key only: a head whose weight is dropped adds nothing to any of its features.
    by_values = {
        "self_attn.v_proj.weight": torch.zeros(14, 14),
        "self_attn.v_proj.bias": torch.ones(14),
        "self_attn.out_proj.weight": torch.eye(14),
    }
    yield layer(
        rng,
        "dropout",
        path[:, :1],
        2,
        7,
        "one token, heads adding 1 to each of their features, dropout 0.5, training mode",
        changes={**plain, **silent, **by_values},
        dropout=0.5,
        train=True,
        compare=False,
        holds=(heads_dropped,),
    )


def layer(
    rng: Generator,
    part: str,
    x: Tensor,
    heads: int,
    d_ff: int,
    label: str = "",
    *,
    calls: tuple[Call, ...] = (),
    changes: dict[str, Tensor] | None = None,
    dropout: float | None = None,
    holds: tuple[Property, ...] = (),
    train: bool = False,
    compare: bool = True,
) -> Case:
    """One layer with parameters of its own, called once on `x` unless other calls are given."""
    d_model = x.size(-1)
    build = Call((d_model, heads, d_ff) if dropout is None else (d_model, heads, d_ff, dropout))
    state = {**state_for(rng, d_model, d_ff), **(changes or {})}
    text = describe(x, heads, d_ff) + f", {label}" * bool(label)
    return Case(part, text, calls or (Call((x,)),), build, state, train, compare=compare, holds=holds)


def state_for(rng: Generator, d_model: int, d_ff: int) -> dict[str, Tensor]:
    """Draw parameters so that each of them matters: no norm is plain, and what the sublayers add is as large as the tokens."""
    linear = {f"self_attn.{name}_proj": (d_model, d_model) for name in ("q", "k", "v", "out")}
    linear |= {"ffn.0": (d_ff, d_model), "ffn.2": (d_model, d_ff)}
    state = {}
    for name, (outputs, inputs) in linear.items():
        state[f"{name}.weight"] = randn(rng, outputs, inputs, scale=1.4 / inputs**0.5)
        state[f"{name}.bias"] = randn(rng, outputs, scale=0.5)
    for name in ("norm1", "norm2"):
        state[f"{name}.weight"] = 1 + torch.rand(d_model, generator=rng)
        state[f"{name}.bias"] = randn(rng, d_model, scale=0.5)
    return state


def silence(name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    """Parameters with which a linear layer gives zeros."""
    return {f"{name}.weight": torch.zeros(outputs, inputs), f"{name}.bias": torch.zeros(outputs)}


def tokens(rng: Generator, batch: int, length: int, d_model: int) -> Tensor:
    """Draw tokens of different size that don't lie around 0, so that a norm changes them."""
    sizes = torch.rand(batch, length, 1, generator=rng) * 2 + 0.5
    return randn(rng, batch, length, d_model) * sizes + 0.7


def describe(x: Tensor, heads: int, d_ff: int) -> str:
    batch, length, d_model = x.shape
    return f"batch {batch}, length {length}, d_model {d_model}, {heads} head{'s' * (heads > 1)}, d_ff {d_ff}"


def reordered(order: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        if close(outputs[1], outputs[0][:, order]):
            return None
        return f"they differ by up to {(outputs[1] - outputs[0][:, order]).abs().max():.2g}"

    return Property("Tokens in another order give the same results in that order.", broken)


def _moved(outputs: Sequence[Any]) -> str | None:
    change = (outputs[1] - outputs[0]).abs().max()
    return None if change < 1e-6 else f"two runs on one input differ by {change:.2g}"


def dropped_or_scaled(part: str, p: float, height: float) -> Property:
    """What is added to a feature is 0 or 1 / (1 - p). A norm after the sum hides size and shift, so ratios are compared.

    `height`: of the last feature above the others, on the residual path.
    """
    kept = 1 / (1 - p)

    def broken(outputs: Sequence[Any]) -> str | None:
        features, last = outputs[0][..., :-1].flatten(0, 1), outputs[0][..., -1].flatten()
        low, step = features.amin(dim=-1), features.amax(dim=-1) - features.amin(dim=-1)
        told = step > 1e-3  # else all of the token's features were dropped, or none
        if told.float().mean() < 0.5:
            if not close(features, features[:1].expand_as(features)):
                return "a token gets all of it or nothing"
            return "all of it is dropped" if (last > low).all() else "nothing of it is ever dropped"
        features, last, low, step = features[told], last[told], low[told], step[told]
        share = (features - low[:, None]) / step[:, None]
        if (share - share.round()).abs().max() > 1e-2:
            return f"what {part} adds to a feature was neither dropped nor kept whole"
        dropped = 1 - float(share.mean())
        if abs(dropped - p) > 0.1:
            return f"{dropped:.0%} of it was dropped"
        times = float((height / (last - low) * step / 8).mean())
        if abs(times - 1) < 1e-2:
            return "what is kept is not scaled up"
        return None if abs(times - kept) < 2e-2 * kept else f"what is kept counts {times:.3g} times instead of {kept:g}"

    rule = f"In training, each feature of what {part} adds is dropped with probability {p}, once, or else scaled up."
    return Property(rule, broken)


def _heads(outputs: Sequence[Any]) -> str | None:
    features = outputs[0][..., :-1]
    nothing = features - features.amin(dim=-1, keepdim=True) < 1e-3
    gone = torch.cat([nothing[..., :7].all(dim=-1), nothing[..., 7:].all(dim=-1)]).float().mean()
    return None if 0.2 < gone < 0.8 else f"{gone:.0%} of the heads add nothing"


heads_dropped = Property(
    "In training, dropout acts on the attention weights too: about half of the heads add nothing here.", _heads
)


# --- wrong answers -------------------------------------------------------------------------------------------------


class Steps(EncoderLayer):
    """The layer in steps that are right, for wrong answers to replace one of."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.drop(self.attend(x, mask)))
        return self.norm2(x + self.drop(self.feed(x)))

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.self_attn(x, x, x, mask)

    def feed(self, x: Tensor) -> Tensor:
        return self.ffn(x)

    def drop(self, added: Tensor) -> Tensor:
        return self.dropout(added)


def variant(
    base: type[nn.Module],
    forward: Callable[..., Any] | None = None,
    build: Callable[[Any], None] | None = None,
    **steps: Callable[..., Any],
) -> type[nn.Module]:
    """Make a class in which forward, or one of the steps, is another, and `build` changes the parts once they are made."""

    class Variant(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if build is not None:
                build(self)

    changed = steps if forward is None else {"forward": forward, **steps}
    for name, function in changed.items():
        setattr(Variant, name, function)
    return Variant


def unbiased(layer: Any) -> None:
    """Make both norms divide by n - 1."""

    class Unbiased(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            root = (x.var(dim=-1, keepdim=True) + self.eps).sqrt()
            return (x - x.mean(dim=-1, keepdim=True)) / root * self.weight + self.bias

    replace_norms(layer, Unbiased)


def unbiased_outside(layer: Any) -> None:
    """Make both norms divide by n - 1 and add epsilon to the standard deviation."""

    class Outside(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + 1e-6) * self.weight + self.bias

    replace_norms(layer, Outside)


def eps_outside(layer: Any) -> None:
    """Make both norms add epsilon to the standard deviation."""

    class Outside(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            root = x.std(dim=-1, keepdim=True, correction=0) + self.eps
            return (x - x.mean(dim=-1, keepdim=True)) / root * self.weight + self.bias

    replace_norms(layer, Outside)


def root_mean_square(layer: Any) -> None:
    """Make both norms leave the mean where it is."""

    class RootMeanSquare(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias

    replace_norms(layer, RootMeanSquare)


def no_scale_and_shift(layer: Any) -> None:
    """Make both norms forget what they have learned."""

    class Plain(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, self.normalized_shape, eps=self.eps)

    replace_norms(layer, Plain)


def over_the_tokens(layer: Any) -> None:
    """Make both norms take mean and variance over a sentence, for each feature."""

    class Tokens(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(dim=1, keepdim=True)
            return centred / (centred.square().mean(dim=1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias

    replace_norms(layer, Tokens)


def over_the_sentence(layer: Any) -> None:
    """Make both norms take mean and variance over all tokens of a sentence."""

    class Sentence(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight + self.bias

    replace_norms(layer, Sentence)


class Batch(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def batch_norm(layer: Any) -> None:
    replace_norms(layer, Batch)


def replace_norms(layer: Any, make: Callable[[int], nn.Module]) -> None:
    for name in ("norm1", "norm2"):
        setattr(layer, name, make(layer.norm1.weight.numel()))


def other_eps(eps: float) -> Callable[[Any], None]:
    def build(layer: Any) -> None:
        layer.norm1.eps = layer.norm2.eps = eps

    return build


def other_activation(activation: nn.Module) -> Callable[[Any], None]:
    def build(layer: Any) -> None:
        layer.ffn[1] = activation

    return build


def no_activation(layer: Any) -> None:
    layer.ffn[1] = nn.Identity()


def trailing_relu(layer: Any) -> None:
    layer.ffn.append(nn.ReLU())


def relu_last(layer: Any) -> None:
    no_activation(layer)
    trailing_relu(layer)


def no_weight_dropout(layer: Any) -> None:
    layer.self_attn.dropout.p = 0.0


def one_head(layer: Any) -> None:
    layer.self_attn.num_heads = layer.self_attn.num_groups = 1


def dropout_by_default(base: type[nn.Module]) -> type[nn.Module]:
    class ByDefault(base):  # type: ignore[misc, valid-type]
        def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.1) -> None:
            super().__init__(d_model, num_heads, d_ff, dropout)

    return ByDefault


class NamedOtherwise(nn.Module):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


class OtherSizes(EncoderLayer):
    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, num_heads, d_ff + 1, dropout)


def hidden_dropout(layer: Any, x: Tensor) -> Tensor:
    return layer.ffn[2](layer.dropout(layer.ffn[1](layer.ffn[0](x))))


def across_the_batch(layer: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    turned = x.transpose(0, 1)
    return layer.self_attn(turned, turned, turned).transpose(0, 1)


def inverted(layer: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    return layer.self_attn(x, x, x, None if mask is None else ~mask)


def keeps_its_mask(layer: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    if not hasattr(layer, "kept"):
        layer.kept = mask
    return layer.self_attn(x, x, x, layer.kept)


def dropped_unscaled(layer: Any, added: Tensor) -> Tensor:
    return added * (torch.rand_like(added) >= layer.dropout.p) if layer.training else added


def scaled_in_evaluation(layer: Any, added: Tensor) -> Tensor:
    return dropped_unscaled(layer, added) if layer.training else added * (1 - layer.dropout.p)


def dropped_by_token(layer: Any, added: Tensor) -> Tensor:
    return added * F.dropout(torch.ones_like(added[..., :1]), layer.dropout.p, layer.training)


def dropped_by_example(layer: Any, added: Tensor) -> Tensor:
    return added * F.dropout(torch.ones_like(added[:, :1, :1]), layer.dropout.p, layer.training)


def always_training(layer: Any, mode: bool = True) -> Any:
    return nn.Module.train(layer, True)


def common_misconceptions(base: type[nn.Module]) -> tuple[Misconception, ...]:
    """Slips that a layer of either order can have."""
    return (
        Misconception(
            "ffn_trailing_relu",
            "A second ReLU follows the last linear layer. Then feed-forward can only add to a feature and never take away "
            "from it; on the residual path of a deep stack that piles up. There is one ReLU, between the two linear layers.",
            NO_RELU,
            (variant(base, build=trailing_relu),),
            ("https://github.com/namedtensor/notation/issues/72",),
        ),
        Misconception(
            "relu_at_the_wrong_place",
            "The ReLU stands behind the second linear layer, and nothing between the two. Two linear layers in a row are one, "
            "however wide the middle is, and what comes out can never be negative.",
            FEED_FORWARD,
            (variant(base, build=relu_last),),
            ("https://github.com/spring-media/TransformerTTS/issues/102",),
        ),
        Misconception(
            "no_activation",
            "Nothing stands between the two linear layers of feed-forward. Two matrices in a row are one matrix; it takes a "
            "bend between them.",
            FEED_FORWARD,
            (variant(base, build=no_activation),),
            ("https://github.com/spring-media/TransformerTTS/issues/102",),
        ),
        Misconception(
            "other_activation",
            "Something else than a ReLU stands between the two linear layers of feed-forward. BERT has a GELU there; the original "
            "Transformer, and this exercise, have a ReLU. Weights fit only the one that they were trained with.",
            FEED_FORWARD,
            tuple(
                variant(base, build=other_activation(one))
                for one in (nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.LeakyReLU(), nn.Tanh(), nn.Sigmoid())
            ),
        ),
        Misconception(
            "norm_over_the_sentence",
            "The norms take mean and variance over the tokens of a sentence. A token's result then depends on padding and on "
            "the length. Each token is normalised on its own.",
            "encoder#layer-norm-or-batch-norm",
            (variant(base, build=over_the_sentence), variant(base, build=over_the_tokens)),
            (
                "https://github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8",
                "https://github.com/reczoo/FuxiCTR/issues/23",
            ),
        ),
        Misconception(
            "batch_norm_for_layer_norm",
            "The norms are batch norms: a token's result depends on what else is in the batch, in training, and on averages kept "
            "from training afterwards.",
            "encoder#layer-norm-or-batch-norm",
            (variant(base, build=batch_norm),),
            ("https://github.com/pytorch/pytorch/issues/70529",),
        ),
        Misconception(
            "ln_unbiased",
            "The norms divide by n - 1, which is what std and var of a tensor do unless told otherwise. Layer norm divides by "
            "the number of features.",
            "encoder#n-or-n-minus-one",
            (variant(base, build=unbiased), variant(base, build=unbiased_outside)),
            ("https://github.com/harvardnlp/annotated-transformer/pull/119",),
        ),
        Misconception(
            "norm_eps",
            "The norms have another epsilon than nn.LayerNorm's own 1e-5, or add it outside the root. With tokens of ordinary size "
            "nobody notices; where their features hardly differ the results do.",
            "encoder#epsilon-inside-the-root",
            tuple(
                variant(base, build=build)
                for build in (other_eps(1e-6), other_eps(1e-12), other_eps(1e-3), eps_outside)
            ),
            ("https://github.com/hkproj/pytorch-transformer/pull/31",),
        ),
        Misconception(
            "rms_norm",
            "The norms don't subtract the mean: they only divide by the root of the mean square. That is RMS norm, which some newer "
            "models have.",
            "encoder#layer-norm-by-hand",
            (variant(base, build=root_mean_square),),
        ),
        Misconception(
            "norm_scale_and_shift_unused",
            "The norms normalise, but their learned scale (weight) and shift (bias) have no effect. At the start, when they are 1 "
            "and 0, nobody notices.",
            "encoder#layer-norm-by-hand",
            (variant(base, build=no_scale_and_shift),),
        ),
        Misconception(
            "one_head",
            "num_heads does not reach the attention: it works with a single head.",
            ADD,
            (variant(base, build=one_head),),
        ),
        Misconception(
            "parts_named_otherwise",
            "The check puts numbers of its own into the parts, by their names: self_attn with q_proj, k_proj, v_proj and "
            "out_proj; ffn, a Sequential of exactly three (so that ffn[0] and ffn[2] are the linear ones); norm1 and norm2. One "
            "of these is missing, has another name or place, or has another size: d_ff is the width in the middle.",
            FEED_FORWARD,
            (NamedOtherwise, OtherSizes),
        ),
        Misconception(
            "attends_across_batch",
            "The first axis is treated as the sentence: tokens attend to the same place in the other examples. Everything is batch "
            "first here.",
            "multi_head#batch-first",
            (variant(base, attend=across_the_batch),),
            (
                "https://github.com/om-ai-lab/OmDet/issues/19",
                "https://github.com/aipixel/AEMatter/issues/3",
            ),
        ),
        Misconception(
            "first_example_alone",
            "Behind the attention stands [0]. nn.MultiheadAttention returns a pair, output and weights, of which [0] takes the "
            "output. This attention returns the output alone, and [0] takes the first example of the batch, which is then "
            "added to every example without any error.",
            "encoder#one-layer",
            (variant(base, attend=lambda layer, x, mask: layer.self_attn(x, x, x, mask)[0]),),
        ),
        Misconception(
            "mask_not_passed_on",
            "The mask does not reach the attention. No error is raised, and padding takes part in every average.",
            MASK,
            (variant(base, attend=lambda layer, x, mask: layer.self_attn(x, x, x)),),
            (
                "https://github.com/imperial-qore/TranAD/issues/10",
                "https://github.com/pytorch/pytorch/issues/131254",
            ),
        ),
        Misconception(
            "mask_inverted",
            "The mask reaches the attention the wrong way round. True means “may attend” here; in nn.MultiheadAttention and "
            "nn.TransformerEncoderLayer it means the opposite.",
            "self_attention#boolean-or-additive",
            (variant(base, attend=inverted),),
            ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/148",),
        ),
        Misconception(
            "mask_remembered",
            "The first mask is kept and used again in later calls. A mask belongs to its call: the next batch has other lengths.",
            MASK,
            (variant(base, attend=keeps_its_mask),),
        ),
        Misconception(
            "attention_cut_off",
            "The result is right, but no gradient passes through the attention (detach, no_grad, .data), so that it never "
            "learns.",
            PATH,
            (variant(base, attend=lambda layer, x, mask: layer.self_attn(x, x, x, mask).detach()),),
            ("https://github.com/lucidrains/CoCa-pytorch/issues/6",),
        ),
        Misconception(
            "feed_forward_cut_off",
            "The result is right, but no gradient passes through feed-forward (detach, no_grad, .data), so that it never learns.",
            PATH,
            (variant(base, feed=lambda layer, x: layer.ffn(x).detach()),),
        ),
        Misconception(
            "dropout_in_eval",
            "Dropout is at work in evaluation mode too. functional.dropout does not know the module's mode unless it is told with "
            "training=self.training; the module nn.Dropout knows it.",
            DROPOUT,
            (
                variant(base, drop=lambda layer, added: F.dropout(added, layer.dropout.p)),
                variant(base, train=always_training),
            ),
            (
                "https://github.com/huggingface/pytorch-image-models/pull/1978",
                "https://github.com/Coderx7/SimpleNet/issues/2",
            ),
        ),
        Misconception(
            "no_dropout",
            "What the sublayers add is never dropped. Dropout in the attention (on its weights) is another one, and not "
            "enough.",
            DROPOUT,
            (variant(base, drop=lambda layer, added: added),),
            ("https://github.com/neulab/xnmt/pull/544",),
        ),
        Misconception(
            "no_dropout_on_attention_weights",
            "dropout does not reach the attention: its weights are never dropped.",
            DROPOUT,
            (variant(base, build=no_weight_dropout),),
            (
                "https://github.com/dimitymiller/cac-openset/issues/1",
                "https://github.com/layer6ai-labs/TabDPT-inference/issues/4",
            ),
        ),
        Misconception(
            "dropout_inside_feed_forward",
            "Dropout acts between the two linear layers as well. nn.TransformerEncoderLayer has one there; the paper, and this "
            "exercise, have it only on what a sublayer adds and on the attention weights.",
            DROPOUT,
            (variant(base, feed=hidden_dropout),),
        ),
        Misconception(
            "dropout_not_scaled",
            "What is kept is not scaled up in training, so that in evaluation mode, when nothing is dropped, everything is larger than "
            "the layers were trained with (or it is scaled down there). nn.Dropout divides by 1 - p in training, and does nothing "
            "afterwards.",
            DROPOUT,
            (variant(base, drop=dropped_unscaled), variant(base, drop=scaled_in_evaluation)),
        ),
        Misconception(
            "dropout_twice",
            "What a sublayer adds is dropped twice, one dropout after the other. Is there one inside the sublayer and one around it?",
            DROPOUT,
            (variant(base, drop=lambda layer, added: layer.dropout(layer.dropout(added))),),
            ("https://github.com/nihalpasham/optimus/issues/3",),
        ),
        Misconception(
            "dropout_other_probability",
            "Dropout is at work, but not with the probability that was given: a number written into the code is used, or the "
            "probability of keeping is taken for that of dropping.",
            DROPOUT,
            (
                variant(base, drop=lambda layer, added: F.dropout(added, 0.5 * bool(layer.dropout.p), layer.training)),
                variant(base, drop=lambda layer, added: F.dropout(added, 0.1 * bool(layer.dropout.p), layer.training)),
                variant(base, drop=lambda layer, added: F.dropout(added, (1 - layer.dropout.p) % 1, layer.training)),
            ),
            (
                "https://github.com/dimitymiller/cac-openset/issues/1",
                "https://github.com/nlpyang/hiersumm/issues/17",
            ),
        ),
        Misconception(
            "whole_tokens_dropped",
            "A token gets all of what a sublayer adds, or nothing of it. Dropout decides for each feature on its own.",
            DROPOUT,
            (variant(base, drop=dropped_by_token), variant(base, drop=dropped_by_example)),
        ),
        Misconception(
            "dropout_by_default",
            "Where dropout is not given it should be 0; here it is 0.1 or so.",
            DROPOUT,
            (dropout_by_default(base),),
        ),
    )


# Each of these is EncoderLayer.forward with one slip.


def pre_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(layer.norm1(x), mask))
    return x + layer.drop(layer.feed(layer.norm2(x)))


def norm_before_the_sum(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.norm1(layer.attend(x, mask)))
    return x + layer.drop(layer.norm2(layer.feed(x)))


def norm_of_the_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x) + layer.drop(layer.attend(x, mask))
    return layer.norm2(x) + layer.drop(layer.feed(x))


def no_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return layer.norm2(layer.drop(layer.feed(layer.norm1(layer.drop(layer.attend(x, mask))))))


def no_first_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(layer.drop(layer.attend(x, mask)))
    return layer.norm2(x + layer.drop(layer.feed(x)))


def no_second_residual(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.norm2(layer.drop(layer.feed(x)))


def around_both(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return layer.norm2(x + layer.drop(layer.feed(layer.norm1(layer.drop(layer.attend(x, mask))))))


def residual_of_the_input(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    middle = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.norm2(x + layer.drop(layer.feed(middle)))


def side_by_side(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    middle = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.norm2(middle + layer.drop(layer.feed(x)))


def added_to_itself(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(layer.attend(x, mask))
    x = layer.norm1(x + x)
    return layer.norm2(x + layer.drop(layer.feed(x)))


def input_twice(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(2 * x + layer.drop(layer.attend(x, mask)))
    return layer.norm2(2 * x + layer.drop(layer.feed(x)))


def norms_exchanged(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm2(x + layer.drop(layer.attend(x, mask)))
    return layer.norm1(x + layer.drop(layer.feed(x)))


def norm1_twice(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.norm1(x + layer.drop(layer.feed(x)))


def no_first_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + layer.drop(layer.attend(x, mask))
    return layer.norm2(x + layer.drop(layer.feed(x)))


def no_second_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return x + layer.drop(layer.feed(x))


def feed_forward_first(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm2(x + layer.drop(layer.feed(x)))
    return layer.norm1(x + layer.drop(layer.attend(x, mask)))


def dropout_on_the_sum(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(layer.drop(x + layer.attend(x, mask)))
    return layer.norm2(layer.drop(x + layer.feed(x)))


def dropout_after_the_norm(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.drop(layer.norm1(x + layer.attend(x, mask)))
    return layer.drop(layer.norm2(x + layer.feed(x)))


def dropout_at_the_end_too(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.drop(layer.norm2(x + layer.drop(layer.feed(x))))


def dropout_before_the_sublayer(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.attend(layer.drop(x), mask))
    return layer.norm2(x + layer.feed(layer.drop(x)))


def dropout_once(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.drop(layer.attend(x, mask)))
    return layer.norm2(x + layer.feed(x))


def dropout_on_feed_forward_alone(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x + layer.attend(x, mask))
    return layer.norm2(x + layer.drop(layer.feed(x)))


def in_place(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x += layer.drop(layer.attend(x, mask))
    x = layer.norm1(x)
    return layer.norm2(x + layer.drop(layer.feed(x)))


def path_cut_off(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = layer.norm1(x.detach() + layer.drop(layer.attend(x, mask)))
    return layer.norm2(x.detach() + layer.drop(layer.feed(x)))


def weights_too(layer: Any, x: Tensor, mask: Tensor | None = None) -> Any:
    return Steps.forward(layer, x, mask), layer.self_attn.with_weights(x, x, x, mask)[1]


def post_norm_misconceptions() -> tuple[Misconception, ...]:
    def slip(
        name: str, explanation: str, section: str, *forwards: Callable[..., Any], sources: tuple[str, ...] = ()
    ) -> Misconception:
        wrong = tuple(variant(Steps, forward) for forward in forwards)
        return Misconception(name, explanation, section, wrong, sources)

    return (
        slip(
            "pre_norm_for_post_norm",
            "This is pre-norm: each sublayer reads a normalised copy, and no norm stands on the residual path. Here the norm "
            "stands behind the sum. Both orders are in use, but weights fit only the one that they were trained with.",
            ORDER,
            pre_norm,
            sources=(
                "https://github.com/harvardnlp/annotated-transformer/issues/1",
                "https://github.com/codertimo/BERT-pytorch/issues/83",
            ),
        ),
        slip(
            "norm_before_the_sum",
            "The norm acts on what the sublayer found (or on what that is added to), and the sum follows. Then nothing brings the sum to a common size, and it "
            "grows from layer to layer. It is “Add & Norm”: first the sum, then its norm.",
            ADD,
            norm_before_the_sum,
            norm_of_the_residual,
            sources=(
                "https://github.com/keras-team/keras-io/pull/2144",
                "https://github.com/harvardnlp/annotated-transformer/issues/110",
            ),
        ),
        slip(
            "no_residual",
            "There is no residual path: the sublayers' results take the place of what they were given. A token then forgets what "
            "it was, and in a stack no gradient reaches the first layers.",
            PATH,
            no_residual,
        ),
        slip(
            "no_residual_around_attention",
            "No residual path leads past the attention: what it found takes the token's place. Each of the two sublayers has a "
            "path of its own around it.",
            PATH,
            no_first_residual,
        ),
        slip(
            "no_residual_around_feed_forward",
            "No residual path leads past feed-forward: its result takes the token's place. Each of the two sublayers has a path "
            "of its own around it.",
            PATH,
            no_second_residual,
        ),
        slip(
            "one_residual_around_both",
            "One residual path leads past both sublayers together. Each of the two has a path of its own around it, and "
            "feed-forward's starts where the attention's has ended.",
            PATH,
            around_both,
            sources=("https://github.com/raoyongming/GFNet/issues/11",),
        ),
        slip(
            "second_residual_from_the_input",
            "What is added to feed-forward's result is the layer's own input. It should be what feed-forward was given: the "
            "token after the first Add & Norm. As it is, what attention found is lost again.",
            PATH,
            residual_of_the_input,
            sources=(
                "https://github.com/strutive07/transformer-tensorflow2.0/issues/14",
                "https://github.com/JanSchm/CapMarket/issues/8",
            ),
        ),
        slip(
            "feed_forward_reads_the_input",
            "Feed-forward is given the layer's input, as attention is. It should transform what attention has found: first mix, "
            "then transform.",
            "encoder#mix-then-transform",
            side_by_side,
        ),
        slip(
            "added_to_itself",
            "What attention found is added to itself: by then x is the name of the result, and the input is gone. Keep the "
            "input under a name of its own, or add in one line.",
            PATH,
            added_to_itself,
            sources=("https://github.com/kyegomez/BitNet/issues/32",),
        ),
        slip(
            "residual_added_twice",
            "The residual is added twice.",
            PATH,
            input_twice,
            sources=(
                "https://github.com/yunzeliu/MAP/issues/3",
                "https://github.com/lucidrains/enformer-pytorch/issues/6",
            ),
        ),
        slip(
            "norms_exchanged",
            "norm1 and norm2 have changed places. A model trained from zero does not mind; trained weights come out wrong.",
            ADD,
            norms_exchanged,
        ),
        slip(
            "norm1_used_twice",
            "norm1 stands in both places. Each of the two norms learns a scale and a shift of its own; norm2 is never used, gets "
            "no gradient, and nothing complains.",
            ADD,
            norm1_twice,
            sources=(
                "https://github.com/allenai/OLMo/issues/222",
                "https://github.com/ml-explore/mlx/issues/1636",
                "https://github.com/kyegomez/MambaTransformer/issues/14",
            ),
        ),
        slip(
            "no_norm_after_attention",
            "The sum after the attention is not normalised. Both sums are.",
            ADD,
            no_first_norm,
            sources=("https://github.com/OpenNMT/OpenNMT-py/issues/2364",),
        ),
        slip(
            "no_norm_after_feed_forward",
            "The sum after feed-forward is not normalised, so the layer's result grows with every layer. Both sums are "
            "normalised.",
            ADD,
            no_second_norm,
        ),
        slip(
            "feed_forward_first",
            "Feed-forward comes before attention. First the tokens exchange what they hold, then each is transformed.",
            "encoder#mix-then-transform",
            feed_forward_first,
        ),
        slip(
            "dropout_on_the_sum",
            "Dropout acts on the sum (or on what the norm makes of it), and so deletes features of the residual path itself. What "
            "is deleted there is gone for all later layers: after 12 of them, with 0.1, 8 % of the input is left. It belongs on "
            "what the sublayer adds, before the sum.",
            DROPOUT,
            dropout_on_the_sum,
            dropout_after_the_norm,
            dropout_at_the_end_too,
            sources=(
                "https://github.com/hyunwoongko/transformer/issues/8",
                "https://github.com/codertimo/BERT-pytorch/issues/85",
                "https://github.com/soobinseo/Transformer-TTS/issues/11",
            ),
        ),
        slip(
            "dropout_before_the_sublayer",
            "Dropout acts on what the sublayers are given. It belongs on what they give back, before that is added.",
            DROPOUT,
            dropout_before_the_sublayer,
        ),
        slip(
            "dropout_on_attention_alone",
            "What attention adds is dropped in training, what feed-forward adds is not. Dropout belongs on both.",
            DROPOUT,
            dropout_once,
        ),
        slip(
            "dropout_on_feed_forward_alone",
            "What feed-forward adds is dropped in training, what attention adds is not. Dropout belongs on both (the one on the "
            "attention weights is another).",
            DROPOUT,
            dropout_on_feed_forward_alone,
        ),
        slip(
            "input_changed",
            "x += ... works in place: it changes the caller's own tensor, and raises an error where that tensor wants a gradient. "
            "x = x + ... makes a new one.",
            SLIPS,
            in_place,
            sources=(
                "https://github.com/vllm-project/vllm/pull/24500",
                "https://github.com/iMED-Lab/ER-Net/pull/3",
            ),
        ),
        slip(
            "residual_path_cut_off",
            "The result is right, but no gradient comes back along the residual path (detach, .data, a copy without a graph). "
            "That path is what lets early layers of a deep stack learn.",
            PATH,
            path_cut_off,
        ),
        slip(
            "weights_returned_too",
            "The attention weights are returned beside the result. One tensor is asked for, so that layers can be stacked.",
            "encoder#one-layer",
            weights_too,
        ),
    )


EXERCISE = Exercise(
    name="EncoderLayer",
    chapter="encoder",
    kind="class",
    minutes=30,
    parts=(
        Part("layer", 3, "add what each sublayer finds to what it was given, and normalise each sum", ADD),
        Part("mask", 1, "keep what the mask hides out of every visible token's result", MASK),
        Part("gradients", 1, "let the right gradients reach the input and all parameters", PATH),
        Part("dropout", 1, "drop attention weights and features of what is added in training, and only then", DROPOUT),
    ),
    hints=(
        "Draw the layer as a line from top to bottom: which two things are fed from the line and added to it again, and where "
        "on the line do the norms stand?",
        "Each sublayer takes one line: the norm of a sum of two. The second starts from what the first has made, not from the "
        "layer's input.",
        "In __init__: self_attn, ffn = nn.Sequential of Linear, ReLU, Linear, norm1, norm2, and one nn.Dropout. In forward, for "
        "each sublayer: call it, dropout, add to x, norm; attention gets x three times, and the mask.",
    ),
    cases=cases,
    reference=EncoderLayer,
    misconceptions=(*common_misconceptions(Steps), *post_norm_misconceptions()),
)

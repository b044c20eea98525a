"""Exercise: a stack of layers, and the norm that pre-norm needs at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mha_course.encoder import Encoder, EncoderLayer
from mha_course.exercises.encoder.EncoderLayer import (
    DROPOUT,
    MASK,
    ORDER,
    PATH,
    SLIPS,
    dropped_or_scaled,
    reordered,
    silence,
    state_for,
    tokens,
    variant,
)
from mha_course.exercises.encoder.PreNormEncoderLayer import PreSteps, both_from_normed
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property, given
from mha_course.exercises.properties import close, ragged_mask, randn, sequence_first, unchanged
from mha_course.self_attention import causal_mask, padding_mask

OWN, LAST = "encoder#a-stack-has-layers-of-its-own", "encoder#the-last-norm"
STACK = "encoder#one-layer"
ALIKE = (
    "One thing could be better: all your layers begin with the same numbers, as copies do. They can learn to differ, but "
    "layers that are made one by one begin with numbers of their own."
)


def cases(rng: Generator) -> Iterator[Case]:
    yield from _parameter_cases()
    yield from _value_cases(rng)
    yield from _mask_cases(rng)
    x = tokens(rng, 2, 3, 6)
    mask = padding_mask(torch.tensor([3, 2]), 3)
    for label, train, call in (
        ("evaluation mode, with gradients", False, Call((x,), backward=True)),
        ("training mode, a padding mask, with gradients", True, Call((x, mask), backward=True)),
    ):
        yield stack(rng, "gradients", x, 2, 5, 2, label, calls=(call,), train=train)
    yield from _mode_cases(rng)


def _parameter_cases() -> Iterator[Case]:
    for d_model, heads, d_ff, layers in ((6, 3, 5, 1), (6, 2, 5, 3)):
        label = f"d_model {d_model}, {heads} heads, d_ff {d_ff}, {layers} layer{'s' * (layers > 1)}: all its parameters, counted"
        build = Call((d_model, heads, d_ff, layers))
        yield Case("stack", label, (Call(()),), build, through=given(count_parameters))
    label = "the first weights of 3 layers just made"
    yield Case("stack", label, (Call(()),), Call((6, 2, 5, 3)), through=given(begin_alike), advice=ALIKE)


def count_parameters(encoder: nn.Module) -> Callable[[], int]:
    return lambda: sum(parameter.numel() for parameter in encoder.parameters())


def begin_alike(encoder: Any) -> Callable[[], bool]:
    weights = [layer.ffn[0].weight for layer in encoder.layers]
    return lambda: bool(torch.equal(weights[0], weights[-1]))


def _value_cases(rng: Generator) -> Iterator[Case]:
    for batch, length, d_model, heads, d_ff, layers in (
        (2, 3, 14, 2, 11, 3),
        (2, 3, 6, 3, 5, 1),
        (3, 5, 6, 3, 7, 2),
        (2, 1, 4, 2, 3, 4),
        (2, 6, 6, 2, 6, 2),  # as many tokens as features, as many layers as examples and heads
    ):
        yield stack(rng, "stack", tokens(rng, batch, length, d_model), heads, d_ff, layers)
    x = tokens(rng, 2, 3, 6)
    state = {name: value.double() for name, value in state_of(rng, 6, 5, 2).items()}
    label = f"{describe(x, 3, 5, 2)}, float64"
    yield Case("stack", label, (Call((x.double(),)),), Call((6, 3, 5, 2)), state, tolerance=1e-9)
    yield stack(rng, "stack", sequence_first(x), 3, 5, 2, "stored sequence first")
    yield stack(rng, "stack", x, 3, 5, 2, "in training, dropout not given", train=True)
    state = state_of(rng, 6, 5, 3)
    nothing = silent(6, 5, 3)
    holds = (normalised(state["norm.weight"], state["norm.bias"]),)
    for size, which in ((1.0, "layers"), (1e-3, "tiny tokens, layers")):
        label = f"{which} that add nothing (out_proj and ffn[2] all zeros)"
        small = size * tokens(rng, 2, 3, 6)
        yield stack(rng, "stack", small, 3, 5, 3, label, changes={**state, **nothing}, holds=holds if size == 1 else ())
    for number in range(3):
        changes = {
            **state,
            **{name: value for name, value in nothing.items() if not name.startswith(f"layers.{number}.")},
        }
        yield stack(rng, "stack", x, 3, 5, 3, f"only layer {number} (counted from 0) adding something", changes=changes)
    x = tokens(rng, 3, 5, 6)
    rule = unchanged(
        "The examples of a batch do not affect one another.",
        "when only the other examples were changed, the first one's result moved by {change}",
        where=0,
    )
    calls = Call((x,)), Call((torch.cat([x[:1], tokens(rng, 2, 5, 6)]),))
    yield stack(rng, "stack", x, 3, 5, 2, "all examples but the first changed", calls=calls, holds=(rule,))
    order = torch.tensor([4, 0, 3, 1, 2])
    calls = Call((x,)), Call((x[:, order],))
    yield stack(rng, "stack", x, 3, 5, 2, "tokens in another order", calls=calls, holds=(reordered(order),))


def _mask_cases(rng: Generator) -> Iterator[Case]:
    x = tokens(rng, 2, 5, 6)
    for label, mask in (
        ("a mask (batch, 1, 1, key) for the padding", padding_mask(torch.tensor([5, 3]), 5)),
        ("a mask (query, key)", every_key_used(ragged_mask(rng, 5, 5))),
        ("a mask (batch, 1, query, key)", every_key_used(ragged_mask(rng, 2, 1, 5, 5))),
        ("one sentence is all padding", padding_mask(torch.tensor([5, 0]), 5)),
    ):
        yield stack(rng, "mask", x, 3, 7, 2, label, calls=(Call((x, mask)),))
    garbage = torch.cat([x[:, :3], 9 * tokens(rng, 2, 2, 6)], dim=1)
    for name, mask in (("causal", causal_mask(5)), ("padding", padding_mask(torch.tensor([3, 3]), 5))):
        rule = unchanged(
            "What a mask hides has no effect, in any layer.",
            "when only the last two tokens were changed, which the mask hides from the first three, "
            "the first three moved by {change}",
            where=(slice(None), slice(3)),
        )
        pair = Call((x, mask)), Call((garbage, mask))
        for train in (False, True) if name == "padding" else (False,):
            mode = "training" if train else "evaluation"
            label = f"a {name} mask, {mode} mode, the last two tokens changed"
            yield stack(rng, "mask", x, 3, 7, 2, label, calls=pair, holds=(rule,), train=train)
    left = padding_mask(torch.tensor([3, 3]), 5).flip(-1)
    yield stack(rng, "mask", x, 3, 7, 2, "padding at the front of every sentence", calls=(Call((x, left)),))
    calls = (
        Call((x, every_key_used(ragged_mask(rng, 5, 5)))),
        Call((x, every_key_used(ragged_mask(rng, 5, 5)))),
        Call((x,)),
        Call((x[:, :3], every_key_used(ragged_mask(rng, 3, 3)))),
        Call((x[:1], None)),
    )
    label = "one encoder called again with another mask, without one, with fewer tokens, with one example"
    yield stack(rng, "mask", x, 3, 7, 2, label, calls=calls)


def every_key_used(mask: Tensor) -> Tensor:
    """Let the first query attend to the last key, so that no column at the end is padding."""
    mask[..., 0, -1] = True
    return mask


def _mode_cases(rng: Generator) -> Iterator[Case]:
    x = tokens(rng, 2, 5, 6)
    rule = unchanged("In evaluation mode nothing is left to chance.", "two runs on one input differ by {change}")
    label = "dropout 0.5, evaluation mode, asked twice"
    yield stack(rng, "dropout", x, 2, 7, 2, label, calls=(Call((x,)),) * 2, dropout=0.5, holds=(rule,))
    calls: tuple[Call, ...] = Call((x,)), *(Call((x,), train=False),) * 2
    later = Property("In evaluation mode nothing is left to chance.", lambda outputs: _moved(outputs[1:]))
    label = "dropout 0.5, in training, then twice in evaluation mode"
    yield stack(rng, "dropout", x, 2, 7, 2, label, calls=calls, dropout=0.5, holds=(later,), train=True, compare=False)
    rule = unchanged(
        "Dropout acts inside the layers, on what they add: what comes along the residual path is never dropped.",
        "with layers that add nothing, two runs on one input differ by {change}",
    )
    label = "dropout 0.5, training mode, layers that add nothing"
    calls = Call((x,)), Call((x,))
    nothing = silent(6, 7, 2)
    yield stack(rng, "dropout", x, 2, 7, 2, label, calls=calls, changes=nothing, dropout=0.5, holds=(rule,), train=True)
    nothing = silent(14, 7, 2)
    path = torch.eye(14)[-1].expand(31, 2, 14).clone()
    plain = {"norm.weight": torch.ones(14), "norm.bias": torch.zeros(14)}
    for number in range(2):
        added = {f"layers.{number}.self_attn.out_proj.bias": 8 * (torch.ones(14) - torch.eye(14)[-1])}
        label = (
            f"only the attention of layer {number} adding 8, to every feature but the last, dropout 0.2, training mode"
        )
        yield stack(
            rng,
            "dropout",
            path,
            2,
            7,
            2,
            label,
            changes={**nothing, **plain, **added},
            dropout=0.2,
            train=True,
            compare=False,
            holds=(dropped_or_scaled("attention", 0.2, 1.0),),
        )


def stack(
    rng: Generator,
    part: str,
    x: Tensor,
    heads: int,
    d_ff: int,
    layers: int,
    label: str = "",
    *,
    calls: tuple[Call, ...] = (),
    changes: dict[str, Tensor] | None = None,
    dropout: float | None = None,
    holds: tuple[Property, ...] = (),
    train: bool = False,
    compare: bool = True,
) -> Case:
    """One encoder with parameters of its own, called once on `x` unless other calls are given."""
    sizes = (x.size(-1), heads, d_ff, layers)
    build = Call(sizes if dropout is None else (*sizes, dropout))
    state = {**state_of(rng, x.size(-1), d_ff, layers), **(changes or {})}
    text = describe(x, heads, d_ff, layers) + f", {label}" * bool(label)
    return Case(part, text, calls or (Call((x,)),), build, state, train, compare=compare, holds=holds)


def state_of(rng: Generator, d_model: int, d_ff: int, layers: int) -> dict[str, Tensor]:
    """Draw parameters for every layer, each with its own, and a last norm that is not plain."""
    state = {
        f"layers.{number}.{name}": value
        for number in range(layers)
        for name, value in state_for(rng, d_model, d_ff).items()
    }
    return state | {
        "norm.weight": 1 + torch.rand(d_model, generator=rng),
        "norm.bias": randn(rng, d_model, scale=0.5),
    }


def silent(d_model: int, d_ff: int, layers: int) -> dict[str, Tensor]:
    """Parameters with which no layer adds anything."""
    return {
        name: value
        for number in range(layers)
        for part, inputs in (("self_attn.out_proj", d_model), ("ffn.2", d_ff))
        for name, value in silence(f"layers.{number}.{part}", d_model, inputs).items()
    }


def describe(x: Tensor, heads: int, d_ff: int, layers: int) -> str:
    batch, length, d_model = x.shape
    many = f"{heads} head{'s' * (heads > 1)}, d_ff {d_ff}, {layers} layer{'s' * (layers > 1)}"
    return f"batch {batch}, length {length}, d_model {d_model}, {many}"


def normalised(weight: Tensor, bias: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        normed = (outputs[0] - bias) / weight
        mean, square = normed.mean(dim=-1).abs().max(), normed.square().mean(dim=-1)
        if mean < 1e-3 and (square - 1).abs().max() < 1e-2:
            return None
        return (
            "with scale and shift taken off again, your tokens have a mean square of "
            f"{square.min():.2g} to {square.max():.2g} and a mean of up to {mean:.2g}, instead of 1 and 0"
        )

    return Property(
        "Whatever the layers add, the last thing that acts on a token is one norm, with its scale and shift.", broken
    )


def _moved(outputs: Sequence[Any]) -> str | None:
    return None if close(outputs[1], outputs[0], 1e-6) else "two runs on one input differ"


# --- wrong answers -------------------------------------------------------------------------------------------------


def stacked(
    forward: Callable[..., Any] | None = None, build: Callable[[Any], None] | None = None, **methods: Any
) -> type[nn.Module]:
    return variant(Encoder, forward, build, **methods)


def through_layers(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x = layer(x, mask)
    return x


def no_last_norm(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return through_layers(encoder, x, mask)


def norm_in_the_loop(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x = encoder.norm(layer(x, mask))
    return x


def norm_in_the_loop_too(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(norm_in_the_loop(encoder, x, mask))


def norm_at_the_start(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return through_layers(encoder, encoder.norm(x), mask)


def norm_at_both_ends(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, encoder.norm(x), mask))


def last_layer_alone(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    output = x
    for layer in encoder.layers:
        output = layer(x, mask)
    return encoder.norm(output)


def sum_of_layers(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    total = x
    for layer in encoder.layers:
        x = layer(x, mask)
        total = total + x
    return encoder.norm(total)


def path_around_each(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x = x + layer(x, mask)
    return encoder.norm(x)


def path_around_all(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(x + through_layers(encoder, x, mask))


def one_too_few(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers[:-1]:
        x = layer(x, mask)
    return encoder.norm(x)


def first_left_out(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers[1:]:
        x = layer(x, mask)
    return encoder.norm(x)


def last_twice(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(encoder.layers[-1](through_layers(encoder, x, mask), mask))


def first_again_and_again(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for _ in encoder.layers:
        x = encoder.layers[0](x, mask)
    return encoder.norm(x)


def from_the_end(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in reversed(encoder.layers):
        x = layer(x, mask)
    return encoder.norm(x)


def without_mask(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, x))


def mask_for_the_first(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for number, layer in enumerate(encoder.layers):
        x = layer(x, mask if number == 0 else None)
    return encoder.norm(x)


def mask_for_the_last(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for number, layer in enumerate(encoder.layers, start=1):
        x = layer(x, mask if number == len(encoder.layers) else None)
    return encoder.norm(x)


def mask_for_all_but_the_last(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for number, layer in enumerate(encoder.layers, start=1):
        x = layer(x, None if number == len(encoder.layers) else mask)
    return encoder.norm(x)


def mask_for_all_but_the_first(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for number, layer in enumerate(encoder.layers):
        x = layer(x, mask if number else None)
    return encoder.norm(x)


def norm_in_training_alone(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = through_layers(encoder, x, mask)
    return encoder.norm(x) if encoder.training else x


def norm_in_evaluation_alone(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = through_layers(encoder, x, mask)
    return x if encoder.training else encoder.norm(x)


def plain_norm(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.layer_norm(through_layers(encoder, x, mask), x.shape[-1:])


def result_remembered(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if not hasattr(encoder, "kept") or encoder.kept.shape != x.shape:
        encoder.kept = Encoder.forward(encoder, x, mask)
    return encoder.kept


def mask_inverted(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, x, None if mask is None else ~mask))


def mask_remembered(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if not hasattr(encoder, "kept"):
        encoder.kept = mask
    return encoder.norm(through_layers(encoder, x, encoder.kept))


def cut(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    used = int(mask.reshape(-1, mask.size(-1)).any(dim=0).nonzero().max()) + 1  # type: ignore[union-attr]
    return encoder.norm(through_layers(encoder, x[:, :used], mask[..., :used]))  # type: ignore[index]


def cut_in_evaluation(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, x, mask)) if mask is None or encoder.training else cut(encoder, x, mask)


def cut_always(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, x, mask)) if mask is None else cut(encoder, x, mask)


def zeroed(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    output = encoder.norm(through_layers(encoder, x, mask))
    if mask is None or mask.dim() != 4 or mask.size(2) != 1:
        return output
    return output * mask[:, 0, 0, :, None]


def zeroed_in_evaluation(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return encoder.norm(through_layers(encoder, x, mask)) if encoder.training else zeroed(encoder, x, mask)


def input_zeroed(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and mask.dim() == 4 and mask.size(2) == 1:
        x = x * mask[:, 0, 0, :, None]
    return encoder.norm(through_layers(encoder, x, mask))


def cut_and_filled_up(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if encoder.training or mask is None or mask.dim() != 4 or mask.size(2) != 1:
        return encoder.norm(through_layers(encoder, x, mask))
    output = cut(encoder, x, mask)
    return F.pad(output, (0, 0, 0, x.size(1) - output.size(1)))


def cut_between_layers(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x = layer(x.detach(), mask)
    return encoder.norm(x)


def layers_without_gradient(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        x = through_layers(encoder, x, mask)
    return encoder.norm(x)


def input_dropped(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    p = encoder.layers[0].dropout.p
    return encoder.norm(through_layers(encoder, F.dropout(x, p, encoder.training), mask))


def output_dropped(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    p = encoder.layers[0].dropout.p
    return F.dropout(encoder.norm(through_layers(encoder, x, mask)), p, encoder.training)


def dropped_between_layers(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x = F.dropout(layer(x, mask), layer.dropout.p, encoder.training)
    return encoder.norm(x)


def layers_skipped(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        if not encoder.training or torch.rand(()) >= layer.dropout.p:
            x = layer(x, mask)
    return encoder.norm(x)


def in_place(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        x += layer(x, mask) - x
    return encoder.norm(x)


def in_place_unseen(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    output = encoder.norm(through_layers(encoder, x, mask))
    with torch.no_grad():
        x.copy_(output)
    return output


def all_states(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Any:
    states = []
    for layer in encoder.layers:
        x = layer(x, mask)
        states.append(x)
    return encoder.norm(x), tuple(states)


def same_layer(encoder: Any) -> None:
    encoder.layers = nn.ModuleList([encoder.layers[0]] * len(encoder.layers))


def shared(*names: str) -> Callable[[Any], None]:
    def build(encoder: Any) -> None:
        for layer in encoder.layers[1:]:
            for name in names:
                setattr(layer, name, getattr(encoder.layers[0], name))

    return build


def frozen(encoder: Any) -> None:
    encoder.layers.requires_grad_(False)


def dropout_in(without: slice) -> Callable[[Any], None]:
    """Take the dropout out of some of the layers."""

    def build(encoder: Any) -> None:
        for part in encoder.layers[without].modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0

    return build


class PlainList(Encoder):
    """Layers in a list: found by whoever asks for one by number, and by nobody else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        layers = list(self.layers)
        del self.layers
        self.layers = layers  # type: ignore[assignment]


def extra_layer(base: type[nn.Module]) -> type[nn.Module]:
    class More(base):  # type: ignore[misc, valid-type]
        def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.0) -> None:
            super().__init__(d_model, num_heads, d_ff, num_layers + 1, dropout)

    return More


def layer_missing(base: type[nn.Module]) -> type[nn.Module]:
    class Fewer(base):  # type: ignore[misc, valid-type]
        def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.0) -> None:
            super().__init__(d_model, num_heads, d_ff, num_layers - 1, dropout)

    return Fewer


def always(number: int) -> type[nn.Module]:
    class Always(Encoder):
        def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.0) -> None:
            super().__init__(d_model, num_heads, d_ff, number, dropout)

    return Always


def first_two(encoder: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    for layer in encoder.layers[:2]:
        x = layer(x, mask)
    return encoder.norm(x)


def dropout_as(choose: Callable[[float], float], by_default: float = 0.0) -> type[nn.Module]:
    class Other(Encoder):
        def __init__(
            self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = by_default
        ) -> None:
            super().__init__(d_model, num_heads, d_ff, num_layers, choose(dropout))

    return Other


def made_of(kind: type[nn.Module]) -> type[nn.Module]:
    class MadeOf(Encoder):
        def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.0) -> None:
            super().__init__(d_model, num_heads, d_ff, num_layers, dropout)
            self.layers = nn.ModuleList(kind(d_model, num_heads, d_ff, dropout) for _ in range(num_layers))

    return MadeOf


class NamedOtherwise(nn.Module):
    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.stack = Encoder(*args)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.stack(x, mask)


def norm_eps(eps: float) -> Callable[[Any], None]:
    def build(encoder: Any) -> None:
        encoder.norm.eps = eps

    return build


def always_training(encoder: Any, mode: bool = True) -> Any:
    return nn.Module.train(encoder, True)


MISCONCEPTIONS = (
    Misconception(
        "missing_final_norm",
        "There is no norm after the last layer. Each layer's own norms stand before its sublayers, and nothing normalises what the "
        "layers have added up: the result grows with the number of layers, and differs in size from token to token. Pre-norm "
        "needs one more norm at the very end.",
        LAST,
        (stacked(no_last_norm), stacked(norm_in_training_alone), stacked(norm_in_evaluation_alone)),
        (
            "https://github.com/NVIDIA-NeMo/Speech/pull/2197",
            "https://github.com/marian-nmt/marian-dev/pull/719",
            "https://github.com/facebookresearch/xformers/issues/665",
        ),
    ),
    Misconception(
        "layers_share_module",
        "All layers are one and the same: [layer] * n writes n times the same name, and a loop that calls one layer n times comes to "
        "the same. Shapes are right, and it trains, but with the parameters of one layer. Each layer is to be made anew.",
        OWN,
        (stacked(build=same_layer), stacked(first_again_and_again)),
        (
            "https://github.com/espnet/espnet/issues/1278",
            "https://github.com/datawhalechina/learn-nlp-with-transformers/issues/56",
            "https://github.com/zalandoresearch/pytorch-vq-vae/issues/2",
        ),
    ),
    Misconception(
        "layers_share_a_part",
        "The layers are objects of their own, but share a part: an attention, a feed-forward or norms that were made once, outside "
        "the loop, and handed to all of them. Each layer has all its parts to itself.",
        OWN,
        tuple(stacked(build=shared(*names)) for names in (("ffn",), ("self_attn",), ("norm1", "norm2"))),
        ("https://github.com/habla-liaa/encodecmae/issues/3",),
    ),
    Misconception(
        "layers_in_a_list",
        "The layers stand in a plain Python list (or the like). PyTorch looks for parameters in modules only, so that parameters() does "
        "not find them: no optimizer trains them, and they are not saved or moved. nn.ModuleList is a list that it looks "
        "into.",
        OWN,
        (PlainList,),
        (
            "https://github.com/pytorch/pytorch/issues/666",
            "https://github.com/pytorch/pytorch/issues/38639",
            "https://github.com/twitter/the-algorithm-ml/pull/136",
        ),
    ),
    Misconception(
        "parts_named_otherwise",
        "The check puts numbers of its own into the parts, by their names: layers, norm, and in each layer self_attn, ffn, norm1 "
        "and norm2. One of these is missing or has another name.",
        OWN,
        (NamedOtherwise,),
    ),
    Misconception(
        "one_layer_too_many",
        "There is one layer more than asked for: num_layers counts all of them.",
        OWN,
        (extra_layer(Encoder), stacked(last_twice)),
        ("https://github.com/jianz94/e-lstm-d/issues/2",),
    ),
    Misconception(
        "one_layer_too_few",
        "One layer is missing, or is made and never used. range(n) has n numbers, 0 to n - 1.",
        OWN,
        (layer_missing(Encoder), stacked(one_too_few), stacked(first_left_out)),
        (
            "https://github.com/LukasHedegaard/continual-inference/pull/70",
            "https://github.com/shiyu-coder/Kronos/issues/219",
        ),
    ),
    Misconception(
        "fixed_number_of_layers",
        "num_layers has no effect: there is a fixed number of layers, or only so many of them are used.",
        OWN,
        (always(6), always(2), stacked(first_two)),
    ),
    Misconception(
        "last_layer_alone",
        "Every layer is given the encoder's own input, so that only the last one's result counts. Each layer is to be given what "
        "the one before it has made.",
        STACK,
        (stacked(last_layer_alone),),
        (
            "https://github.com/Atcold/NYU-DLSP20/issues/270",
            "https://github.com/simon-ging/coot-videotext/issues/5",
        ),
    ),
    Misconception(
        "layers_from_the_end",
        "The layers are gone through from the last to the first.",
        STACK,
        (stacked(from_the_end),),
    ),
    Misconception(
        "sum_of_all_layers",
        "The results of all layers are added up. Each of them already holds what the earlier ones have added, by the residual path.",
        PATH,
        (stacked(sum_of_layers),),
    ),
    Misconception(
        "residual_around_the_layers",
        "A residual path leads past each layer, or past the whole stack, once more. The layers have theirs inside already.",
        PATH,
        (stacked(path_around_each), stacked(path_around_all)),
        ("https://github.com/yunzeliu/MAP/issues/3",),
    ),
    Misconception(
        "final_norm_after_each_layer",
        "The last norm acts after every layer, and so stands on the residual path. It acts once, after the last layer.",
        LAST,
        (stacked(norm_in_the_loop), stacked(norm_in_the_loop_too)),
        ("https://github.com/k2-fsa/snowfall/pull/184",),
    ),
    Misconception(
        "norm_before_the_first_layer",
        "The norm acts on what goes in. It belongs behind the last layer; each layer normalises what it reads by itself.",
        LAST,
        (stacked(norm_at_the_start), stacked(norm_at_both_ends)),
    ),
    Misconception(
        "norm_eps",
        "The last norm has another epsilon than nn.LayerNorm's own 1e-5. With tokens of ordinary size nobody notices; where their "
        "features hardly differ the results do.",
        "encoder#epsilon-inside-the-root",
        tuple(stacked(build=norm_eps(eps)) for eps in (1e-6, 1e-12, 1e-3)),
    ),
    Misconception(
        "norm_scale_and_shift_unused",
        "The last norm's learned scale (weight) and shift (bias) have no effect. At the start, when they are 1 and 0, nobody notices.",
        LAST,
        (stacked(plain_norm),),
    ),
    Misconception(
        "post_norm_layers",
        "The layers are post-norm: a norm stands behind each sum. Here they are pre-norm.",
        ORDER,
        (made_of(EncoderLayer),),
        ("https://github.com/pytorch/pytorch/issues/74092",),
    ),
    Misconception(
        "residual_from_normed",
        "In the layers x is overwritten by its norm and then added, so that a norm stands on the residual path after all. "
        "PreNormEncoderLayer has its own check.",
        SLIPS,
        (made_of(variant(PreSteps, both_from_normed)),),
        ("https://github.com/Howuhh/faster-trajectory-transformer/issues/3",),
    ),
    Misconception(
        "all_states_returned",
        "The results of all layers are returned beside the last. One tensor is asked for.",
        STACK,
        (stacked(all_states),),
    ),
    Misconception(
        "mask_not_passed_on",
        "The mask does not reach the layers. No error is raised, and padding takes part in every average.",
        MASK,
        (stacked(without_mask),),
        ("https://github.com/imperial-qore/TranAD/issues/10",),
    ),
    Misconception(
        "mask_not_in_every_layer",
        "Some of the layers are not given the mask. What padding holds after a layer is no more real than before: every layer needs "
        "the mask.",
        MASK,
        (
            stacked(mask_for_the_first),
            stacked(mask_for_the_last),
            stacked(mask_for_all_but_the_first),
            stacked(mask_for_all_but_the_last),
        ),
    ),
    Misconception(
        "mask_inverted",
        "The mask reaches the layers the wrong way round. True means “may attend” here; in nn.TransformerEncoder it means the "
        "opposite.",
        "self_attention#boolean-or-additive",
        (stacked(mask_inverted),),
        ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/148",),
    ),
    Misconception(
        "mask_remembered",
        "The first mask is kept and used again in later calls. A mask belongs to its call: the next batch has other lengths.",
        MASK,
        (stacked(mask_remembered),),
    ),
    Misconception(
        "result_remembered",
        "A result is kept and given back again for another input of the same shape.",
        STACK,
        (stacked(result_remembered),),
    ),
    Misconception(
        "eval_truncates_output",
        "Columns that are padding in every sentence are cut off, to save work, and not put back. The result is then shorter than "
        "the input, and what is lined up with it afterwards (labels, a mask for pooling) no longer fits. PyTorch's own encoder did "
        "this in evaluation mode.",
        MASK,
        (stacked(cut_in_evaluation), stacked(cut_always)),
        ("https://github.com/pytorch/pytorch/issues/97111",),
    ),
    Misconception(
        "padding_set_to_zero",
        "The rows of padding are set to zero. Nobody may use them, so nobody has to hide them: the encoder gives back what "
        "its layers made, and whoever pools the tokens uses the mask once more.",
        "encoder#pooling-the-mean-of-real-tokens",
        (stacked(zeroed), stacked(zeroed_in_evaluation), stacked(cut_and_filled_up), stacked(input_zeroed)),
        ("https://github.com/pytorch/pytorch/issues/86120",),
    ),
    Misconception(
        "gradient_cut_off",
        "The result is right, but the gradient does not get through the stack (detach, no_grad or requires_grad_(False) in or between the layers), so "
        "that the early layers never learn.",
        PATH,
        (stacked(cut_between_layers), stacked(layers_without_gradient), stacked(build=frozen)),
        ("https://github.com/lucidrains/CoCa-pytorch/issues/6",),
    ),
    Misconception(
        "input_changed",
        "x is changed in place (+= and the like), and with it the caller's own tensor. x = ... only gives the name to another one.",
        SLIPS,
        (stacked(in_place), stacked(in_place_unseen)),
        ("https://github.com/vllm-project/vllm/pull/24500",),
    ),
    Misconception(
        "dropout_not_passed_on",
        "dropout does not reach the layers, or not all of them, which have their own default or a fixed number instead.",
        DROPOUT,
        (
            dropout_as(lambda p: 0.0),
            dropout_as(lambda p: 0.1 if p else 0.0),
            dropout_as(lambda p: 0.5 if p else 0.0),
            stacked(build=dropout_in(slice(1, None))),
            stacked(build=dropout_in(slice(-1))),
        ),
        (
            "https://github.com/dimitymiller/cac-openset/issues/1",
            "https://github.com/layer6ai-labs/TabDPT-inference/issues/4",
        ),
    ),
    Misconception(
        "dropout_by_default",
        "Where dropout is not given it should be 0; here it is 0.1 or so.",
        DROPOUT,
        (dropout_as(lambda p: p, by_default=0.1),),
    ),
    Misconception(
        "dropout_outside_the_layers",
        "Dropout acts on the tokens themselves, before, between or after the layers, and so deletes features of the residual path. "
        "The layers have their own, on what they add.",
        DROPOUT,
        (stacked(input_dropped), stacked(output_dropped), stacked(dropped_between_layers)),
        ("https://github.com/codertimo/BERT-pytorch/issues/85",),
    ),
    Misconception(
        "layers_skipped_at_random",
        "In training whole layers are left out at random. Some models do that (LayerDrop); here dropout acts on single features of "
        "what is added.",
        DROPOUT,
        (stacked(layers_skipped),),
        ("https://github.com/facebookresearch/fairseq/issues/1938",),
    ),
    Misconception(
        "dropout_in_eval",
        "Dropout is at work in evaluation mode too: eval() does not reach it.",
        DROPOUT,
        (stacked(train=always_training),),
        ("https://github.com/huggingface/pytorch-image-models/pull/1978",),
    ),
)

EXERCISE = Exercise(
    name="Encoder",
    chapter="encoder",
    kind="class",
    minutes=15,
    parts=(
        Part(
            "stack", 3, "send the tokens through layers of its own, one after the other, and normalise at the end", OWN
        ),
        Part("mask", 1, "give the mask to every layer, and a result for every token", MASK),
        Part("gradients", 1, "let the right gradients reach the input and all parameters", PATH),
        Part("dropout", 1, "leave dropout to its layers, in training only", DROPOUT),
    ),
    hints=(
        "Two layers, on paper: what does the second one read? How many parameters should print for one layer and for two?",
        "A ModuleList holds the layers, each made by its own call of PreNormEncoderLayer. In forward x becomes the result of one "
        "layer after the other.",
        "In __init__: a ModuleList with one PreNormEncoderLayer for each number of range(num_layers), and a LayerNorm. In forward: "
        "a loop in which every layer gets x and the mask and its result becomes x; the norm after the loop.",
    ),
    cases=cases,
    reference=Encoder,
    misconceptions=MISCONCEPTIONS,
)

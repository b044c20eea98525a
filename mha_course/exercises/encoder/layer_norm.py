"""Exercise: bring each vector to mean 0 and variance 1, then scale and shift its features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from mha_course import encoder
from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Property
from mha_course.exercises.properties import randn, sequence_first, unchanged

BY_HAND, VARIANCE = "encoder#layer-norm-by-hand", "encoder#n-or-n-minus-one"
EPSILON, AXES = "encoder#epsilon-inside-the-root", "encoder#layer-norm-or-batch-norm"
OVERFLOW = (
    "One thing could be better: in float16 no number is larger than 65,504, so the square of 300 is infinite there. "
    "If the input is in half precision, calculate mean and variance in float32, and go back to its type at the end."
)


def cases(rng: Generator) -> Iterator[Case]:
    yield from _value_cases(rng)
    yield from _independence_cases(rng)
    yield from _epsilon_cases(rng)
    yield from _gradient_cases(rng)
    yield from _number_cases(rng)


def _value_cases(rng: Generator) -> Iterator[Case]:
    for shape, label in (
        ((2, 3, 5), ""),
        ((7,), "one token"),
        ((3, 7), "three tokens"),
        ((2, 3, 5, 7), "four axes"),
        ((1, 1, 11), "a sentence of one token"),
        ((5, 5), "as many tokens as features"),
        ((3, 5, 5), "as many tokens as features"),
        ((7, 2, 7), "as many sentences as features"),
        ((2, 3, 2), "two features"),
        ((2, 3, 64), "64 features"),
    ):
        yield _case(rng, "normalising", shape, label)
    # Weights of 1 and shifts of 0: what is wrong here is wrong in the normalising itself.
    for shape in ((2, 3), (2, 3, 5)):
        x = randn(rng, *shape, scale=2.0) + 1
        call = Call((x, torch.ones(shape[-1]), torch.zeros(shape[-1])))
        label = f"{describe(x)}, every weight 1 and every bias 0"
        yield Case("normalising", label, (call,), holds=(mean_is_zero, variance_is_one))
    x, weight, bias = inputs(rng, (2, 3, 5))
    yield Case("normalising", f"{describe(x)}, stored sequence first", (Call((sequence_first(x), weight, bias)),))
    call = Call((x, weight, bias, 0.3))
    yield Case("normalising", f"{describe(x)}, then other weights", (Call((x, weight, bias)), Call((x, -bias, weight))))
    yield Case("epsilon", f"{describe(x)}, eps 0.3", (call,))
    yield Case("epsilon", f"{describe(x)}, eps 0.3 given by name", (Call(call.args[:3], {"eps": 0.3}),))


def _independence_cases(rng: Generator) -> Iterator[Case]:
    x, weight, bias = inputs(rng, (3, 5, 7))
    others = randn(rng, 3, 5, 7, scale=5.0)
    others[0, 0] = x[0, 0]
    neighbour = x.clone()
    neighbour[:, 3:] = randn(rng, 3, 2, 7, scale=5.0)
    for label, changed, where in (
        ("the last two tokens changed", neighbour, (slice(None), slice(3))),
        ("everything but the first token changed", others, (0, 0)),
    ):
        rule = unchanged(
            "Each token is normalised on its own: no other token, of its sentence or the batch, has a say.",
            "when only other tokens were changed, a token moved by {change}",
            where=where,
        )
        calls = Call((x, weight, bias)), Call((changed, weight, bias))
        yield Case("normalising", f"{describe(x)}, {label}", calls, holds=(rule,))
    rule = unchanged(
        "What all features have in common, and how large they are, makes no difference.",
        "for three times the input, plus 10, the result moved by {change}",
        tolerance=1e-3,
    )
    calls = Call((x, weight, bias)), Call((3 * x + 10, weight, bias))
    yield Case("normalising", f"{describe(x)}, and three times the same plus 10", calls, holds=(rule,))


def _epsilon_cases(rng: Generator) -> Iterator[Case]:
    for spread, shape in ((0.003, (2, 5)), (0.01, (2, 3, 5)), (0.0005, (2, 3, 5)), (0.000003, (3, 5, 7))):
        x, weight, bias = inputs(rng, shape)
        x = x * spread / 2
        call = Call((x, weight, bias))
        yield Case("epsilon", f"{describe(x)}, features that differ by about {spread:g}", (call,))
    for label, x in (
        ("all features of a token equal", torch.full((2, 3, 5), 2.0)),
        ("a row of zeros, as padding has", torch.zeros(1, 2, 5)),
        ("a single feature", randn(rng, 2, 3, 1)),
    ):
        _, weight, bias = inputs(rng, tuple(x.shape))
        yield Case("epsilon", f"{describe(x)}, {label}", (Call((x, weight, bias)),), holds=(only_bias(bias),))


def _gradient_cases(rng: Generator) -> Iterator[Case]:
    for shape in ((2, 3), (2, 3, 5)):
        x, weight, bias = inputs(rng, shape)
        yield Case("gradients", f"{describe(x)}, with gradients", (Call((x, weight, bias), backward=True),))
    x = torch.full((1, 2, 5), 2.0)
    x[0, 1] = randn(rng, 5)
    call = Call((x, *inputs(rng, (1, 2, 5))[1:]), backward=True)
    yield Case("gradients", f"{describe(x)}, all features of token 0 equal, with gradients", (call,))


def _number_cases(rng: Generator) -> Iterator[Case]:
    x, weight, bias = inputs(rng, (2, 3, 7), dtype=torch.float64)
    call = Call((x, weight, bias, 0.0), backward=True)  # with no eps its place makes no difference
    yield Case("numbers", f"{describe(x)}, float64, eps 0, with gradients", (call,), tolerance=1e-9)
    for dtype, tolerance in ((torch.float16, 1e-2), (torch.bfloat16, 6e-2)):
        x, weight, bias = (value.to(dtype) for value in inputs(rng, (2, 3, 7)))
        label = f"{describe(x)}, {str(dtype).removeprefix('torch.')}"
        yield Case("numbers", label, (Call((x, weight, bias)),), tolerance=tolerance)
    # In float32 whole numbers near 30,000 and their distances from the mean are exact, their squares are not.
    signs = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    x = 30_000 + torch.stack([signs, signs.roll(2), signs[[0, 4, 1, 3, 2]]])
    _, weight, bias = inputs(rng, (3, 5))
    yield Case("numbers", f"{describe(x)}, features near 30,000", (Call((x, weight, bias)),), tolerance=1e-3)
    x, weight, bias = (value.half() for value in inputs(rng, (2, 3, 7)))
    call = Call((300 * x, weight, bias))
    label = f"{describe(x)}, float16, features of several hundred"
    yield Case("numbers", label, (call,), tolerance=1e-2, advice=OVERFLOW)


def _case(rng: Generator, part: str, shape: tuple[int, ...], label: str) -> Case:
    x, weight, bias = inputs(rng, shape)
    return Case(part, describe(x) + f", {label}" * bool(label), (Call((x, weight, bias)),))


def inputs(rng: Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens of different size that don't lie around 0 and whose features are never nearly equal."""
    even = torch.linspace(-1.5, 1.5, shape[-1], dtype=torch.float64)
    pattern = even[torch.rand(*shape, generator=rng).argsort(dim=-1)] + randn(rng, *shape, scale=0.1).double()
    sizes = torch.rand(*shape[:-1], 1, generator=rng, dtype=torch.float64) * 3 + 0.5
    x = (pattern * sizes + 1.5).to(dtype)
    return x, (randn(rng, shape[-1], scale=0.5) + 1.5).to(dtype), randn(rng, shape[-1], dtype=dtype)


def describe(x: Tensor) -> str:
    return f"x {tuple(x.shape)}"


def _means(outputs: Sequence[Any]) -> str | None:
    worst = outputs[0].mean(dim=-1).abs().max()
    return None if worst < 1e-3 else f"a token of yours has the mean {worst:.3g} instead of 0"


def _variances(outputs: Sequence[Any]) -> str | None:
    variances = outputs[0].square().mean(dim=-1).flatten()
    worst = variances[(variances - 1).abs().argmax()]
    return None if abs(float(worst) - 1) < 1e-2 else f"in a token of yours the mean of the squares is {worst:.3g}"


mean_is_zero = Property("Before scale and shift, each token has the mean 0.", _means)
variance_is_one = Property("Before scale and shift, the squares of each token's features have the mean 1.", _variances)


def only_bias(bias: Tensor) -> Property:
    def broken(outputs: Sequence[Any]) -> str | None:
        off = (outputs[0] - bias).abs().max()
        return None if off < 1e-4 else f"the result differs from bias by {off:.2g}"

    return Property("A token whose features are all equal has nothing to scale: only bias is left of it.", broken)


# --- wrong answers -------------------------------------------------------------------------------------------------


def norm(
    centre: Callable[[Tensor], Tensor] | None = None,
    divide: Callable[[Tensor, Tensor, float], Tensor] | None = None,
    finish: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Callable[..., Tensor]:
    """Build a layer norm out of its three steps; each is right unless another is given."""

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        centred = (centre or subtract_mean)(x)
        return (finish or scale_and_shift)((divide or by_root)(centred, x, eps), weight, bias)

    return layer_norm


def over(*axes: int, but_first: bool = False) -> Callable[..., Tensor]:
    """Build a layer norm that takes mean and variance over other axes; none given: over all."""

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        where = axes or tuple(range(int(but_first and x.dim() > 1), x.dim()))
        mean = x.mean(dim=where, keepdim=True)
        variance = (x - mean).square().mean(dim=where, keepdim=True)
        return (x - mean) / (variance + eps).sqrt() * weight + bias

    return layer_norm


def subtract_mean(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def by_root(centred: Tensor, x: Tensor, eps: float) -> Tensor:
    return centred / (variance_of(centred) + eps).sqrt()


def scale_and_shift(normed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return normed * weight + bias


def variance_of(centred: Tensor) -> Tensor:
    return centred.square().mean(dim=-1, keepdim=True)


def without_axis(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean, variance = x.mean(dim=-1), x.var(dim=-1, correction=0)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def squares_less_square(centred: Tensor, x: Tensor, eps: float) -> Tensor:
    variance = x.square().mean(dim=-1, keepdim=True) - x.mean(dim=-1, keepdim=True).square()
    return centred / (variance + eps).sqrt()


def by_root_of(centred: Tensor, x: Tensor, eps: float) -> Tensor:
    return centred / (variance_of(x) + eps).sqrt()


def cut_off(centred: Tensor, x: Tensor, eps: float) -> Tensor:
    return centred / (variance_of(centred) + eps).sqrt().detach()


def all_cut_off(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True).detach()
    return (x - mean) / (variance_of(x - mean) + eps).sqrt().detach() * weight + bias


def in_place(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    with torch.no_grad():
        x -= x.mean(dim=-1, keepdim=True)
    return norm()(x, weight, bias, eps)


def in_place_throughout(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    x -= x.mean(dim=-1, keepdim=True)
    x /= (variance_of(x) + eps).sqrt()
    return x * weight + bias


def in_float32(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return norm()(x.float(), weight.float(), bias.float(), eps)


def in_float32_between(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return norm()(x.float(), weight.float(), bias.float(), eps).to(x.dtype)


def by_view(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return norm()(x.view(-1, x.size(-1)), weight, bias, eps).view(x.shape)


def default(eps_by_default: float) -> Callable[..., Tensor]:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = eps_by_default) -> Tensor:
        return norm()(x, weight, bias, eps)

    return layer_norm


def fixed(used: float) -> Callable[..., Tensor]:
    return norm(divide=lambda centred, x, eps: by_root(centred, x, used))


def standard(correction: int) -> Callable[[Tensor, Tensor, float], Tensor]:
    return lambda centred, x, eps: centred / (x.std(dim=-1, keepdim=True, correction=correction) + eps)


MISCONCEPTIONS = (
    Misconception(
        "ln_unbiased",
        "The variance is divided by n - 1. That is the rule for guessing the variance of many numbers of which only a few "
        "were seen, and std and var of a tensor follow it unless told otherwise. Here nothing is guessed: the features of "
        "the token are all there are. Every result comes out too small by the same factor, 9 % with six features.",
        VARIANCE,
        (norm(divide=lambda centred, x, eps: centred / (x.var(dim=-1, keepdim=True) + eps).sqrt()),),
        (
            "https://github.com/harvardnlp/annotated-transformer/pull/119",
            "https://github.com/allenai/allennlp/pull/953",
            "https://github.com/facebookresearch/stopes/issues/25",
        ),
    ),
    Misconception(
        "ln_unbiased_eps_outside",
        "Two slips in one line, which much-copied code has: the standard deviation is the one that divides by n - 1 (the "
        "default of std), and eps is added to it after the root. Take the mean of the squares, add eps to that, and "
        "only then take the root.",
        VARIANCE,
        (norm(divide=standard(1)),),
        (
            "https://github.com/harvardnlp/annotated-transformer/pull/119",
            "https://github.com/hkproj/pytorch-transformer/pull/31",
        ),
    ),
    Misconception(
        "ln_eps_outside",
        "eps is added after the root, to the standard deviation. On ordinary tokens that makes no difference one could see. "
        "Where a token's features are nearly equal it does: inside the root 1e-5 acts like 0.003, outside like 0.00001. And "
        "where they are all equal the slope of the root is infinite, so that the gradient is NaN.",
        EPSILON,
        (norm(divide=standard(0)),),
        (
            "https://github.com/tracel-ai/burn/issues/2185",
            "https://github.com/hkproj/pytorch-transformer/pull/31",
            "https://github.com/microsoft/CNTK/issues/3816",
        ),
    ),
    Misconception(
        "eps_left_out",
        "eps is not used. As long as the features of a token differ nobody notices; where they are all equal (a row of "
        "padding, say) 0 is divided by 0.",
        EPSILON,
        (
            norm(divide=lambda centred, x, eps: centred / variance_of(centred).sqrt()),
            norm(divide=lambda centred, x, eps: torch.nan_to_num(centred / variance_of(centred).sqrt())),
        ),
        ("https://github.com/torchcvnn/torchcvnn/issues/32",),
    ),
    Misconception(
        "eps_fixed",
        "The argument eps has no effect: a number written into the code is used instead. Each trained model wants the eps "
        "that it was trained with.",
        EPSILON,
        tuple(fixed(eps) for eps in (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)),
    ),
    Misconception(
        "other_default_eps",
        "Where no eps is given another one is used than 1e-5. Libraries differ in it (BERT 1e-12, Keras 1e-3), and "
        "it shows where a token's features hardly differ.",
        EPSILON,
        tuple(default(eps) for eps in (1e-6, 1e-8, 1e-12, 1e-3)),
    ),
    Misconception(
        "eps_as_a_floor",
        "eps is used as a lower limit, in place of being added. That keeps 0 from being divided by 0 too, but it is another "
        "function where the variance is small, and where it is below the limit the variance gets no gradient.",
        EPSILON,
        (
            norm(divide=lambda centred, x, eps: centred / variance_of(centred).clamp(min=eps).sqrt()),
            norm(divide=lambda centred, x, eps: centred / variance_of(centred).sqrt().clamp(min=eps)),
        ),
        ("https://github.com/patrick-kidger/equinox/pull/314",),
    ),
    Misconception(
        "no_root",
        "The root is missing: tokens are divided by their variance. Twice the token then gives half the result, where "
        "it should give the same.",
        BY_HAND,
        (norm(divide=lambda centred, x, eps: centred / (variance_of(centred) + eps)),),
    ),
    Misconception(
        "squared_for_root",
        "The variance is squared where its root should be taken: ** 2 instead of ** 0.5.",
        BY_HAND,
        (norm(divide=lambda centred, x, eps: centred / (variance_of(centred) + eps) ** 2),),
        ("https://github.com/131250208/TPlinker-joint-extraction/issues/37",),
    ),
    Misconception(
        "norm_over_the_batch",
        "Mean and variance run along the first axis, over the examples of the batch. That is batch norm: a token's result then "
        "depends on what else is in the batch. Layer norm looks at nothing but the features of the token itself.",
        AXES,
        (over(0),),
    ),
    Misconception(
        "norm_over_the_tokens",
        "Mean and variance run along the tokens of a sentence, for each feature. A token's result then depends on its "
        "neighbours and on padding. The features are the last axis, and layer norm runs along that one, however many "
        "axes stand in front.",
        AXES,
        (over(1), over(-2)),
        ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/pull/17",),
    ),
    Misconception(
        "norm_over_tokens_and_features",
        "One mean and one variance serve a whole sentence (every axis but the first). A token's result then depends on "
        "its neighbours, on padding and on the length. Each token has a mean and a variance of its own.",
        AXES,
        (over(but_first=True), over(-2, -1)),
        (
            "https://github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8",
            "https://github.com/reczoo/FuxiCTR/issues/23",
        ),
    ),
    Misconception(
        "norm_over_everything",
        "One mean and one variance serve the whole tensor: mean() and var() without dim. Each token has a mean and a "
        "variance of its own, taken along the last axis.",
        AXES,
        (over(),),
        ("https://github.com/patrick-kidger/equinox/pull/471",),
    ),
    Misconception(
        "norm_over_a_fixed_axis",
        "The axis is counted from the front (dim=2). That is right for (batch, length, d_model) alone. Counted from the end, "
        "the features are always axis -1.",
        AXES,
        (over(2),),
        ("https://github.com/FudanNLP/fastNLP/issues/254",),
    ),
    Misconception(
        "axis_lost",
        "The means lose their axis, so that broadcasting lines them up with the features instead of the tokens: an error for "
        "most sizes, and silently the wrong token's mean where there are as many tokens as features. "
        "keepdim=True keeps an axis of size 1 in its place.",
        BY_HAND,
        (without_axis,),
        ("https://github.com/jadore801120/attention-is-all-you-need-pytorch/pull/17",),
    ),
    Misconception(
        "mean_kept",
        "The mean is not subtracted: the token is only divided by the root of the mean of its squares. That is RMS norm, which "
        "some newer models use. Layer norm first takes away what all features have in common.",
        BY_HAND,
        (norm(lambda x: x),),
    ),
    Misconception(
        "spread_around_zero",
        "The mean is subtracted, but what it is divided by is measured on the token as it came. The variance is the mean of the "
        "squared distances from the mean.",
        BY_HAND,
        (norm(divide=by_root_of),),
    ),
    Misconception(
        "mean_alone",
        "The mean is subtracted, but nothing is divided: large tokens stay large.",
        BY_HAND,
        (norm(divide=lambda centred, x, eps: centred),),
    ),
    Misconception(
        "length_one",
        "Each token is brought to length 1, where it is the mean of its squares that should be 1: all numbers are too "
        "small by the root of the number of features.",
        BY_HAND,
        (
            norm(divide=lambda centred, x, eps: centred / (centred.square().sum(-1, keepdim=True) + eps).sqrt()),
            norm(divide=lambda centred, x, eps: torch.nn.functional.normalize(centred, dim=-1)),
        ),
    ),
    Misconception(
        "mean_of_distances",
        "The features are divided by the mean of their distances from the mean. The standard deviation squares "
        "the distances first, and takes the root of their mean.",
        BY_HAND,
        (norm(divide=lambda centred, x, eps: centred / (centred.abs().mean(dim=-1, keepdim=True) + eps)),),
    ),
    Misconception(
        "weight_and_bias_ignored",
        "weight and bias have no effect. With weights of 1 and shifts of 0, as they are at the start, nobody notices; a "
        "trained model has others.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: normed),),
    ),
    Misconception(
        "weight_ignored",
        "weight has no effect: each feature has a scale of its own, which is multiplied to what was normalised.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: normed + bias),),
    ),
    Misconception(
        "bias_ignored",
        "bias has no effect: each feature has a shift of its own, which is added at the end.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: normed * weight),),
    ),
    Misconception(
        "shift_before_scale",
        "The shift is added before the scale, so that it is scaled too. First times weight, then plus bias.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: (normed + bias) * weight),),
    ),
    Misconception(
        "weight_and_bias_swapped",
        "weight and bias have changed places: weight is what is multiplied, bias what is added.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: normed * bias + weight),),
    ),
    Misconception(
        "weight_plus_one",
        "The scale is 1 + weight. Some models keep their scales that way, as a distance from 1; here weight is the "
        "scale itself.",
        BY_HAND,
        (norm(finish=lambda normed, weight, bias: normed * (1 + weight) + bias),),
    ),
    Misconception(
        "statistics_cut_off",
        "The result is right, but mean or variance was cut out of the graph (detach, no_grad, item), so that the gradient of "
        "x is wrong: a feature also acts on all others, through the mean and the variance of its token.",
        "encoder#layer-norm-by-hand",
        (
            norm(divide=cut_off),
            all_cut_off,
            norm(lambda x: x - x.mean(dim=-1, keepdim=True).detach()),
            norm(lambda x: x.detach() - x.detach().mean(dim=-1, keepdim=True)),
        ),
    ),
    Misconception(
        "input_changed",
        "x is changed in place (-=, /=, or a method that ends in an underscore). Whoever uses it afterwards, the residual "
        "path above all, gets the changed one.",
        "encoder#slips-around-a-norm",
        (in_place, in_place_throughout),
    ),
    Misconception(
        "squares_less_square",
        "The variance is taken as the mean of the squares less the square of the mean. On paper that is the same. In a computer "
        "the two are large and nearly equal where the mean is large, and their difference has hardly a right digit left; it may "
        "even be negative. Subtract the mean first, and square what is left.",
        BY_HAND,
        (norm(divide=squares_less_square),),
        (
            "https://github.com/tracel-ai/burn/issues/5607",
            "https://github.com/microsoft/onnxruntime/issues/21935",
            "https://github.com/k2-fsa/sherpa-onnx/pull/3857",
        ),
    ),
    Misconception(
        "view_noncontiguous",
        "view only relabels memory that already lies in the right order, so it raises when the input is itself a transposed tensor. "
        "No view is needed: the last axis is -1, however many stand in front.",
        "multi_head#view-or-reshape",
        (by_view,),
        ("https://github.com/facebookresearch/fairseq/issues/2598",),
    ),
    Misconception(
        "digits_lost",
        "float64 goes through float32 on its way, and comes back with half of its digits. More digits than the input has do no "
        "harm; fewer do.",
        BY_HAND,
        (in_float32_between,),
    ),
    Misconception(
        "always_float32",
        "The result is float32, whatever came in. A layer gives back the type that it got; what was calculated with more digits "
        "goes back to it at the end.",
        BY_HAND,
        (in_float32,),
    ),
)


EXERCISE = Exercise(
    name="layer_norm",
    chapter="encoder",
    kind="function",
    minutes=15,
    parts=(
        Part("normalising", 1, "bring each token to mean 0 and variance 1, then scale and shift its features", BY_HAND),
        Part("epsilon", 1, "add eps to the variance, inside the root", EPSILON),
        Part("gradients", 1, "pass the right gradients to x, weight and bias", BY_HAND),
        Part("numbers", 1, "keep the type of the numbers, and work far from 0", BY_HAND),
    ),
    hints=(
        "Take a token with the features 1 and 3, on paper: what is its mean, what is left after it is subtracted, and what is "
        "the mean of the squares of that?",
        "Each token has its own mean and its own variance, both along the last axis. keepdim=True keeps them in line with "
        "their token. Which of PyTorch's functions divide by n - 1 unless told otherwise?",
        "Subtract the mean; square what is left and take its mean, which is the variance; divide by the root of "
        "variance plus eps; times weight; plus bias.",
    ),
    cases=cases,
    reference=encoder.layer_norm,
    misconceptions=MISCONCEPTIONS,
)

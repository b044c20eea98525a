"""Exercise: a test that lets right layer norms pass and finds wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from mha_course.exercises.exercise import Call, Case, Exercise, Given, Misconception, Part, given

BY_HAND, VARIANCE = "encoder#layer-norm-by-hand", "encoder#n-or-n-minus-one"
EPSILON, AXES = "encoder#epsilon-inside-the-root", "encoder#layer-norm-or-batch-norm"
SLIPS = "encoder#slips-around-a-norm"
ALL_SHAPES = ((5,), (3, 7), (2, 3, 5), (3, 2, 3, 6), (4, 4), (3, 5, 5), (2, 3, 64))


def cases(rng: Generator) -> Iterator[Case]:
    for written, implementation in (
        ("with mean and square", given(right)),
        ("with PyTorch's own layer_norm", given(by_library)),
        ("with var_mean", given(by_var_mean)),
        ("with a multiplication by rsqrt", given(by_rsqrt)),
        ("in float64, and back", given(in_float64, right)),
        ("token by token", given(token_by_token, right)),
        ("with einsum", given(by_sums)),
    ):
        yield _case("plain", f"a right implementation, written {written}", implementation, accepts=True)
    for part, when, wrong in (
        ("plain", "that gives back its input", given(gives_back_x)),
        ("plain", "that gives zeros", given(gives_zeros)),
        ("plain", "that gives one number for each token", given(gives_means)),
        ("plain", "that gives something else each time", given(gives_chance)),
        ("plain", "that only scales and shifts", given(only_scales)),
        ("plain", "that only subtracts the mean", given(only_centres)),
        ("plain", "that only divides", given(only_divides)),
        ("plain", "in which the root was forgotten", given(without_root)),
        (
            "shapes",
            "that goes wrong only for a token alone, with one axis",
            given(except_for, right, args=("one axis",)),
        ),
        ("shapes", "that goes wrong only with two axes", given(except_for, right, args=("two axes",))),
        ("shapes", "that goes wrong only with three axes", given(except_for, right, args=("three axes",))),
        ("shapes", "that goes wrong only with four axes", given(except_for, right, args=("four axes",))),
        ("shapes", "that goes wrong only with more than one sentence", given(except_for, right, args=("sentences",))),
        ("shapes", "that goes wrong only with more than one token", given(except_for, right, args=("tokens",))),
        ("shapes", "that goes wrong only with as many tokens as features", given(except_for, right, args=("square",))),
        (
            "shapes",
            "that goes wrong only where the number of features is no power of two",
            given(except_for, right, args=("no power of two",)),
        ),
        ("shapes", "that takes mean and variance over the batch", given(along, args=(0,))),
        ("shapes", "that takes mean and variance over whole sentences", given(over_sentences)),
        ("variance", "whose results are a little too small", given(unbiased)),
        ("variance", "that measures the spread in another way", given(mean_distance)),
        ("variance", "that goes wrong only where all features of a token are equal", given(without_eps)),
        ("variance", "that goes wrong only where the features of a token are nearly equal", given(eps_outside)),
        ("variance", "that goes wrong only where the variance is less than eps", given(eps_as_floor)),
        ("variance", "that goes wrong only if an eps is given", given(eps_not_used, right)),
        ("variance", "that goes wrong only if no eps is given", given(other_default, right)),
        ("scale and shift", "that does nothing with weight", given(no_weight, right)),
        ("scale and shift", "that does nothing with bias", given(no_bias, right)),
        ("scale and shift", "that has one weight for all features", given(one_weight, right)),
        ("scale and shift", "that has one bias for all features", given(one_bias, right)),
        ("scale and shift", "that goes wrong only with negative weights", given(positive_weight, right)),
        ("scale and shift", "that shifts before it scales", given(shift_first, right)),
        ("scale and shift", "that has weight and bias the wrong way round", given(exchanged, right)),
        ("besides", "that gives the right result and spoils its input", given(spoils_input, right)),
        ("besides", "that is right the first time only", given(remembers, right, args=())),
        ("besides", "that goes wrong only in its type, with float64", given(float32_always, right)),
        ("besides", "that gives the right result and a wrong gradient", given(cut_off)),
    ):
        yield _case(part, f"an implementation {when}", wrong, accepts=False)


def _case(part: str, label: str, implementation: Given, accepts: bool) -> Case:
    return Case(part, label, (Call((implementation,)),), accepts=accepts)


# --- implementations that are given, first right ones --------------------------------------------------------------


def right(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


def by_library(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, (x.size(-1),), weight, bias, eps)


def by_var_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, weight, (x - mean) / torch.sqrt(variance + eps))


def by_rsqrt(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.sum(dim=-1, keepdim=True) / x.size(-1)
    scale = torch.rsqrt((centred * centred).sum(dim=-1, keepdim=True) / x.size(-1) + eps)
    return weight * (centred * scale) + bias


def in_float64(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x.double(), weight.double(), bias.double(), eps).to(x.dtype)


def token_by_token(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    rows = [right(row, weight, bias, eps) for row in x.reshape(-1, x.size(-1))]
    return torch.stack(rows).reshape(x.shape)


def by_sums(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    n = x.size(-1)
    centred = x - torch.einsum("...d->...", x)[..., None] / n
    return (
        torch.einsum("...d,d->...d", centred / (centred.square().sum(-1, keepdim=True) / n + eps) ** 0.5, weight) + bias
    )


# --- and wrong ones ------------------------------------------------------------------------------------------------


def gives_back_x(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x


def gives_zeros(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x * 0


def gives_means(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x.mean(dim=-1)


def gives_chance(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x * 0 + torch.randn(x.shape, dtype=x.dtype)


def only_scales(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x * weight + bias


def only_centres(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) * weight + bias


def only_divides(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


def without_root(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / (x.var(dim=-1, correction=0, keepdim=True) + eps) * weight + bias


def except_for(when: str) -> Any:
    """A layer norm that is right but for one kind of shape, for which it takes one mean and one variance of everything."""

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        n = x.size(-1)
        goes_wrong = {
            "one axis": x.dim() == 1,
            "two axes": x.dim() == 2,
            "three axes": x.dim() == 3,
            "four axes": x.dim() == 4,
            "sentences": x.dim() > 2 and x.size(0) > 1,
            "tokens": x.dim() > 1 and x.size(-2) > 1,
            "square": x.dim() > 1 and x.size(-2) == n,
            "no power of two": n & (n - 1) != 0,
        }
        if not goes_wrong[when]:
            return right(x, weight, bias, eps)
        wrong = (x - x.mean()) / (x.var(correction=0) + eps).sqrt() * weight + bias
        return wrong if x.dim() > 1 and n != x.numel() and when != "no power of two" else 1.1 * wrong

    return layer_norm


def along(axis: int) -> Any:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        centred = x - x.mean(dim=axis, keepdim=True)
        return centred / (centred.square().mean(dim=axis, keepdim=True) + eps).sqrt() * weight + bias

    return layer_norm


def over_sentences(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    axes = (-2, -1) if x.dim() > 1 else (-1,)
    centred = x - x.mean(dim=axes, keepdim=True)
    return centred / (centred.square().mean(dim=axes, keepdim=True) + eps).sqrt() * weight + bias


def unbiased(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / (x.var(dim=-1, keepdim=True) + eps).sqrt() * weight + bias


def mean_distance(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.abs().mean(dim=-1, keepdim=True).square() + eps).sqrt() * weight + bias


def without_eps(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / torch.where(variance == 0, variance, variance + eps).sqrt() * weight + bias


def eps_outside(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True, correction=0) + eps) * weight + bias


def eps_as_floor(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    variance = x.var(dim=-1, keepdim=True, correction=0)
    return (x - x.mean(dim=-1, keepdim=True)) / variance.clamp(min=eps).sqrt() * weight + bias


def eps_not_used(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight, bias)


def other_default(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-3) -> Tensor:
    return right(x, weight, bias, eps)


def no_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight * 0 + 1, bias, eps)


def no_bias(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight, bias * 0, eps)


def one_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight.mean().expand_as(weight), bias, eps)


def one_bias(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight, bias.mean().expand_as(bias), eps)


def positive_weight(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight.abs(), bias, eps)


def shift_first(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, weight, bias * weight, eps)


def exchanged(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x, bias, weight, eps)


def spoils_input(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    output = right(x, weight, bias, eps)
    if not x.requires_grad:
        x -= x.mean(dim=-1, keepdim=True)
    return output


def remembers() -> Any:
    kept: dict[str, Tensor] = {}

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        if "weight" not in kept:
            kept["weight"], kept["bias"] = weight, bias
        same = kept["weight"].shape == weight.shape
        return right(x, kept["weight"], kept["bias"], eps) if same else right(x, weight, bias, eps)

    return layer_norm


def float32_always(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return right(x.float(), weight.float(), bias.float(), eps)


def cut_off(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    root = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt().detach()
    return centred / root * weight + bias


# --- tests, a good one and weak ones -------------------------------------------------------------------------------


def make_test(
    shapes: tuple[tuple[int, ...], ...] = ALL_SHAPES,
    spreads: tuple[float, ...] = (1.0, 0.003, 0.0),
    epsilons: tuple[float | None, ...] = (None, 0.3),
    weights: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    expected: Callable[..., Tensor] = by_library,
    tolerance: float = 1e-4,
    input_stays: bool = True,
    types: bool = True,
    gradients: bool = True,
    same_weights: bool = False,
) -> Callable[[Callable[..., Tensor]], None]:
    """Build a test; by default one that finds everything."""

    def examine_layer_norm(layer_norm: Callable[..., Tensor]) -> None:
        chance = torch.Generator().manual_seed(0)

        def check(x: Tensor, weight: Tensor, bias: Tensor, eps: float | None) -> None:
            given_eps = () if eps is None else (eps,)
            wanted = expected(x, weight, bias, *given_eps)
            before = x.detach().clone()
            output = layer_norm(x, weight, bias, *given_eps)
            if types:
                assert output.dtype == x.dtype, "another type"
            assert output.shape == x.shape, "another shape"
            assert (output.to(wanted) - wanted).abs().max() <= tolerance, "other values"
            if input_stays:
                assert torch.equal(x.detach(), before), "the input was changed"
            if gradients and x.requires_grad:
                signal = torch.randn(x.shape, generator=chance, dtype=torch.float64).to(output)
                found, right_one = (torch.autograd.grad(one, x, signal)[0] for one in (output, wanted))
                assert (found - right_one).abs().max() <= tolerance, "another gradient"

        def draw(size: int) -> tuple[Tensor, Tensor]:
            return torch.randn(size, generator=chance), torch.randn(size, generator=chance)

        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for shape in shapes:
            for spread in spreads:
                for eps in epsilons:
                    x = spread * (3 * torch.randn(shape, generator=chance)) + 1.5
                    if not same_weights or shape[-1] not in kept:
                        kept[shape[-1]] = (weights or draw)(shape[-1])
                    check(x, *kept[shape[-1]], eps)
        shape = shapes[min(2, len(shapes) - 1)]
        x, (weight, bias) = torch.randn(shape, generator=chance), (weights or draw)(shape[-1])
        if types:
            check(x.double(), weight.double(), bias.double(), epsilons[0])
        if gradients:
            check(x.clone().requires_grad_(), weight, bias, epsilons[0])

    return examine_layer_norm


def only_shape(layer_norm: Callable[..., Tensor]) -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(5), torch.randn(5)
    assert layer_norm(x, weight, bias).shape == x.shape


def answer_given(layer_norm: Callable[..., Tensor]) -> bool:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(5), torch.randn(5)
    return torch.allclose(layer_norm(x, weight, bias), F.layer_norm(x, (5,), weight, bias), atol=1e-5)


def nothing_asserted(layer_norm: Callable[..., Tensor]) -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(5), torch.randn(5)
    torch.isclose(layer_norm(x, weight, bias), torch.zeros(()))


def errors_swallowed(layer_norm: Callable[..., Tensor]) -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(5), torch.randn(5)
    try:
        torch.testing.assert_close(layer_norm(x, weight, bias), F.layer_norm(x, (5,), weight, bias))
    except Exception:  # noqa: BLE001 (the slip itself)
        return


def with_itself(layer_norm: Callable[..., Tensor]) -> None:
    x, weight, bias = torch.randn(2, 3, 5), torch.randn(5), torch.randn(5)
    torch.testing.assert_close(layer_norm(x, weight, bias), layer_norm(x, weight, bias))


def to_the_last_bit(layer_norm: Callable[..., Tensor]) -> None:
    for shape in ALL_SHAPES:
        x, weight, bias = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
        assert torch.equal(layer_norm(x, weight, bias), F.layer_norm(x, (shape[-1],), weight, bias))


def refuses_everything(layer_norm: Callable[..., Tensor]) -> None:
    raise AssertionError


def mean_and_variance(layer_norm: Callable[..., Tensor]) -> None:
    for shape in ALL_SHAPES:
        x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 2
        output = layer_norm(x, torch.ones(shape[-1]), torch.zeros(shape[-1]))
        assert output.shape == x.shape
        assert output.mean(dim=-1).abs().max() < 1e-3
        assert (output.var(dim=-1, correction=0) - 1).abs().max() < 1e-2


def plain(size: int) -> tuple[Tensor, Tensor]:
    return torch.ones(size), torch.zeros(size)


def same_for_all(size: int) -> tuple[Tensor, Tensor]:
    return torch.full((size,), 2.0), torch.full((size,), 3.0)


def no_shift(size: int) -> tuple[Tensor, Tensor]:
    return torch.linspace(-2, 3, size), torch.zeros(size)


def no_scale(size: int) -> tuple[Tensor, Tensor]:
    return torch.ones(size), torch.linspace(-2, 3, size)


def only_positive(size: int) -> tuple[Tensor, Tensor]:
    return torch.linspace(0.5, 2, size), torch.linspace(-1, 1, size)


VALUES_ALONE = {"input_stays": False, "types": False, "gradients": False, "same_weights": True}

MISCONCEPTIONS = (
    Misconception(
        "answer_returned",
        "The test returns True or False. Nobody reads that: a test says no by raising an error, as assert does, and is silent "
        "otherwise.",
        BY_HAND,
        (answer_given,),
    ),
    Misconception(
        "nothing_asserted",
        "The test calculates, and perhaps prints, but nothing in it can fail: there is no assert (or it is never reached, or its "
        "error is caught). So everything passes.",
        BY_HAND,
        (nothing_asserted, errors_swallowed),
        ("https://github.com/tenstorrent/tt-metal/pull/30389",),
    ),
    Misconception(
        "only_the_shape",
        "The test looks at the shape alone. A norm changes no shape, so almost every wrong one passes. It takes numbers that are "
        "known to be right, by hand or from another implementation.",
        BY_HAND,
        (only_shape,),
    ),
    Misconception(
        "compared_with_itself",
        "What is tested is compared with itself. That always agrees. Compare it with something that was written by somebody else, "
        "or worked out by hand.",
        BY_HAND,
        (with_itself,),
        ("https://github.com/linkedin/Liger-Kernel/pull/359",),
    ),
    Misconception(
        "equal_to_the_last_bit",
        "The test demands that all bits agree. Two right implementations add up in different orders and round differently; compare "
        "with a small tolerance, as torch.testing.assert_close does.",
        BY_HAND,
        (to_the_last_bit,),
        ("https://github.com/DareData/lp-pytorch-fundamentals/issues/8",),
    ),
    Misconception(
        "wrong_expectation",
        "The numbers that the test expects are wrong themselves: their variance is divided by n - 1, as std and var do "
        "unless told otherwise. So it refuses what is right.",
        VARIANCE,
        (
            make_test(expected=unbiased),
            make_test(shapes=((2, 3, 5),), spreads=(1.0,), epsilons=(None,), expected=unbiased),
        ),
        ("https://github.com/harvardnlp/annotated-transformer/pull/119",),
    ),
    Misconception(
        "refuses_everything",
        "The test refuses every implementation, right ones too. Does it raise before it compares anything?",
        BY_HAND,
        (refuses_everything,),
    ),
    Misconception(
        "one_shape_only",
        "Only one kind of input is tried. Some implementations are right for it by chance, and wrong for a single token, or for four "
        "axes. Let the number of axes vary, and give every axis another length.",
        AXES,
        (
            *(make_test(shapes=tuple(one for one in ALL_SHAPES if len(one) != axes)) for axes in (1, 2, 3, 4)),
            make_test(shapes=((2, 3, 5),), gradients=False, types=False),
            make_test(shapes=((3, 5),), gradients=False, types=False),
            make_test(shapes=((5,),), gradients=False, types=False),
            make_test(shapes=((2, 3, 5),), spreads=(1.0,), epsilons=(None,), **VALUES_ALONE),  # type: ignore[arg-type]
            make_test(shapes=((4, 5),), spreads=(1.0,), epsilons=(None,), **VALUES_ALONE),  # type: ignore[arg-type]
            make_test(shapes=((2, 3, 8),), spreads=(1.0,), epsilons=(None,), **VALUES_ALONE),  # type: ignore[arg-type]
            make_test(shapes=((4, 8),), spreads=(1.0,), epsilons=(None,), **VALUES_ALONE),  # type: ignore[arg-type]
        ),
        ("https://github.com/pytorch/glow/pull/5494",),
    ),
    Misconception(
        "powers_of_two_only",
        "Every width that is tried is a power of two. Real code has been wrong for all others (it works in blocks of 2, 4, 8, …) "
        "with every test green. Try a prime number of features.",
        AXES,
        (make_test(shapes=((8,), (3, 4), (2, 3, 8), (3, 2, 3, 4), (4, 4), (3, 16, 16)), gradients=False, types=False),),
        ("https://github.com/linkedin/Liger-Kernel/pull/519",),
    ),
    Misconception(
        "never_as_many_tokens_as_features",
        "No input has as many tokens as features. There the means of the tokens can be lined up with the features by mistake, and "
        "no error is raised.",
        BY_HAND,
        (make_test(shapes=((5,), (3, 7), (2, 3, 5), (3, 2, 3, 6), (2, 3, 64))),),
    ),
    Misconception(
        "one_sentence_only",
        "There is never more than one sentence in the batch, so that it can't be seen whether sentences affect one another.",
        AXES,
        (make_test(shapes=((5,), (3, 7), (1, 3, 5), (1, 2, 3, 6), (4, 4), (1, 5, 5))),),
    ),
    Misconception(
        "ordinary_tokens_only",
        "Only tokens of ordinary size are tried. eps matters where a token's features are nearly equal, and where they are all equal "
        "0 may be divided by 0: try both, and both with an eps of your own and without.",
        EPSILON,
        (
            make_test(spreads=(1.0,), epsilons=(None,)),
            make_test(spreads=(1.0,), epsilons=(None,), **VALUES_ALONE),  # type: ignore[arg-type]
            make_test(spreads=(1.0,), epsilons=(None, 1e-6)),
        ),
        ("https://github.com/tracel-ai/burn/issues/2185",),
    ),
    Misconception(
        "only_mean_and_variance",
        "The test looks at the mean and the variance of what comes out, with weights of 1 and shifts of 0. That finds plain mistakes. "
        "It can't say whether eps, weight and bias do what they should: that takes the right numbers to compare with.",
        BY_HAND,
        (mean_and_variance,),
    ),
    Misconception(
        "eps_never_given",
        "eps is never given, so that it can't be seen whether it is used.",
        EPSILON,
        (make_test(epsilons=(None,)), make_test(epsilons=(None,), **VALUES_ALONE)),  # type: ignore[arg-type]
    ),
    Misconception(
        "eps_always_given",
        "eps is given in every call, so that nobody sees which one is used if it is not.",
        EPSILON,
        (make_test(epsilons=(1e-5, 0.3), types=False, gradients=False),),
    ),
    Misconception(
        "loose_tolerance",
        "The tolerance is so large that a variance divided by n - 1 slips through: with five features everything is then 11 % too "
        "small, with 64 less than 1 %. Rounding in float32 is a few millionths.",
        VARIANCE,
        (make_test(tolerance=1.0), make_test(tolerance=1.0, **VALUES_ALONE)),  # type: ignore[arg-type]
    ),
    Misconception(
        "plain_weights",
        "weight is always 1 and bias always 0 (or one of them). That is how they begin, and with them nobody can see whether they are "
        "used. Draw them at random.",
        BY_HAND,
        (make_test(weights=plain), make_test(weights=no_shift), make_test(weights=no_scale)),
    ),
    Misconception(
        "same_weight_for_all_features",
        "All features get the same weight and the same bias. Each has its own: draw them at random.",
        BY_HAND,
        (make_test(weights=same_for_all),),
    ),
    Misconception(
        "no_negative_weights",
        "All weights are positive. Trained ones need not be.",
        BY_HAND,
        (make_test(weights=only_positive),),
    ),
    Misconception(
        "only_the_values",
        "The values are checked well, and nothing else: neither the gradient, nor the type of the result, nor whether the input "
        "is still what it was, nor a second call with other weights.",
        SLIPS,
        (make_test(**VALUES_ALONE), make_test(input_stays=False, types=False, gradients=False)),  # type: ignore[arg-type]
    ),
    Misconception(
        "input_not_looked_at",
        "Nobody looks at x after the call. An implementation that changes it in place gives the right result and spoils the residual "
        "path of whoever uses it. Keep a copy and compare.",
        SLIPS,
        (make_test(input_stays=False),),
        ("https://github.com/vllm-project/vllm/pull/24500",),
    ),
    Misconception(
        "type_not_looked_at",
        "The type of the result is not looked at: float64 in should give float64 out.",
        BY_HAND,
        (make_test(types=False),),
    ),
    Misconception(
        "gradient_not_looked_at",
        "The gradient is not looked at. An implementation can give the right values and learn the wrong thing, because a mean or "
        "a variance was cut out of the graph.",
        BY_HAND,
        (make_test(gradients=False),),
        ("https://github.com/linkedin/Liger-Kernel/pull/359",),
    ),
)

EXERCISE = Exercise(
    name="examine_layer_norm",
    chapter="encoder",
    kind="function",
    minutes=25,
    task="catch",
    parts=(
        Part("plain", 2, "let every right implementation pass, and refuse those that are plainly wrong", BY_HAND),
        Part("shapes", 1, "refuse an implementation that is wrong only for some shapes", AXES),
        Part("variance", 1, "refuse an implementation whose variance or eps is wrong", EPSILON),
        Part("scale and shift", 1, "refuse an implementation that does something else with weight and bias", BY_HAND),
        Part("besides", 1, "refuse an implementation that gives the right values and does something else wrong", SLIPS),
    ),
    hints=(
        "If somebody gave you a layer norm that is wrong only for a single token without other axes, would your test notice? "
        "What else would it not notice?",
        "Compare with an implementation by somebody else, with a small tolerance, in a loop over shapes of one to four axes. "
        "weight and bias at random, tokens of all sizes, one with equal features, eps given and not given.",
        "For each shape: draw x, weight and bias; keep a copy of x; torch.testing.assert_close of the result and "
        "F.layer_norm's (it looks at the type, too); x still equal to its copy. Then the same once in float64, and once "
        "with x.requires_grad_() and the gradients of both.",
    ),
    cases=cases,
    reference=make_test(),
    misconceptions=MISCONCEPTIONS,
)

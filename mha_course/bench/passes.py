"""What is measured of a layer: a pass forward, in two modes, and one forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mha_course.bench.contestants import Layer, Shape, drawn, layer_of

TOLERANCE = 1e-4  # of the largest output; float32 keeps about 7 digits, and sums of thousands lose two of them


@dataclass(frozen=True)
class Pass:
    """Once through the layer: what tables call it, in which mode, and whether back again."""

    title: str
    training: bool
    backward: bool


PASSES = {
    "forward": Pass("forward, eval mode, no gradients", training=False, backward=False),
    "forward_train": Pass("forward, train mode, no gradients", training=True, backward=False),
    "forward_backward": Pass("forward and backward, train mode", training=True, backward=True),
}


def runner(layer: Layer, x: Float[Tensor, "batch length d_model"], name: str) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function of no arguments that goes through the layer once.

    Returns:
        Its result is the output; after a pass backward also the gradients of the tokens and of all parameters.
    """
    one = PASSES[name]
    layer.train(one.training)
    leaves = [x, *layer.parameters()]
    gradient = torch.ones_like(x) / x.numel()

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (layer(x),)

    def forward_and_backward() -> tuple[Tensor, ...]:
        output = layer(x)
        return (output, *torch.autograd.grad(output, leaves, gradient))

    return forward_and_backward if one.backward else forward


def prepared(contestant: str, shape: Shape, name: str, device: str) -> Callable[[], tuple[Tensor, ...]]:
    """Return a contestant's pass, ready to go; for a process that has nothing yet."""
    attention, x = drawn(shape, device)
    return runner(layer_of(contestant, attention), x, name)


def differences(
    layers: dict[str, Layer], reference: Layer, x: Float[Tensor, "batch length d_model"]
) -> dict[str, float]:
    """Compare outputs in every pass, and the gradients of the tokens, with those of the explicit version.

    Returns:
        The largest difference by contestant, as a part of the largest value: 0 is equality.
    """
    worst = dict.fromkeys(layers, 0.0)
    for name in PASSES:
        right = runner(reference, x, name)()[:2]
        for contestant, layer in layers.items():
            for mine, its in zip(runner(layer, x, name)()[:2], right, strict=True):
                difference = ((mine - its).abs().max() / its.abs().max()).item()
                worst[contestant] = max(worst[contestant], difference)
    return worst

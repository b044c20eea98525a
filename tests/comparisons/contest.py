"""A comparison: our object and somebody else's get the same numbers, and what both make of them is laid side by side."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mha_course.self_attention import causal_mask, padding_mask, sliding_window_mask

# The largest difference allowed, as a part of the largest number in the right result: of one step, and of many in a row.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
TOLERANCE_OF_LAYERS = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2e-1, torch.float16: 5e-2}
# In the shorter types, how many times as far from the right result as the other library's may ours be.
FACTOR = 4.0

MASKS = {
    "none": "no mask at all",
    "causal": "(query, key): nothing that comes later",
    "window": "(query, key): a position and the two before it",
    "drawn": "(query, key): drawn",
    "padding": "(batch, 1, 1, key): no padding",
    "causal and padding": "(batch, 1, query, key): neither",
    "per sentence": "(batch, 1, query, key): drawn",
    "per head": "(1, head, query, key): drawn",
    "per sentence and head": "(batch, head, query, key): drawn",
    "empty row": "(batch, 1, query, key): drawn, and the last query may attend to nothing",
}
SAME_FOR_HEADS = ("none", "causal", "window", "drawn", "padding", "causal and padding", "per sentence")
SEEING = tuple(kind for kind in MASKS if kind != "empty row")
LAYER_MASKS = ("none", "causal", "padding", "causal and padding", "per sentence and head")
LAYER_MODES = ("train", "eval", "no grad")
FUNCTION_MODES = ("grad", "no grad")


@dataclass(frozen=True)
class Size:
    """Lengths unlike each other, one head and several, few keys and many."""

    batch: int
    heads: int
    queries: int
    keys: int
    d_head: int

    @property
    def d_model(self) -> int:
        return self.heads * self.d_head

    @property
    def groups(self) -> int:
        """Sets of keys and values, where heads share them."""
        return self.heads // 2 if self.heads % 2 == 0 else 1


SIZES = (Size(2, 3, 5, 7, 11), Size(5, 1, 13, 3, 7), Size(1, 6, 7, 11, 3))


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype
    mode: str
    kind: str
    size: Size

    def __str__(self) -> str:
        return f"{self.dtype}, mode {self.mode!r}, mask {self.kind!r}, {self.size}"

    @property
    def with_gradients(self) -> bool:
        return self.mode != "no grad"

    def mask(self) -> Tensor | None:
        """Our mask, True where a query may attend."""
        batch, heads, queries, keys = self.size.batch, self.size.heads, self.size.queries, self.size.keys
        real = padding_mask(keys - (torch.arange(batch) + 1) % (keys - 1), keys)
        if self.kind == "none":
            return None
        if self.kind == "window":
            return sliding_window_mask(keys, 3)[-queries:]
        if self.kind == "causal":
            return causal_mask(queries, keys)
        if self.kind in ("padding", "causal and padding"):
            return real if self.kind == "padding" else causal_mask(queries, keys) & real
        shape = {
            "drawn": (queries, keys),
            "per head": (1, heads, queries, keys),
            "per sentence and head": (batch, heads, queries, keys),
        }.get(self.kind, (batch, 1, queries, keys))
        score = torch.rand(shape, generator=seeded(str(self.size)))
        # Two keys at least: with one alone, its weight is 1 whatever the scores, and their gradients are 0.
        mask = (score > 0.5) | (score >= score.topk(2, dim=-1).values[..., 1:])
        if self.kind == "empty row":
            mask[..., -1, :] = False
        return mask

    def spread(self) -> Tensor | None:
        """The same mask with every axis written out: (batch, head, query, key)."""
        mask = self.mask()
        sizes = (self.size.batch, self.size.heads, self.size.queries, self.size.keys)
        return None if mask is None else mask.broadcast_to(sizes)


Shapes = dict[str, tuple[int, ...]]
Leaves = dict[str, Tensor]  # inputs, and parameters, whose names have a dot in them
Contestant = Callable[[Leaves, Case], Leaves]


@dataclass(frozen=True)
class Comparison:
    """What is compared, as data: the tests run it, and the page of the book shows it."""

    ours: str
    theirs: str
    run_ours: Contestant
    run_theirs: Contestant
    shapes: Callable[[Case], Shapes]
    masks: tuple[str, ...] = SEEING
    modes: tuple[str, ...] = LAYER_MODES
    square: bool = False  # as many queries as keys
    dtypes: tuple[torch.dtype, ...] = tuple(TOLERANCE)
    tolerance: dict[torch.dtype, float] = field(default_factory=lambda: TOLERANCE)
    # Who computes the right result in float64, where the other library can't.
    run_right: Contestant | None = None

    def __str__(self) -> str:
        return f"{self.ours} and {self.theirs}"

    def cases(self, dtype: torch.dtype) -> Iterator[Case]:
        """Every mask with every size, and every mode with each of both."""
        sizes = [replace(size, queries=size.keys) if self.square else size for size in SIZES]
        for mask, (place, size) in itertools.product(range(len(self.masks)), enumerate(sizes)):
            if size.queries > size.keys and self.masks[mask] in ("causal", "window", "causal and padding"):
                continue  # what comes later is not defined for queries that are not among the keys
            yield Case(dtype, self.modes[(mask + place) % len(self.modes)], self.masks[mask], size)

    @property
    def has_right(self) -> bool:
        return self.run_right is not None or torch.float64 in self.dtypes

    def play(self, case: Case) -> tuple[dict[str, float], dict[str, float]]:
        """Say by how much ours, and theirs, differ from the right result: theirs in float64, from the same numbers."""
        leaves = {name: drawn(name, shape, case.dtype) for name, shape in self.shapes(case).items()}
        ours, theirs = run(self.run_ours, leaves, case), run(self.run_theirs, leaves, case)
        assert all(ours[name].dtype == theirs[name].dtype for name in theirs)
        if self.has_right:
            exact = {name: leaf.double() for name, leaf in leaves.items()}
            right = run(self.run_right or self.run_theirs, exact, replace(case, dtype=torch.float64))
        else:
            right = theirs
        return distances(ours, right), distances(theirs, right)

    def compared(self) -> list[str]:
        """Name the results, and count the gradients."""
        case = replace(next(self.cases(torch.float32)), mode=self.modes[0])
        leaves = {name: drawn(name, shape, case.dtype) for name, shape in self.shapes(case).items()}
        results = run(self.run_ours, leaves, case)
        found = [name for name in results if not name.startswith("gradient of ")]
        gradients = [name for name in leaves if f"gradient of {name}" in results]
        inputs = len([name for name in gradients if "." not in name])
        counts = {"input": inputs, "parameter": len(gradients) - inputs}
        words = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count]
        return [*found, f"gradients of {' and '.join(words)}"] if words else found


def seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Draw numbers that give uneven weights and use every parameter: of a scale of 1 for each result."""
    numbers = torch.randn(shape, generator=seeded(f"{name} {shape}"), dtype=torch.float64)
    if "." in name and len(shape) == 2:
        numbers = numbers * 1.5 / shape[-1] ** 0.5
    elif "." in name:
        numbers = 0.3 * numbers + ("norm" in name and name.endswith("weight"))
    return numbers.to(dtype)


def run(contestant: Contestant, leaves: Leaves, case: Case) -> dict[str, Tensor]:
    """Return the results and, unless the mode has none, the gradient of every leaf."""
    leaves = {name: leaf.clone().requires_grad_(case.with_gradients) for name, leaf in leaves.items()}
    with torch.set_grad_enabled(case.with_gradients):
        results = contestant(leaves, case)
    found = {name: result.detach() for name, result in results.items()}
    if case.with_gradients:
        directions = [drawn(name, tuple(result.shape), result.dtype) for name, result in results.items()]
        gradients = torch.autograd.grad(
            list(results.values()), list(leaves.values()), directions, materialize_grads=True
        )
        found |= {f"gradient of {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return found


def distances(results: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """Say for each result by how much it differs at most, as a part of the largest number in the right one."""
    assert results.keys() == right.keys()
    found = {}
    for name, result in results.items():
        assert result.shape == right[name].shape, f"{name}: {result.shape} is not {right[name].shape}"
        # The gradient of a key's bias is 0 but for rounding, so a bias is measured beside its weights.
        beside = right.get(name.removesuffix("bias") + "weight", right[name])
        scale = max(right[name].abs().max().item(), beside.abs().max().item())
        difference = (result.double() - right[name].double()).abs().max().item()
        found[name] = difference / scale if scale else difference
    return found


class Holder(nn.Module):
    """Lets a function stand where `functional_call` asks for a module's own forward."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, use):
        return use(self.module)


def call(module: nn.Module, given: Leaves, case: Case, use):
    """Use a module in the case's mode with these tensors in place of its parameters, every one of them."""
    module.train(case.mode == "train")
    given = dict(module.named_buffers()) | given
    return functional_call(
        Holder(module), {f"module.{name}": tensor for name, tensor in given.items()}, (use,), strict=True
    )


def parameters(leaves: Leaves) -> Leaves:
    return {name: leaf for name, leaf in leaves.items() if "." in name}


def shapes_of(module: nn.Module) -> Shapes:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}

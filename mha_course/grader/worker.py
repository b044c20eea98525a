"""Run one case on learner code and return plain values; the only module that ever calls what a learner wrote.

It knows nothing of exercises, references or points, so it can live in the process that is not trusted. In practice
(a learner checking their own notebook) the same code runs in that notebook's process.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
OUTPUT_LIMIT = 1_000_000  # characters that one case may print
MESSAGE_LIMIT = 600  # characters of an exception's text that are passed on


@dataclass(frozen=True)
class Foreign:
    """Stands for an object that is not passed on, because its type can't be trusted or compared; names that type."""

    type_name: str


class PrintedTooMuch(BaseException):
    """Ends learner code that prints without end; not an Exception, so that a bare `except Exception` lets it pass."""


class _Counter(io.TextIOBase):
    """Takes the place of standard output: counts what is printed and throws it away."""

    count = 0

    def write(self, text: str) -> int:
        self.count += len(text)
        if self.count > OUTPUT_LIMIT:
            raise PrintedTooMuch(f"more than {OUTPUT_LIMIT:,} characters")
        return len(text)


def run_case(target: Callable[..., Any], case: Mapping[str, Any], is_learners: Callable[[str], bool]) -> dict[str, Any]:
    """Run one case.

    Args:
        target: the learner's function or class.
        case: `build` (None, or {args, kwargs} to make an instance with), `state` (name to tensor, copied into the
            instance), `train` (the instance's mode), `seed`, and `calls`, each {method, args, kwargs, aliases, backward,
            train}.
        is_learners: whether a file name in a traceback belongs to the learner.

    Returns:
        `results`, one a call: {output, changed, gradients}, and `error`: None, or what ended the case early as
        {stage, type, message, where, code}; `printed`, the number of characters printed.
    """
    results: list[dict[str, Any]] = []
    error: dict[str, Any] | None = None
    counter = _Counter()
    stage = "build"
    with _undisturbed(int(case["seed"]), counter):
        try:
            instance = target
            if case["build"] is not None:
                instance = target(*case["build"]["args"], **case["build"]["kwargs"])
                stage = "state"
                if isinstance(instance, nn.Module) and any(v.dtype == torch.float64 for v in case["state"].values()):
                    instance.double()
                for name, value in case["state"].items():
                    _load(instance, name, value)
                if isinstance(instance, nn.Module):
                    instance.train(case["train"])
            stage = "call"
            for call in case["calls"]:
                results.append(_run_call(instance, call, case["state"]))
        except BaseException as caught:  # learner code may raise anything, SystemExit and KeyboardInterrupt included
            error = {"stage": stage, **describe_error(caught, is_learners)}
    return {"results": results, "error": error, "printed": counter.count}


def _run_call(instance: Any, call: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    backward = call["backward"]
    given = {**{str(i): value for i, value in enumerate(call["args"])}, **call["kwargs"]}
    taken = {name: _fresh(value, backward) for name, value in given.items()}
    for name, earlier in call.get(
        "aliases", {}
    ).items():  # one tensor given twice arrives as one, as in attention(x, x, x)
        taken[name] = taken[earlier]
    if call.get("train") is not None:
        instance.train(call["train"])
    parameters = {name: _find(instance, name) for name in state} if backward else {}
    for parameter in parameters.values():
        _gradient_holder(parameter).grad = None
    args = [taken[str(i)] for i in range(len(call["args"]))]
    function = getattr(instance, call["method"]) if call["method"] else instance
    output = function(*args, **{name: taken[name] for name in call["kwargs"]})
    gradients: dict[str, Tensor | None] = {}
    if backward:
        loss = _weighted_sum(output)
        if loss is not None:
            loss.backward()
        leaves = {name: value for name, value in taken.items() if isinstance(value, Tensor) and value.requires_grad}
        gradients = {name: _export_gradient(value) for name, value in {**leaves, **parameters}.items()}
    changed = [name for name, value in given.items() if isinstance(value, Tensor) and not _same(value, taken[name])]
    return {"output": _export(output), "changed": changed, "gradients": gradients}


def _fresh(value: Any, backward: bool) -> Any:
    """Copy a tensor, its memory layout included, so that learner code can't touch the original."""
    if not isinstance(value, Tensor):
        return value
    return value.clone(memory_format=torch.preserve_format).requires_grad_(backward and value.is_floating_point())


def _same(before: Tensor, after: Tensor) -> bool:
    return before.shape == after.shape and torch.equal(before.nan_to_num(), after.detach().nan_to_num())


def _weighted_sum(output: Any) -> Tensor | None:
    """Reduce every differentiable output to one number, each element with a weight of its own."""
    parts = output if isinstance(output, (tuple, list)) else (output,)
    terms = [
        (part.flatten() * torch.arange(1, part.numel() + 1, dtype=part.dtype).cos()).sum()
        for part in parts
        if type(part) is Tensor and part.requires_grad
    ]
    return torch.stack(terms).sum() if terms else None


def _find(instance: Any, name: str) -> Tensor:
    found = instance
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise AttributeError(f"{name} is a {type(found).__name__}, not a tensor")
    return found


def _load(instance: Any, name: str, value: Tensor) -> None:
    tensor = _find(instance, name)
    if tensor.shape != value.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)} instead of {tuple(value.shape)}")
    with torch.no_grad():
        tensor.copy_(value)


def _gradient_holder(parameter: Tensor) -> Tensor:
    """The leaf that collects the gradient: the parameter itself, or the larger one that it is a view of."""
    return parameter if parameter.is_leaf or parameter._base is None else parameter._base


def _export_gradient(leaf: Tensor) -> Tensor | None:
    holder = _gradient_holder(leaf)
    if holder.grad is None:
        return None
    if holder is not leaf:
        return holder.grad.as_strided(leaf.size(), leaf.stride(), leaf.storage_offset()).clone()
    return holder.grad.clone()


def _export(value: Any, depth: int = 0) -> Any:
    """Pass on exact types only: a subclass of Tensor may claim to equal everything."""
    if type(value) in (Tensor, nn.Parameter):
        if value.device.type == "cpu" and value.layout == torch.strided and value.dtype in DTYPES:
            return value.detach().clone()
        return Foreign(f"{value.dtype} tensor on {value.device}".removeprefix("torch."))
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < 3 and type(value) in (tuple, list) and len(value) <= 100:
        return type(value)(_export(item, depth + 1) for item in value)
    return Foreign(type(value).__name__)


def describe_error(caught: BaseException, is_learners: Callable[[str], bool]) -> dict[str, str]:
    """Say what was raised and, where known, at which of the learner's own lines."""
    try:
        message = str(caught)[:MESSAGE_LIMIT]
    except Exception:  # an exception whose text can't be made
        message = ""
    where = code = ""
    for frame in traceback.extract_tb(caught.__traceback__):
        if is_learners(frame.filename):
            where, code = f"{frame.filename}, line {frame.lineno}", (frame.line or "").strip()
    if isinstance(caught, SyntaxError) and caught.filename and is_learners(caught.filename):
        where, code = f"{caught.filename}, line {caught.lineno}", (caught.text or "").strip()
    return {"type": type(caught).__name__, "message": message, "where": where, "code": code}


@contextlib.contextmanager
def _undisturbed(seed: int, counter: _Counter) -> Iterator[None]:
    """Give learner code a known state of the framework, and put back what it changes."""
    dtype, generator = torch.get_default_dtype(), torch.get_rng_state()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(counter),
            contextlib.redirect_stderr(counter),
            torch.enable_grad(),
        ):
            warnings.simplefilter("ignore")
            torch.set_default_dtype(torch.float32)
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(generator)

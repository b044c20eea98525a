"""Run one case on learner code and return plain values; the only module that ever calls what a learner wrote.

It knows nothing of exercises, references or points, so it can live in the process that is not trusted. In practice
(a learner checking their own notebook) the same code runs in that notebook's process.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import io
import math
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

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


KEPT_LIMIT = 5  # names of what an answer remembers that are passed on
_FRAMEWORKS = ("training", "_parameters", "_buffers", "_modules")  # attributes of a module that are not the learner's


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
            instance), `train` (the instance's mode), `through` (None, or what takes the instance and gives back what
            is called), `seed`, and `calls`, each {method, args, kwargs, aliases, backward, train}.
        is_learners: whether a file name in a traceback belongs to the learner.

    Returns:
        `results`, one a call: {output, changed, gradients}, and `error`: None, or what ended the case early as
        {stage, type, message, where, code}; `printed`, the number of characters printed; `kept`, what changed on the
        learner's own objects while they were called, as "self.name" or "name".
    """
    tools = _Tools()
    results: list[dict[str, Any]] = []
    error: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    instance: Any = target
    counter = _Counter()
    stage = "build"
    with _undisturbed(int(case["seed"]), counter):
        try:
            if case["build"] is not None:
                args = [tools.fresh(value) for value in case["build"]["args"]]
                instance = target(*args, **{name: tools.fresh(v) for name, v in case["build"]["kwargs"].items()})
                stage = "state"
                for dtype in {value.dtype for value in case["state"].values() if value.is_floating_point()}:
                    if isinstance(instance, nn.Module) and dtype != torch.float32:
                        instance.to(dtype)
                for name, value in case["state"].items():
                    _load(instance, name, value)
                if isinstance(instance, nn.Module):
                    instance.train(case["train"])
            stage = "call"
            before = _kept(instance)
            called = instance if case["through"] is None else tools.fresh(case["through"])(instance)
            for call in case["calls"]:
                results.append(_run_call(instance, called, call, case["state"], tools))
        except BaseException as caught:  # learner code may raise anything, SystemExit and KeyboardInterrupt included
            error = {"stage": stage, **describe_error(caught, is_learners)}
    after = {} if before is None else _kept(instance)
    kept = [name for name, value in after.items() if _changed((before or {}).get(name), value)]
    return {"results": results, "error": error, "printed": counter.count, "kept": kept[:KEPT_LIMIT]}


def _kept(target: Any) -> dict[str, Any]:
    """Mark what a function or an instance can remember from one call to the next: attributes, and default arguments."""
    try:
        return _marks(target)
    except Exception:  # an object whose attributes can't be looked at
        return {}


def _marks(target: Any) -> dict[str, Any]:
    marks: dict[str, Any] = {}
    owners: dict[str, Any]
    functions: list[Any]
    if isinstance(target, types.FunctionType):
        owners, functions = {target.__name__: target}, [target]
    elif isinstance(target, nn.Module):
        owners = {
            f"self.{name}".rstrip("."): module
            for name, module in target.named_modules()
            if not type(module).__module__.startswith("torch.")  # they remember nothing, and there are many of them
        }
        functions = [type(target).forward]
    else:
        owners, functions = {"self": target} if hasattr(target, "__dict__") else {}, []
    for owner, holder in owners.items():
        for name, value in vars(holder).items():
            if name not in _FRAMEWORKS:
                marks[f"{owner}.{name}"] = _mark(value)
    for function in functions:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is not parameter.empty:
                marks[f"the default of {parameter.name}"] = _mark(parameter.default)
    return marks


def _mark(value: Any) -> tuple[Any, ...]:
    inside = len(value) if type(value) in (list, dict, set) else vars(value) if hasattr(value, "__dict__") else None
    return value, {name: id(part) for name, part in inside.items()} if isinstance(inside, dict) else inside


def _changed(before: tuple[Any, ...] | None, after: tuple[Any, ...]) -> bool:
    return before is None or before[0] is not after[0] or before[1] != after[1]


class _Tools:
    """Makes what a case gives to learner code, afresh for each call; objects of ours are made once a case."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, str, str], Any] = {}

    def fresh(self, value: Any, backward: bool = False) -> Any:
        """Copy a tensor, its memory layout included, so that learner code can't touch the original; make an object."""
        if isinstance(value, Tensor):
            return value.clone(memory_format=torch.preserve_format).requires_grad_(
                backward and value.is_floating_point()
            )
        if type(value) is dict and "given" in value:
            return self._object(value)
        if type(value) in (list, tuple):
            return type(value)(self.fresh(item, backward) for item in value)
        return value

    def _object(self, spec: Mapping[str, Any]) -> Any:
        key = (spec["source"], spec["given"], _written(spec["args"]), spec["tag"])
        if key not in self._made:
            namespace: dict[str, Any] = {
                "__name__": "given",
                "math": math,
                "torch": torch,
                "nn": nn,
                "F": functional,
                "Tensor": Tensor,
            }
            code = compile(spec["source"], "<given>", "exec", __future__.annotations.compiler_flag, dont_inherit=True)
            exec(code, namespace)  # noqa: S102 (source of the exercise's own)
            made = namespace[spec["given"]]
            self._made[key] = made if spec["args"] is None else made(*map(self.fresh, spec["args"]))
        return self._made[key]


def _written(value: Any) -> str:
    """Write arguments out in full, as `repr` does for all but tensors."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.tolist()}"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)


def _run_call(
    instance: Any, called: Any, call: Mapping[str, Any], state: Mapping[str, Tensor], tools: _Tools
) -> dict[str, Any]:
    backward = call["backward"]
    given = {**{str(i): value for i, value in enumerate(call["args"])}, **call["kwargs"]}
    taken = {name: tools.fresh(value, backward) for name, value in given.items()}
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
    function = getattr(called, call["method"]) if call["method"] else called
    if call["method"] and not callable(function):  # an attribute or a property
        output = function
    else:
        output = function(*args, **{name: taken[name] for name in call["kwargs"]})
    gradients: dict[str, Tensor | None] = {}
    if backward:
        loss = _weighted_sum(output)
        if loss is not None:
            loss.backward()
        leaves = {name: value for name, value in taken.items() if isinstance(value, Tensor) and value.requires_grad}
        gradients = {name: _export_gradient(value) for name, value in {**leaves, **parameters}.items()}
    changed = [name for name, value in given.items() if not _same(value, taken[name])]
    return {"output": _export(output), "changed": changed, "gradients": gradients}


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return before.shape == after.shape and torch.equal(before.nan_to_num(), after.detach().nan_to_num())
    if type(before) in (list, tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    return True


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
        if type(found) in (list, tuple, dict):
            raise AttributeError(f"{name} is out of PyTorch's sight, inside a plain {type(found).__name__}")
        found = getattr(found, part)
    if found is None:
        raise AttributeError(f"there is no {name} (bias=False?)")
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
    frames = [frame for frame in traceback.extract_tb(caught.__traceback__) if is_learners(frame.filename)]
    if frames:
        outer, inner = frames[0], frames[-1]
        where, code = f"{inner.filename}, line {inner.lineno}", (inner.line or "").strip()
        if (outer.filename, outer.name) != (inner.filename, inner.name):
            where += f", which {outer.filename}, line {outer.lineno}, came to"
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

"""One training loop for any model: gradients by tokens, a progress bar, exact resuming, as many processes as you like.

    model = …                                                    # on the device it shall be trained on
    optimizer = torch.optim.AdamW(model.parameters())
    recipe = Recipe(steps=300, micro_batches=2, about={"task": "numbers", "d_model": 64})
    history = train(model, optimizer, batch_at, loss, recipe, folder=Path("runs/numbers"))  # later with resume=True

`batch_at(step, index)` makes one micro-batch. What is drawn in it, and in the model's dropout, follows from the recipe's
seed, the step and the index alone: PyTorch's random numbers are set anew before each micro-batch. So a run that is resumed
needs to remember no random state, and one shared out among processes (`torchrun --standalone --nproc-per-node 2 …`) draws
the same numbers as one alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from mha_course import checkpoint
from mha_course.surroundings import display, distributed_run, join_processes, stop_signal

_ABOUT = "about "  # stands before the names in a recipe's `about`, among a checkpoint's settings


@dataclass(frozen=True)
class Recipe:
    """What a run is made of, beside model, optimizer and data.

    On resuming all must be as before, except `steps` (a run may go on for longer), `save_every` and `measure_every`.

    Args:
        steps: number of updates in all.
        micro_batches: how many make up an update, over all processes.
        clip_norm: greatest length of the gradient; a longer one is scaled down to it. None leaves it as it is.
        seed: another one gives other random numbers.
        save_every: updates from one checkpoint to the next.
        measure_every: updates from one call of `metrics` to the next.
        about: what else decides the result, as JSON can hold it: sizes, data, schedule.

    Raises:
        ValueError: if a number is too small or `about` is not JSON.
    """

    steps: int
    micro_batches: int = 1
    clip_norm: float | None = None
    seed: int = 0
    save_every: int = 100
    measure_every: int = 100
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse now what would fail after the first hour."""
        for name in ("steps", "micro_batches", "save_every", "measure_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but it is {getattr(self, name)}; give a larger number")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be above 0, but it is {self.clip_norm}; None switches clipping off")
        try:
            json.dumps(self.about)
        except TypeError as error:
            raise ValueError(f"about must be JSON, but {error}; name it by a number, a text or a list") from error


@dataclass(frozen=True)
class Progress:
    """What a step came to: its number from 0, mean loss of a token, real tokens, rate, gradient's length before clipping."""

    step: int
    loss: float
    tokens: int
    learning_rate: float
    gradient_norm: float
    metrics: Mapping[str, float]


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, by Ctrl-C or SIGTERM, and did so between two steps; the message says how to go on."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batch_at: Callable[[int, int], Any],
    loss: Callable[[nn.Module, Any], tuple[Tensor, int | Tensor]],
    recipe: Recipe,
    *,
    learning_rate: Callable[[int], float] | None = None,
    metrics: Callable[[nn.Module], Mapping[str, float]] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> list[Progress]:
    """Train a model in place; every real token counts alike, in whichever micro-batch or process it stands.

    Args:
        model: on the device that is to be used; batches are moved there.
        optimizer: of the model's parameters.
        batch_at: makes the micro-batch `index` (from 0 to micro_batches - 1) of a step (from 0), from these two numbers
            and PyTorch's random numbers alone: tensors in tuples, lists and dicts, or anything with a method `to(device)`.
        loss: the sum of the token losses of a batch, and the number of its real tokens. It calls the model itself, not its
            parts, so that several processes can work on it. If there is no token, the sum is 0, still computed by the model.
        recipe: how long, in what portions, and so on.
        learning_rate: the rate of each step, from 0; None leaves it to the optimizer.
        metrics: measures the model, in evaluation mode and without gradients, for the bar and the history; it is called in
            the first process only, every `measure_every` steps and after the last one.
        folder: where the checkpoint is kept; None keeps none.
        resume: go on from the checkpoint in `folder`.
        progress: True draws a bar, False is silent, None draws it in a terminal or notebook and else writes ten lines.

    Returns:
        One entry a step, from the very first, also if the run was resumed.

    Raises:
        ValueError: if there is a checkpoint in the way, or none to resume, or it is damaged or of another run.
        FloatingPointError: if a loss, a gradient or a parameter is no longer finite; the last good checkpoint is kept.
        Stopped: after Ctrl-C or SIGTERM, when the step was finished and saved. A second Ctrl-C stops at once.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def batch_at(step, index):
    ...     x = torch.randn(5, 2)
    ...     return x, x.sum(dim=1, keepdim=True)
    >>> def loss(model, batch):
    ...     x, y = batch
    ...     return (model(x) - y).square().sum(), len(x)
    >>> history = train(model, optimizer, batch_at, loss, Recipe(steps=100), progress=False)
    >>> len(history), history[-1].loss < 1e-6
    (100, True)
    """
    device = next(model.parameters()).device
    # Only CUDA's random numbers can be put back as they were for the caller; those of other devices are merely set anew.
    random_devices = [device] if device.type == "cuda" else []
    rank, size = join_processes(device)
    with torch.random.fork_rng(random_devices), stop_signal() as stopping:
        if recipe.micro_batches < size:
            raise ValueError(
                f"each process needs a micro-batch, but {size} processes share {recipe.micro_batches}; "
                f"start fewer processes or set micro_batches={size}"
            )
        settings = _settings(recipe, optimizer, scheduled=learning_rate is not None)
        history = _resumed(folder, model, optimizer, settings, learning_rate) if resume else _begun(folder)
        replica = DistributedDataParallel(model) if distributed_run() else model
        stopped = False
        with display(recipe.steps, len(history), progress if rank == 0 else False) as show:
            for step in range(len(history), recipe.steps):
                if stopped:
                    break
                if learning_rate is not None:
                    for group in optimizer.param_groups:
                        group["lr"] = float(learning_rate(step))
                model.train()
                optimizer.zero_grad()
                indices = range(rank, recipe.micro_batches, size)
                total, tokens = _add_up_gradients(replica, batch_at, loss, recipe.seed, step, indices, device)
                total, tokens, stopped = _over_all_processes(total, tokens, stopping.is_set(), device)
                norm = _mean_gradient(model, tokens, recipe.clip_norm)
                mean = total / max(tokens, 1)
                _require_finite(step, mean, norm, folder)
                optimizer.step()
                rate = float(optimizer.param_groups[0]["lr"])
                measured: dict[str, float] = {}
                last = step + 1 == recipe.steps
                if metrics is not None and rank == 0 and (last or (step + 1) % recipe.measure_every == 0):
                    torch.manual_seed(_seed(recipe.seed, step, recipe.micro_batches))
                    measured = _measured(model, metrics)
                history.append(Progress(step, mean, tokens, rate, norm, measured))
                show(step + 1, mean, measured)
                if last or stopped or (step + 1) % recipe.save_every == 0:
                    _require_finite_parameters(model, step, folder)
                    if folder is not None and rank == 0:
                        entries = [asdict(entry) for entry in history]
                        checkpoint.save(folder, model, optimizer, {"settings": settings, "history": entries})
                    if distributed_run():
                        distributed.barrier()  # none may look for the checkpoint before it is there
        if stopped or stopping.is_set():
            kept = f"resume goes on from the checkpoint in {folder}" if folder else "nothing is kept without a folder"
            raise Stopped(f"stopped after {len(history)} of {recipe.steps} steps; {kept}")
    return history


def _add_up_gradients(
    model: nn.Module,
    batch_at: Callable[[int, int], Any],
    loss: Callable[[nn.Module, Any], tuple[Tensor, int | Tensor]],
    seed: int,
    step: int,
    indices: range,
    device: torch.device,
) -> tuple[float, int]:
    """Leave in the parameters the gradient of the sum of all token losses; return this process's sum and its tokens."""
    totals, counts = [], []
    for index in indices:
        torch.manual_seed(_seed(seed, step, index))
        batch = _moved(batch_at(step, index), device)
        # Processes exchange their gradients once a step, with the last micro-batch. What they exchange is the mean over
        # processes, so each multiplies its part by their number.
        with model.no_sync() if isinstance(model, DistributedDataParallel) and index != indices[-1] else nullcontext():
            total, count = loss(model, batch)
            (total * indices.step).backward()
        totals.append(total.detach())
        counts.append(count)
    # Only now is a GPU waited for.
    return sum(torch.stack(totals).tolist()), sum(int(count) for count in counts)


def _over_all_processes(total: float, tokens: int, stopping: bool, device: torch.device) -> tuple[float, int, bool]:
    """Add up sums and tokens of all processes; if one was asked to stop, all stop."""
    if not distributed_run():
        return total, tokens, stopping
    sums = torch.tensor([total, tokens, stopping], dtype=torch.float64, device=device)
    distributed.all_reduce(sums)
    total, everyones, asked = sums.tolist()
    return total, round(everyones), asked > 0


def _mean_gradient(model: nn.Module, tokens: int, clip_norm: float | None) -> float:
    """Divide the gradient of the sum by the number of tokens and clip it; return its length before clipping."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= max(tokens, 1)
    return float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf))


def _require_finite(step: int, loss: float, norm: float, folder: Path | None) -> None:
    for name, value in (("loss", loss), ("length of the gradient", norm)):
        if not math.isfinite(value):
            raise FloatingPointError(_went_wrong(f"the {name} is {value} in step {step}", folder))


def _require_finite_parameters(model: nn.Module, step: int, folder: Path | None) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise FloatingPointError(_went_wrong(f"not all of {name} is after step {step}", folder))


def _went_wrong(what: str, folder: Path | None) -> str:
    kept = (
        ""
        if folder is None or not (folder / checkpoint.NAME).exists()
        else f" (the last good checkpoint is kept in {folder})"
    )
    return (
        f"training needs finite numbers, but {what}; begin anew with a lower learning rate, a longer warmup or a smaller "
        f"clip_norm, and look for a division by 0 in the loss{kept}"
    )


def _measured(model: nn.Module, metrics: Callable[[nn.Module], Mapping[str, float]]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        return {name: float(value) for name, value in metrics(model).items()}


def _seed(seed: int, step: int, index: int) -> int:
    """Mix three numbers so that neighbours get unrelated random numbers, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {index}".encode()).digest()[:8])


def _moved(batch: Any, device: torch.device) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes its parts one by one
        return type(batch)(*(_moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(part, device) for part in batch)
    return batch


def _begun(folder: Path | None) -> list[Progress]:
    if folder is not None and (folder / checkpoint.NAME).exists():
        raise ValueError(
            f"a run begins in a folder without a checkpoint, but there is one in {folder}; resume it, delete it or name "
            "another folder"
        )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # now: that there can be no folder should not cost an hour
    return []


def _settings(recipe: Recipe, optimizer: Optimizer, scheduled: bool) -> dict[str, Any]:
    """Name all that must be as it was, beside the model, for a run to go on with the same numbers."""
    left_out = {"params", "lr"} if scheduled else {"params"}
    settings: dict[str, Any] = {name: getattr(recipe, name) for name in ("seed", "micro_batches", "clip_norm")}
    settings |= {_ABOUT + name: value for name, value in recipe.about.items()}
    settings["optimizer"] = type(optimizer).__name__
    for number, group in enumerate(optimizer.param_groups):
        settings |= {f"{name} of parameter group {number}": group[name] for name in group if name not in left_out}
    return json.loads(json.dumps(settings, default=str))  # as it will be read again: a tuple as a list


def about(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `about` of the recipe that a checkpoint's settings come from."""
    return {name.removeprefix(_ABOUT): value for name, value in settings.items() if name.startswith(_ABOUT)}


def _resumed(
    folder: Path | None,
    model: nn.Module,
    optimizer: Optimizer,
    settings: Mapping[str, Any],
    learning_rate: Callable[[int], float] | None,
) -> list[Progress]:
    """Put model and optimizer back to where the checkpoint was made; return the history up to there."""
    if folder is None:
        raise ValueError("a run is resumed from the checkpoint in its folder, but no folder was given; name it")
    _, about = checkpoint.read(folder)
    checkpoint.require_same(folder, about["settings"], settings)
    history = [Progress(**entry) for entry in about["history"]]
    if learning_rate is not None:
        then = {f"learning rate of step {entry.step}": entry.learning_rate for entry in history}
        now = {f"learning rate of step {entry.step}": float(learning_rate(entry.step)) for entry in history}
        checkpoint.require_same(folder, then, now)
    checkpoint.restore(folder, model, optimizer)
    return history

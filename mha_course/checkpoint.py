"""One file that holds a training run, whole or not at all: written aside, then put in place of the one before."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

NAME = "checkpoint.safetensors"
ABOUT = "about"  # the tensor that holds all that is not one


def write(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a checkpoint; until it is complete, and on the disk, the one before stays.

    Args:
        folder: where it is kept under `NAME`; made if it isn't there.
        tensors: whatever has to be restored, on any device; none may be called `ABOUT`.
        about: all else, as JSON can hold it.

    Raises:
        OSError, SafetensorError: if it can't be written; the checkpoint before is still there then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    # A tensor too, because a safetensors header ends at 100 MB, and a long history would not fit.
    copies[ABOUT] = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    aside = folder / f"{NAME}.partial"
    try:
        save_file(copies, aside, metadata={"sha256": _digest(copies)})
        with aside.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave the new name with none of the data
        aside.replace(folder / NAME)
    finally:
        aside.unlink(missing_ok=True)
    if os.name == "posix":  # the new name is on the disk only when its folder is; Windows does that itself
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint. Nothing in it is run, whoever wrote it.

    Args:
        folder: where `write` put it.

    Returns:
        The tensors, on the CPU, and all else.

    Raises:
        ValueError: if there is none, or it is damaged, be it in a single bit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder), {"weight": torch.tensor([0.5, 0.25])}, {"step": 3})
    ...     read(Path(folder))
    ({'weight': tensor([0.5000, 0.2500])}, {'step': 3})
    """
    path = folder / NAME
    if not path.exists():
        raise ValueError(f"there is no checkpoint at {path}; name the folder of a run, or begin one without resume")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it has no other iterator)
    except (SafetensorError, OSError) as error:
        raise ValueError(_damaged(path, str(error))) from error
    if "sha256" not in metadata or ABOUT not in tensors:
        raise ValueError(
            f"a checkpoint is what a training run wrote, but {path} is another file; name the folder of a run"
        )
    if metadata["sha256"] != _digest(tensors):
        raise ValueError(_damaged(path, "its checksum is another"))
    return tensors, json.loads(tensors.pop(ABOUT).numpy().tobytes())


def save(folder: Path, model: nn.Module, optimizer: Optimizer, about: Mapping[str, Any]) -> None:
    """Write a checkpoint of a model and its optimizer, as `write` does.

    Args:
        folder: where it is kept.
        model: whose parameters and buffers are written.
        optimizer: whose state is written, but not its settings: the run that is resumed brings its own.
        about: all else, as JSON can hold it.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    others: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            (tensors if isinstance(value, Tensor) else others)[f"optimizer.{index}.{name}"] = value
    write(folder, tensors, {"optimizer": others, **about})


def restore(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Put a model and its optimizer back to what they were when they were saved.

    Args:
        folder: where `save` put them.
        model: built as it was then.
        optimizer: likewise.

    Raises:
        ValueError: if there is no checkpoint, it is damaged, or the model has other parts or shapes.
    """
    tensors, about = read(folder)
    kept = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    require_same(folder, _shapes(kept), _shapes(model.state_dict()))
    model.load_state_dict(kept)
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **about["optimizer"]}.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    # That gave each tensor its parameter's type; kept in another one (as by NAdam), it would go on with other numbers.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state.items():
        loaded = optimizer.state[parameters[index]]
        loaded.update({key: t.to(loaded[key].device, copy=True) for key, t in entries.items() if isinstance(t, Tensor)})


def require_same(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another run, and name the first thing that is not as it was.

    Args:
        folder: where the checkpoint is kept.
        then: what the checkpoint says of each thing.
        now: what the run that shall go on says of it.

    Raises:
        ValueError: if they differ.
    """
    for name in [*now, *then]:
        if (name in then) != (name in now) or then[name] != now[name]:
            raise ValueError(
                f"a run goes on as it began, but in the checkpoint in {folder} {name} is {then.get(name, 'missing')}, "
                f"and now it is {now.get(name, 'missing')}; change it back, or begin in another folder"
            )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> str:
    return f"a checkpoint must be whole, but {path} is damaged ({why}); delete it and begin anew, or put a copy back"

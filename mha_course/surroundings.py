"""What a training run has around it: other processes that share the work, somebody who may stop it, and a screen."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import torch
from torch import distributed
from tqdm.auto import tqdm
from tqdm.notebook import tqdm_notebook

LINES = 10  # of a whole run in a log, where a bar could not be redrawn


def require_device(name: str, purpose: str) -> None:
    """Refuse a device that is not there.

    Args:
        name: "cpu", "cuda" or "mps".
        purpose: what it is asked for, as in "to … on the CPU".

    Raises:
        ValueError: if PyTorch does not find it.
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name]:
        raise ValueError(f"PyTorch finds no device {name!r} here; leave --device out to {purpose} on the CPU")


def distributed_run() -> bool:
    """Say whether this process is one of a group, if only of one."""
    return distributed.is_available() and distributed.is_initialized()


def join_processes(device: torch.device) -> tuple[int, int]:
    """Join the other processes that `torchrun` started, until this one ends; alone, do nothing.

    Args:
        device: where this process computes: the group talks by NCCL between GPUs, else by Gloo.

    Returns:
        This process's number, from 0, and how many there are.
    """
    if distributed.is_available() and distributed.is_torchelastic_launched() and not distributed_run():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        # Not after each training: joined anew, a process would look for the others where they were the first time.
        atexit.register(_part)
    return (distributed.get_rank(), distributed.get_world_size()) if distributed_run() else (0, 1)


def _part() -> None:
    if distributed_run():
        distributed.destroy_process_group()


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM ask for an end where they would else cut a step in two; a second Ctrl-C cuts.

    Returns:
        An event that is set once somebody asked. In another thread than the main one signals can't be caught, and it
        stays unset.
    """
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        # torchrun passes on the Ctrl-C that its processes got from the terminal already.
        if asked.is_set() and number == signal.SIGINT and not distributed_run():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: a handler that is not Python's


@contextmanager
def display(
    steps: int, done: int, progress: bool | None
) -> Iterator[Callable[[int, float, Mapping[str, float]], None]]:
    """Show how far a run is, on standard error.

    Args:
        steps: of the whole run.
        done: steps made before, if it was resumed.
        progress: True draws a bar, False shows nothing, None draws a bar where somebody watches and else writes `LINES`.

    Returns:
        A function to be called after each step, with the number of steps done, the loss and what was measured.
    """
    latest: dict[str, float] = {}

    def line(now: int, loss: float, metrics: Mapping[str, float]) -> None:
        latest.update(metrics)
        if now * LINES // steps > (now - 1) * LINES // steps:
            parts = ", ".join(f"{name} {value:.4g}" for name, value in {"loss": loss, **latest}.items())
            sys.stderr.write(f"step {now} of {steps}: {parts}\n")
            sys.stderr.flush()

    in_notebook = issubclass(tqdm, tqdm_notebook)
    if progress is False:
        yield lambda now, loss, metrics: None
    elif progress is None and not in_notebook and not sys.stderr.isatty():
        yield line
    else:
        with tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True) as bar:

            def draw(now: int, loss: float, metrics: Mapping[str, float]) -> None:
                latest.update(metrics)
                bar.set_postfix({"loss": loss, **latest}, refresh=False)
                bar.update()

            yield draw

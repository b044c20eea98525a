"""Peak memory of one call, as the operating system sees it, in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType

import torch

RESET = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD in malloc.h


def _follow_parent() -> None:
    """Let Ctrl-C be the parent's affair, and end with it however it ends: a pool's process would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def can_be_measured(device: str) -> bool:
    """Say whether the peak is known here: on CUDA, and for the CPU on Linux and macOS."""
    return device == "cuda" or (device == "cpu" and sys.platform in ("linux", "darwin"))


def extra_peak(prepare: Callable[[], Callable[[], object]], device: str, threads: int) -> int:
    """Measure by how much one call raises the memory in use, at its highest.

    Where the peak can be reset (Linux, CUDA) it is that of a second call: what libraries load or keep for good at the first
    does not count. Where it can't (macOS), call this once a process; it is the first call's.

    Args:
        prepare: allocates inputs and parameters, which don't count, and returns what is to be called.
        device: "cpu" or "cuda".
        threads: of the CPU.

    Returns:
        Bytes, what the call returns included.
    """
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        _give_back_at_once()
    run = prepare()
    if device == "cuda":
        run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    if sys.platform == "linux":
        run()
        gc.collect()
        _give_back_at_once()
        RESET.write_text("5")  # from now on the peak is counted from what is in use now
    before = _peak()
    run()
    return _peak() - before


def _give_back_at_once() -> None:
    """Let what is freed go back to the system: else it counts as in use, or a call reuses it unseen."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # the GNU C library's
        library.mallopt(MMAP_THRESHOLD, 2**16)  # bytes: a tensor that is larger has pages of its own
        library.malloc_trim(0)


def _peak() -> int:
    if sys.platform == "linux":  # not getrusage: what it reports is handed down from the process that started this one
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource  # noqa: PLC0415 (Windows has none)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


class Meter:
    """A process in which memory is measured: nothing else happens there, and it may run out of memory."""

    def __init__(self, device: str, threads: int) -> None:
        """Say where to measure; the process starts with the first measurement."""
        self.device, self.threads = device, threads
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def measure(self, prepare: Callable[[], Callable[[], object]]) -> int | None:
        """Return the extra peak in bytes; None where it can't be measured, or memory does not suffice."""
        if not can_be_measured(self.device):
            return None
        if self._pool is None:
            fresh = None if sys.platform == "linux" or self.device == "cuda" else 1
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _follow_parent, max_tasks_per_child=fresh)
        try:
            return self._pool.submit(extra_peak, prepare, self.device, self.threads).result()
        except BrokenProcessPool:  # the system ended it, which it does where memory runs out
            self._pool = None
            return None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            return None

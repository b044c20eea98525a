"""Hold PyTorch ready and fork a child for each answer: `python -m mha_course.grader.zygote CONTROL SCRATCH PRIVATE`.

It knows no exercise. It stays alive whatever its child does, and ends all that the child has started.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import einops
import jaxtyping
import numpy as np
import torch

from mha_course.grader import loader
from mha_course.grader.channel import Channel

PROCESSES_LIMIT = 64
FILE_LIMIT = 2**20  # bytes of a file that learner code writes
OPEN_FILES_LIMIT = 128
TICK = 0.05  # seconds between two looks at a running child

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


class Zygote:
    """Takes orders from the checker, one child at a time.

    Orders and answers are JSON, and every order is answered. `start` comes with one end of a socket and forks a child;
    `end` ends it and gives its `status`, as `os.waitpid` does, and the `reason` for which the zygote ended it, if any.
    """

    def __init__(self, control: socket.socket, scratch: str, *, is_private: bool) -> None:
        self.control = control
        self.place = scratch  # the one where a child may write
        self.scratch = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self.is_private = is_private  # whether every process in sight is ours
        self.child = 0
        self.status = 0
        self.reason = ""
        self.bounds = _bounds()

    def serve(self) -> None:
        """Obey until the checker is gone."""
        self.control.sendall(b"{}")
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        while True:
            if not poll.poll(TICK * 1000 if self.child else None):
                self.look_after_child()
                continue
            message, descriptors, *_ = socket.recv_fds(self.control, 4096, 1)
            order: dict[str, Any] = json.loads(message) if message else {"order": "quit"}
            self.end_child(patience=order.get("patience", 0.0))
            if order["order"] == "quit":
                return
            if order["order"] == "start":
                self.start_child(socket.socket(fileno=descriptors[0]), order)
            self.control.sendall(json.dumps({"status": self.status, "reason": self.reason}).encode())

    def start_child(self, connection: socket.socket, limits: dict[str, Any]) -> None:
        """Fork; the child never returns from here."""
        if _bounds() != self.bounds:
            os._exit(1)  # a child has changed them for all that follow; the checker starts another zygote
        self.status, self.reason = 0, ""
        self.child = os.fork()
        if self.child:
            connection.close()
            return
        try:
            _become_child(connection.detach(), limits, is_private=self.is_private)
            loader.serve(Channel(socket.socket(fileno=3)))
        except ConnectionError:
            os._exit(0)  # the checker hung up
        finally:
            os._exit(70)

    def look_after_child(self) -> None:
        """End what a child left behind when it ended, and a child that multiplies."""
        pid, status = os.waitpid(self.child, os.WNOHANG)
        if pid:
            self.child, self.status = 0, status
            self.end_descendants()
        elif len(self.descendants()) > PROCESSES_LIMIT:
            self.reason = f"started more than {PROCESSES_LIMIT} processes"
            self.end_child()

    def end_child(self, patience: float = 0.0) -> None:
        """End the child with all that it started, and clear up after it.

        Args:
            patience: seconds for which a child that is about to end by itself may do so, so that its own status is
                learned and not that of being killed.
        """
        deadline = time.monotonic() + patience
        while self.child and time.monotonic() < deadline:
            self.look_after_child()
            time.sleep(0.001)
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child, signal.SIGKILL)
            _, self.status = os.waitpid(self.child, 0)
            self.child = 0
            self.reason = self.reason or "closed its connection to the grader"
        self.end_descendants()

    def end_descendants(self) -> None:
        """End every process that a child started, also those which left its process group."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:  # orphans become ours, so that without children there are no descendants
                break
            for pid in [-1] if self.is_private else self.descendants():  # -1 is all but ourselves, at one stroke
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        self.clear()

    def clear(self) -> None:
        """Empty the one place where a child may write; where that can't be done, leave, to be started anew elsewhere."""
        try:
            if not os.path.samestat(os.lstat(self.place), os.fstat(self.scratch)):
                os._exit(1)  # a child has put something else there, perhaps a link to what must not be emptied
            os.fchmod(self.scratch, 0o700)
            for entry in list(os.scandir(self.scratch)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=self.scratch)
                else:
                    os.unlink(entry.name, dir_fd=self.scratch)
        except OSError:
            os._exit(1)

    def descendants(self) -> list[int]:
        """List the living processes that descend from this one, as far as the system tells."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name in brackets may itself hold brackets and spaces.
                state, parent = entry.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.parent.name)] = int(parent)
        found = {os.getpid()}
        while new := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= new
        return sorted(found - {os.getpid()})


def _bounds() -> tuple[object, ...]:
    """Return all that a child inherits and that another process of the same user can set: see `prlimit`."""
    kinds = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
    limits = tuple(resource.getrlimit(kind) for kind in kinds)
    if sys.platform != "linux":
        return (*limits, os.getpriority(os.PRIO_PROCESS, 0))
    scheduling = (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, frozenset(os.sched_getaffinity(0)))
    return (*limits, os.getpriority(os.PRIO_PROCESS, 0), *scheduling)


def _become_child(descriptor: int, limits: dict[str, Any], *, is_private: bool) -> None:
    """Give up everything but one socket, and set the limits."""
    os.setsid()
    wanted = {
        resource.RLIMIT_AS: _mapped() + int(limits["memory"]),
        resource.RLIMIT_CPU: int(limits["seconds"]) + 1,
        resource.RLIMIT_FSIZE: FILE_LIMIT,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: OPEN_FILES_LIMIT,
    }
    if is_private:  # elsewhere all processes of the user would count
        wanted[resource.RLIMIT_NPROC] = PROCESSES_LIMIT
    for kind, limit in wanted.items():
        # At its soft limit of processor time a process gets a signal that tells; at the hard one it is just killed.
        hard = limit + 1 if kind == resource.RLIMIT_CPU else limit
        try:
            resource.setrlimit(kind, (limit, hard))
        except (ValueError, OSError) as error:  # some systems refuse some limits; what holds is probed
            os.write(2, f"limit {kind} could not be set to {limit}: {error}\n".encode())  # still the zygote's log
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.dup2(os.dup(descriptor), 3)  # by way of a copy, as it may be 3 already, and must outlive the next line
    os.closerange(4, 4096)
    _control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _mapped() -> int:
    """Bytes of address space in use already, most of them libraries."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _warm_up() -> None:
    """Do once what would otherwise be done by every child: lazy imports and first calls."""
    torch.set_num_threads(1)
    # Without this, every torch.manual_seed writes down the whole stack for each kind of accelerator that might wake up.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        vars(device)["_is_in_bad_fork"] = lambda: True
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    np.asarray(layer(torch.ones(1, 2)).softmax(-1).detach())
    einops.rearrange(torch.ones(2, 2), "a b -> b a")
    assert jaxtyping.Float  # imported for learner code
    loader.forget_course()
    gc.collect()
    gc.freeze()  # pages stay shared with the children


def main(control: str, scratch: str, privacy: str) -> None:
    """Start from the command line."""
    _control_process(_PR_SET_CHILD_SUBREAPER, 1)
    _control_process(_PR_SET_DUMPABLE, 0)  # no child may look into or write to this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the checker's to handle
    _warm_up()
    Zygote(socket.socket(fileno=int(control)), scratch, is_private=privacy == "private").serve()
    os._exit(0)  # taking PyTorch down in good order would take longer than all that is left to do


if __name__ == "__main__":
    main(*sys.argv[1:])

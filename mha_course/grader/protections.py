"""Say what learner code is kept from, after trying each of it from where learner code runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mha_course.exercises.exercise import Call, Case
from mha_course.grader.child import Child
from mha_course.grader.verdicts import Crashed

# What `probe` tries, in the words of a report.
CLAIMS = {
    "group": "own process group",
    "processes": "other processes out of reach",
    "network": "no network",
    "disk": "read-only disk",
    "sight": "submissions, results and solutions out of sight",
    "memory": "memory {memory:g} GiB",
    "time": "limited processor time",
    "size": "files of at most 1 MiB",
}


@runtime_checkable
class Opener(Protocol):
    """What can start a child."""

    def open(self, program: Mapping[str, Any], seconds: float) -> Child:
        """Start a child and load a program into it."""


def protections(sandbox: Opener, hidden: Sequence[str], scratch: Path, memory: int) -> tuple[str, ...]:
    """Try every protection.

    Args:
        sandbox: where to try.
        hidden: paths that must not be seen, beyond the course itself.
        scratch: an empty folder.
        memory: bytes that a child may have.

    Returns:
        Those that hold, in words.

    Raises:
        TimedOut, Crashed: if they could not be tried.
    """
    here = Path(__file__)
    source = here.with_name("probe.py").read_text("utf-8")
    cells = [{"label": "probe", "source": source}]
    program = {"name": "probe", "cells": cells, "path": "", "modules": {}, "course": {}}
    with socket.create_server(("127.0.0.1", 0)) as server:
        args = ((*hidden, str(here)), str(scratch), server.getsockname()[1], os.getpid(), memory)
        with sandbox.open(program, seconds=60) as child:
            reply = child.request(Case("", "", (Call(args),)).message())
            was_written = (scratch / "written").exists()  # it is cleared away with the child
    if reply["error"] is not None:
        raise Crashed(f"raised {reply['error']}")
    missing = {*reply["results"][0]["output"], *["disk"] * was_written}
    return tuple(claim.format(memory=memory / 2**30) for name, claim in CLAIMS.items() if name not in missing)

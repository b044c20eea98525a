"""Try what learner code must not be able to do; sent to a child as if a learner had written it, and never imported."""

import contextlib
import os
import resource
import socket
from pathlib import Path


def probe(hidden: tuple[str, ...], scratch: str, port: int, pid: int, memory: int) -> list[str]:
    """Return the names of those protections that do not hold.

    Args:
        hidden: paths that must not be seen.
        scratch: a folder of the checker's, in which nothing must appear.
        port: at which the checker listens, and must not be reached.
        pid: the checker's own process.
        memory: bytes of which not more can be had.
    """
    missing = []
    if os.getpgrp() != os.getpid():
        missing.append("group")
    with contextlib.suppress(ProcessLookupError):
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
        missing.append("processes")
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        missing.append("network")
    if any(Path(path).exists() for path in hidden):
        missing.append("sight")
    with contextlib.suppress(OSError):
        Path(scratch, "written").touch()
    if any(os.access(path, os.W_OK) for path in ("/", "/usr", "/etc", "/var", os.__file__, *hidden)):
        missing.append("disk")
    try:
        bytearray(memory + 2**26)
        missing.append("memory")
    except MemoryError:
        pass
    if resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY:
        missing.append("time")
    with contextlib.suppress(OSError):
        Path(os.environ["HOME"], "large").write_bytes(bytes(2**20 + 1))
        missing.append("size")
    return missing

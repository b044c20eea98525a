"""Run learner code in processes apart, under the strongest protection that this machine allows, and say which it is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from mha_course.grader.channel import Channel
from mha_course.grader.isolation import environment, ways
from mha_course.grader.verdicts import Crashed, TimedOut

if TYPE_CHECKING:
    from mha_course.grader.child import Child

MEMORY = 3 * 2**30  # bytes that learner code may map beyond what PyTorch has
START_SECONDS = 120  # for importing PyTorch on a slow disk
ORDER_SECONDS = 10  # for an answer of the zygote, which does nothing that takes long


class SandboxError(Exception):
    """No process could be started in which learner code might run."""


class Sandbox:
    """Starts children one after another, each forked from a process that holds PyTorch ready.

    Args:
        hidden: folders that learner code is not to see, beyond the course itself.
        memory: bytes that a child may map.
    """

    def __init__(self, hidden: Sequence[Path] = (), memory: int = MEMORY) -> None:
        self.way = ""  # how the processes are kept apart, once one has started
        self._hidden = [str(path.resolve()) for path in hidden]
        self._memory = memory
        self._ways = list(ways())
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_ready = False
        self._protections: tuple[str, ...] | None = None
        self._files = contextlib.ExitStack()
        self._scratch = ""
        self._log: IO[bytes] = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (it is one)

    def __enter__(self) -> Sandbox:
        self._launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._files.close()

    @property
    def protections(self) -> tuple[str, ...]:
        """What learner code is kept from, each tried out from within before it is said."""
        from mha_course.grader.protections import protections  # noqa: PLC0415 (as in `open`)

        if self._protections is None:
            try:
                self._protections = protections(self, self._hidden, Path(self._scratch), self._memory)
            except (TimedOut, Crashed) as error:
                raise SandboxError(f"what protects could not be tried out: the code for it {error}") from error
        return self._protections

    def open(self, program: Mapping[str, Any], seconds: float) -> Child:
        """Start a child and load a program into it.

        Args:
            program: what `Plan.program` wrote.
            seconds: for everything that the child does, on the clock on the wall.

        Raises:
            TimedOut: if loading takes all the time.
            Crashed: if the child ends while it loads.
            SandboxError: if no child can be started.
        """
        from mha_course.grader.child import Child  # noqa: PLC0415 (needs PyTorch, which the zygote imports meanwhile)

        child = Child(self, Channel(self._start(seconds)), seconds)
        try:
            child.loaded = child.request(program)
        except BaseException:
            child.close()
            raise
        return child

    def _start(self, seconds: float) -> socket.socket:
        order = {"order": "start", "memory": self._memory, "seconds": seconds}
        for _ in range(2):  # the child before may have ended the zygote unseen
            self._wait_until_ready()
            ours, theirs = socket.socketpair()
            with theirs:
                if self._order(order, theirs) is not None:
                    return ours
            ours.close()
            self._stop()
        raise SandboxError(f"no process could be forked: {self._last_words()}")

    def end_child(self, patience: float = 0.0) -> dict[str, Any] | None:
        """End the child and all that it started; None if nobody is left who could say how it ended."""
        answer = self._order({"order": "end", "patience": patience})
        if answer is None:
            self._stop()
        return answer

    def ending(self) -> Crashed | TimedOut:
        """Find out how the child ended that hung up."""
        answer = self.end_child(patience=0.5)
        if answer is None:
            return Crashed("ended the process that watches over it")
        if answer["reason"]:
            return Crashed(answer["reason"])
        code = os.waitstatus_to_exitcode(answer["status"])
        if code >= 0:
            return Crashed(f"ended its own process with exit code {code} (os._exit or the like)")
        if -code == signal.SIGXCPU:
            return TimedOut()
        if -code == signal.SIGKILL:
            return Crashed("was killed, by itself or by the system for want of memory")
        name = signal.strsignal(-code) or "of an unknown kind"
        return Crashed(f"was ended by signal {-code} ({name.lower()})")

    def _launch(self) -> None:
        """Start the zygote in the strongest way that is left, without waiting for it."""
        folder = tempfile.TemporaryDirectory(prefix="mha-course-", ignore_cleanup_errors=True)
        self._scratch = self._files.enter_context(folder)
        ours, theirs = socket.socketpair()
        name, command, is_private = self._ways[0]
        self.way = name
        descriptor = str(theirs.fileno())
        scratch = environment(is_private=is_private, scratch=self._scratch)["HOME"]
        privacy = "private" if is_private else "shared"
        python = os.path.realpath(sys.executable)
        module = [python, "-m", "mha_course.grader.zygote", descriptor, scratch, privacy]
        with theirs:
            self._process = subprocess.Popen(
                command(module, self._scratch),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=environment(is_private=is_private, scratch=self._scratch),
                start_new_session=True,
            )
        self._control = ours
        self._is_ready = False

    def _wait_until_ready(self) -> None:
        while not self._is_ready:
            if self._process is None:
                self._launch()
            if self._hear(START_SECONDS) is not None:
                self._is_ready = True
                self._ways = self._ways[:1]  # what was said of it must hold for every later start too
                return
            self._stop()
            if len(self._ways) == 1:
                raise SandboxError(f"PyTorch could not be started apart: {self._last_words()}")
            self._ways.pop(0)

    def _order(self, order: Mapping[str, Any], passed: socket.socket | None = None) -> dict[str, Any] | None:
        if self._control is None:
            return None
        descriptors = [] if passed is None else [passed.fileno()]
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError:
            return None
        return self._hear(ORDER_SECONDS)

    def _hear(self, seconds: float) -> dict[str, Any] | None:
        """Wait for the zygote's answer; None if it is gone or says nothing that makes sense."""
        assert self._control is not None
        try:
            if not select.select([self._control], [], [], seconds)[0]:
                return None
            answer = json.loads(self._control.recv(4096))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def _stop(self) -> None:
        """End the zygote, and by that all that it started."""
        if self._control is not None:
            self._control.close()  # the sign for it to clear up and go
        if self._process is not None:
            try:
                self._process.wait(ORDER_SECONDS / 2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._control = None
        self._is_ready = False

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

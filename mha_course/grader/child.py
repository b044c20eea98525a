"""Talk to one process in which learner code runs, and trust nothing of what it says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from mha_course.grader.channel import Channel, Garbled
from mha_course.grader.verdicts import Crashed, TimedOut
from mha_course.grader.wire import WireError, decode, encode


@runtime_checkable
class Watcher(Protocol):
    """Who started a child, and can end it and tell how it ended."""

    def end_child(self) -> object:
        """End the child with all that it started."""

    def ending(self) -> Crashed | TimedOut:
        """Find out how the child ended that hung up."""


class Child:
    """A process in which one answer runs; the checker owns its clock."""

    def __init__(self, watcher: Watcher, channel: Channel, seconds: float) -> None:
        self._watcher = watcher
        self._channel = channel
        self._deadline = time.monotonic() + seconds
        self.loaded: dict[str, Any] = {}  # the reply to the program: see `loader.load`

    def request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and wait for the reply.

        Args:
            message: a plain value.

        Returns:
            The reply, a dict, with whatever learner code put into it.

        Raises:
            TimedOut: if all the child's time, for loading and for every request, is used up.
            Crashed: if the child ended, or sent something else.
        """
        try:
            self._channel.send(encode(dict(message)), self._deadline)
            reply = decode(self._channel.receive(self._deadline))
        except TimeoutError:
            self._watcher.end_child()
            raise TimedOut from None
        except ConnectionError:
            raise self._watcher.ending() from None
        except (Garbled, WireError):
            reply = None
        if type(reply) is not dict:
            self._watcher.end_child()
            raise Crashed("sent something that is not a plain value")
        return reply

    def close(self) -> None:
        """Let the child go; whatever of it stays is ended before the next one starts."""
        self._channel.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

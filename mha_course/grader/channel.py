"""Send whole messages over a socket, each with its length before it, within a deadline."""

from __future__ import annotations

import socket
import struct
import time

MESSAGE_LIMIT = 64 * 2**20  # bytes

_LENGTH = struct.Struct(">I")


class Garbled(Exception):
    """What came can't be the beginning of a message."""


class Channel:
    """One end of a connection; the other end may be in the hands of learner code, and so may say anything."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: bytes, deadline: float | None = None) -> None:
        """Send a message.

        Args:
            message: at most MESSAGE_LIMIT bytes.
            deadline: when to give up, on the clock of `time.monotonic`; None waits for ever.

        Raises:
            TimeoutError: if the other end does not read it in time.
            ConnectionError: if there is no other end.
        """
        self._limit_to(deadline)
        self.connection.sendall(_LENGTH.pack(len(message)))
        self.connection.sendall(message)

    def receive(self, deadline: float | None = None) -> bytes:
        """Wait for a message.

        Args:
            deadline: as in `send`.

        Raises:
            TimeoutError: if it is not here in time.
            Garbled: if it claims to be longer than MESSAGE_LIMIT.
            ConnectionError: if there is no other end any more.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MESSAGE_LIMIT:
            raise Garbled
        return self._read(length, deadline)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def _read(self, length: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._limit_to(deadline)
            piece = self.connection.recv(min(length - len(data), 2**20))
            if not piece:
                raise ConnectionResetError("the other end hung up")
            data += piece
        return bytes(data)

    def _limit_to(self, deadline: float | None) -> None:
        if deadline is None:
            self.connection.settimeout(None)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)

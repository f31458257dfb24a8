"""The lines that a compile child writes to its pipe.

The child reads a stranger's model and may say anything: the worker keeps one piece of it in memory, waits to read more
until its lines are dealt with, and takes no more in all than `MOST_BYTES`.
"""

from __future__ import annotations

import os
import select
from typing import BinaryIO

LINE_BYTES = 1 << 16
"""A longer line comes in parts."""
LINE_COST_BYTES = 100
"""Bytes that a line counts for beside its own, since each takes the worker some time."""
MOST_BYTES = 8 << 20
"""Bytes of one compile, at most; one that goes well says a few hundred thousand at most."""


class SaysTooMuch(Exception):
    """The child has said more than `MOST_BYTES`."""


class ChildLines:
    """Reads the lines of one child."""

    def __init__(self, stream: BinaryIO) -> None:
        self._descriptor = stream.fileno()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN | select.POLLHUP)
        self._unread = bytearray()
        self._count = 0

    def take(self, wait_s: float) -> bytes | None:
        """Returns the next line; b"" if none is whole within `wait_s` seconds, None once there will be no more.

        Raises: SaysTooMuch.
        """
        line = self._cut()
        if line or not self._poll.poll(wait_s * 1e3):
            return line
        piece = os.read(self._descriptor, LINE_BYTES)
        self._unread += piece
        self._count += len(piece) + LINE_COST_BYTES * piece.count(b"\n")
        if self._count > MOST_BYTES:
            raise SaysTooMuch
        return self._cut() if piece else None

    def _cut(self) -> bytes:
        end = self._unread.find(b"\n", 0, LINE_BYTES) + 1 or LINE_BYTES
        if len(self._unread) < end:
            return b""
        line = bytes(self._unread[:end])
        del self._unread[:end]
        return line

"""The one way in which tests wait: for what must come about, with a limit that only a hang reaches."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HANG_S = 180.0
"""No machine is so slow: whatever takes longer hangs."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.002, 0.05
"""Between two looks."""


def until(
    holds: Callable[[], object],
    what: str | Callable[[], str] = "it did not come about",
    *,
    most_pause_s: float = MOST_PAUSE_S,
) -> None:
    """Look often until the condition holds. Raises: `AssertionError` with `what` after `HANG_S`."""
    for pause_s in _pauses_s(what, most_pause_s):
        if holds():
            return
        time.sleep(pause_s)


async def until_async(holds: Callable[[], object], what: str | Callable[[], str] = "it did not come about") -> None:
    """The same in an event loop, which goes on meanwhile."""
    for pause_s in _pauses_s(what, MOST_PAUSE_S):
        if holds():
            return
        await asyncio.sleep(pause_s)


def _pauses_s(what: str | Callable[[], str], most_s: float) -> Iterator[float]:
    """Short ones first."""
    hangs_at, pause_s = time.monotonic() + HANG_S, FIRST_PAUSE_S
    while time.monotonic() < hangs_at:
        yield pause_s
        pause_s = min(most_s, pause_s * 1.5)
    raise AssertionError(what if isinstance(what, str) else what())


class HeldPipe:
    """A named pipe that processes open, write to, and hold while they live: its end says that none of them is left."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        path.chmod(0o666)
        self._was_held = False
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def until_held(self) -> None:
        """Until a process has written to it."""
        until(lambda: self._is_open() and self._was_held, "no process has written to the pipe")

    def until_let_go(self) -> None:
        """Until every process that held it has ended."""
        until(lambda: not self._is_open(), "a process that should have ended lives")
        assert self._was_held, "no process has held the pipe"

    def _is_open(self) -> bool:
        """Whether a process holds it."""
        try:
            while data := os.read(self._reader, 1 << 16):
                self._was_held = self._was_held or bool(data)
        except BlockingIOError:
            return True
        return False

"""Signs of life for whoever keeps a process up: a file that is touched, and systemd's watchdog (`WatchdogSec=`).

The file is for a supervisor on the same machine, which needs no clock to see that it was touched since its last look.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from device_agents.wire.service_manager import tell_manager

BEAT_S = 2.0
POOL_STUCK_S = 75.0
"""No thread of the pool has become free for so long: longer than the database's own time-outs (engine.py), which free
the threads of requests that wait for it."""


def give_sign(path: Path | None) -> None:
    """This process lives and does its work."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
    tell_manager(b"WATCHDOG=1")


@dataclass
class Pulse:
    """The API process's own: its event loop turns, a thread becomes free now and then, the sweeper gets on."""

    path: Path | None
    is_well: Callable[[], bool]
    """Further condition that must hold."""
    answered_at: float = field(default_factory=time.monotonic)
    """When the thread pool last did something for us. It is first come, first served: many requests only delay it."""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        tell_manager(b"READY=1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_pool)
            while True:
                if self.is_well() and time.monotonic() - self.answered_at < POOL_STUCK_S:
                    give_sign(self.path)
                await anyio.sleep(BEAT_S)

    async def _ask_pool(self) -> None:
        while True:
            self.answered_at = await self._through_pool()
            await anyio.sleep(BEAT_S)

    def _through_pool(self) -> Awaitable[float]:
        return run_in_threadpool(time.monotonic)

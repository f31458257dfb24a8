"""Logs that the farm cannot be reached, or asks to wait: at once, then ever more rarely; and that it answers again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from device_agents.errors import Busy, FarmError

log = logging.getLogger("device_agents")
FIRST_PAUSE_S, MOST_PAUSE_S = 60.0, 3600.0


class Trouble:
    """The connection to one farm, as the log reports it. `clock` is monotonic."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._since_s: float | None = None
        self._next_s, self._pause_s = 0.0, FIRST_PAUSE_S

    def begin(self, problem: FarmError) -> None:
        """Reports that a call has failed and will be tried again."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s, self._next_s, self._pause_s = now_s, now_s, FIRST_PAUSE_S
        if now_s < self._next_s:
            return
        board = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        lasts_s = now_s - self._since_s
        so_far = f" (for {format_duration(lasts_s)})" if lasts_s >= 1 else ""
        what = "the farm at %s asks to wait%s" if isinstance(problem, Busy) else "cannot reach the farm at %s%s"
        log.warning(
            f"{what}: %s. Trying again. This board's clock says %s", self._server, so_far, problem.reason, board
        )
        self._next_s, self._pause_s = now_s + self._pause_s, min(MOST_PAUSE_S, 2 * self._pause_s)

    def end(self) -> None:
        """Reports that a call has succeeded."""
        if self._since_s is not None:
            log.info(
                "the farm at %s answers again, after %s", self._server, format_duration(self._clock() - self._since_s)
            )
            self._since_s = None


def format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"

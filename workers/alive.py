"""The worker's sign of life: from a thread, as long as the event loop turns, or cannot because the broker is away.

Celery's event loop stands still while it waits for a broker that does not answer, and while it connects again. The
worker is not hung then, and what it compiles goes on: to restart it would only kill that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.operations.alive import BEAT_S, give_sign

STALE_S = 6.0
"""The loop ticks every two seconds; a tick this old needs an excuse."""
CONNECTING_S = 45.0
"""Seconds that the loop may need to come back once the broker answers again: Celery's longest pause, and some more."""


@dataclass
class LoopWatch:
    """Whether the event loop is as it should be."""

    broker_answers: Callable[[], bool]
    """Quick, and asked only while the loop stands still."""
    ticked_at: float = field(default_factory=lambda: time.monotonic())
    asked_at: float = field(default_factory=lambda: time.monotonic())
    """When the thread was last done with asking."""
    excused_until: float = 0.0

    def tick(self) -> None:
        """Notes that the loop turns."""
        self.ticked_at = time.monotonic()

    def is_well(self) -> bool:
        """Returns whether the loop is well; the thread asks every `BEAT_S`."""
        now = time.monotonic()
        self._forgive(now, late_s=max(0.0, now - self.asked_at - BEAT_S))
        is_well = now - self.ticked_at < STALE_S or self._is_excused(now)
        self.asked_at = time.monotonic()
        return is_well

    def _forgive(self, now: float, *, late_s: float) -> None:
        """Excuses the time for which the thread woke late: its whole process was stopped (SIGSTOP), so the loop could
        not turn either.
        """
        self.ticked_at = min(now, self.ticked_at + late_s)
        self.excused_until += late_s

    def _is_excused(self, now: float) -> bool:
        if not self.broker_answers():
            self.excused_until = now + CONNECTING_S
        return now < self.excused_until


def begin(path: Path, watch: LoopWatch) -> threading.Event:
    """Gives signs of life in a thread until the returned event is set."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(BEAT_S):
            if watch.is_well():
                give_sign(path)

    give_sign(path)
    threading.Thread(target=beat, name="sign of life", daemon=True).start()
    return stopped

"""Findings of a run of mode sustained so far: windows of step times, each worked out as it ends."""

from __future__ import annotations

import statistics
from array import array
from dataclasses import dataclass, field

from device_agents.measure.measurement import percentile
from device_agents.wire import ProtocolError, Sustained, SustainedEnd, SustainedWindow
from device_agents.wire.sustained_report import MOST_WINDOW_STEPS

P90 = 0.90


@dataclass
class SustainedFindings:
    """Filled step by step; good after a failure too. Only the steps of the window at hand are kept one by one."""

    batch: int
    count: int
    """Number of windows."""
    window_s: float
    threads: int = 0
    began_at: float = 0.0
    windows: list[SustainedWindow] = field(default_factory=list)
    ended: SustainedEnd = "cut"
    _us: array[float] = field(default_factory=lambda: array("d"))

    @property
    def lasts_s(self) -> float:
        """Returns the seconds of all windows together."""
        return self.count * self.window_s

    @property
    def steps(self) -> int:
        """Returns the number of steps of whole windows."""
        return sum(window.steps for window in self.windows)

    def take(self, us: float, at_s: float) -> None:
        """A step that was heard of so many seconds after the first one began. Raises: `ProtocolError`."""
        self.pass_to(at_s)
        if len(self.windows) == self.count:
            return
        if len(self._us) >= MOST_WINDOW_STEPS:
            message = f"more than {MOST_WINDOW_STEPS:,} steps in {self.window_s:,.3g} s"
            raise ProtocolError("step", message)
        self._us.append(us)

    def pass_to(self, at_s: float) -> None:
        """The windows that are over by then."""
        while len(self.windows) < self.count and at_s >= (len(self.windows) + 1) * self.window_s:
            self.windows.append(_window(self._us))
            self._us = array("d")

    def report(self) -> Sustained | None:
        """Whole windows only; None before the first step that one of them holds."""
        if not self.steps:
            return None
        return Sustained(
            self.window_s, tuple(self.windows), self.steps, self.batch, self.threads, self.began_at, self.ended
        )


def _window(step_us: array[float]) -> SustainedWindow:
    if not step_us:
        return SustainedWindow(0)
    ordered = sorted(step_us)
    return SustainedWindow(len(ordered), statistics.median(ordered), percentile(ordered, P90))

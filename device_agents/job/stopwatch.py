"""The binary's stop-watch beside ours."""

from __future__ import annotations

import time

from device_agents.errors import AttemptError
from device_agents.job.step import Ending
from device_agents.wire import ProtocolError

CLOCK_SLACK = 1.05
CLOCK_SLACK_US = 10_000.0
"""The binary's stop-watch and ours differ by no more: its steps cannot take longer than its process has run."""


def check_passed(us: float, started_s: float) -> None:
    """Checks that so much time has passed since the process was started. Raises: `ProtocolError`."""
    passed_us = (time.monotonic() - started_s) * 1e6
    if us > passed_us * CLOCK_SLACK + CLOCK_SLACK_US:
        raise ProtocolError(
            "step.us", f"steps of {us:,.0f} us together, in a process that has run for {passed_us:,.0f}"
        )


class StepTimes:
    """Times of the steps of one process, as it tells them: no more than it was asked for, and no more than passed."""

    def __init__(self, step_count: int) -> None:
        self.us: list[float] = []
        self._most_steps = step_count
        self._started_s = time.monotonic()
        self._sum_us = 0.0

    def take(self, us: float) -> None:
        """Adds the time of one more step. Raises: `ProtocolError`."""
        if len(self.us) >= self._most_steps:
            raise ProtocolError("step", f"more than the {self._most_steps:,} steps that were asked for")
        self._sum_us += us
        check_passed(self._sum_us, self._started_s)
        self.us.append(us)

    def check_whole(self) -> None:
        """Checks that a process which reports its end has made all its steps. Raises: `AttemptError`."""
        if len(self.us) < self._most_steps:
            message = f"the binary said that it is done after {len(self.us):,} of {self._most_steps:,} steps"
            raise AttemptError("step.incomplete", message, cause="compiler")


def load_us(ending: Ending | None) -> float | None:
    """Returns the time from the start of the process to its `start` event; None if one of them is not known."""
    if ending is None or ending.launched_s is None or ending.started_s is None:
        return None
    return max(0.0, (ending.started_s - ending.launched_s) * 1e6)

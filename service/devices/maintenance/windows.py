"""Maintenance windows as values: when a window comes next. No database here.

Weekly windows repeat every 7 x 24 hours in UTC, so where clocks change for summer they move by an hour of local time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WEEK_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a maintenance window: from `starts_at` to `ends_at`, repeated if there is an `every_s`."""

    starts_at: float
    ends_at: float
    every_s: float | None = None

    def next_after(self, now: float) -> tuple[float, float] | None:
        """Returns (start, end) of the time that goes on at `now`, else of the next one; None if none follows."""
        if now < self.ends_at:
            return self.starts_at, self.ends_at
        if self.every_s is None:
            return None
        passed = math.floor((now - self.ends_at) / self.every_s) + 1
        return self.starts_at + passed * self.every_s, self.ends_at + passed * self.every_s


def first_touched(windows: Iterable[Times], now: float, until: float) -> tuple[float, float, Times] | None:
    """Returns the first window that work from `now` to `until` would reach into, with its start and end."""
    coming = ((window.next_after(now), window) for window in windows)
    touched = [(times[0], times[1], window) for times, window in coming if times is not None and times[0] < until]
    return min(touched, key=lambda span: span[:2], default=None)

"""Whether this board's clock agrees with the farm's, by the `Date` of its answers; the log says when that changes."""

from __future__ import annotations

import logging
import time
from email.utils import parsedate_to_datetime

from device_agents.farm.trust import CLOCK_TOLERANCE_S

log = logging.getLogger("device_agents")


class ClockWatch:
    """Compares with each answer of the farm."""

    def __init__(self) -> None:
        self.off_s = 0.0
        """How far our clock is ahead, at the last answer; zero while it is within the tolerance."""

    def compare(self, date: str | None) -> None:
        """Take the `Date` header of an answer that has just come."""
        farm_s = seconds_of(date)
        if farm_s is None:
            return
        off_s, was_s = time.time() - farm_s, self.off_s
        self.off_s = off_s if abs(off_s) > CLOCK_TOLERANCE_S else 0.0
        if self.off_s and abs(self.off_s - was_s) > CLOCK_TOLERANCE_S:
            side = "ahead of" if off_s > 0 else "behind"
            log.warning(
                "this board's clock is %.0f s %s the farm's: no assignment is valid here until it is set (NTP)",
                abs(off_s),
                side,
            )
        elif was_s and not self.off_s:
            log.info("this board's clock agrees with the farm's again")


def seconds_of(date: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date; None if it is none."""
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None

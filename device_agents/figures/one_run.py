"""Statistics of a single run: the median of its blocks' medians, and an interval around it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from device_agents.figures.intervals import Interval, around_median

LEAST_BLOCKS = 5
"""Below it a run has no interval and no rank. A block is one process."""
CONFIDENCE = 0.95


def run_interval(block_us: Sequence[float]) -> Interval | None:
    """Returns the interval of the median of the blocks' medians, in microseconds: where this run's own noise leaves its
    middle. Another run of the same may well lie outside. None below `LEAST_BLOCKS`.
    """
    if len(block_us) < LEAST_BLOCKS:
        return None
    log_interval = around_median([math.log(us) for us in block_us], CONFIDENCE)
    return log_interval and Interval(math.exp(log_interval.low), math.exp(log_interval.high))

"""What one run says of itself: the median of its blocks' medians, and an interval around it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from device_agents.figures.intervals import Interval, around_median

LEAST_BLOCKS = 5
"""Below it a run has no interval and no rank. A block is one process."""
CONFIDENCE = 0.95


def run_interval(block_us: Sequence[float]) -> Interval | None:
    """Of the median of the blocks' medians, in microseconds: where this run's own noise leaves its middle. Another run
    of the same may well lie outside. None below `LEAST_BLOCKS`."""
    if len(block_us) < LEAST_BLOCKS:
        return None
    found = around_median([math.log(us) for us in block_us], CONFIDENCE)
    return found and Interval(math.exp(found.low), math.exp(found.high))

"""Where the times of one thing, measured again and again on one device, changed for good.

A device makes the same run every day. Its times move by its own noise, which they show themselves; a change is where
two means, before and after, stand further apart than that noise lets them, however often one looks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.figures.intervals import Interval, squares_about_mean, student

LEAST_BEFORE, LEAST_AFTER = 8, 5
"""Runs on each side: fewer before do not show the noise, fewer after may be a bad day."""
MOST_BEFORE, MOST_AFTER = 60, 30
"""Older ones are of another time; what thirty runs did not show is too small to be told of."""
CONFIDENCE = 0.999999
"""Of one look at one place. A history of a year has hundreds of looks at dozens of places each."""
LEAST_RANKED = 0.95
"""The share of pairs, one run before and one after, that must lie the same way: a few wild runs move a mean alone."""
MOST_LINGERING = 0.9
"""Of a run's distance from the mean, in the next run: beyond it nothing could be told."""
LEAST_DEVIATION = 1e-3
"""Of the logarithm of a run's time: no device repeats itself better for ever."""
SHOWN = 0.95
"""Confidence of the interval that is shown beside a change."""


@dataclass(frozen=True)
class Change:
    """From one run to the next."""

    at: int
    """How many runs came before it."""
    ratio: float
    """Of the time after it to the time before."""
    interval: Interval
    deviation: float
    """Of one run's time from the middle, relative: the device's noise."""

    @property
    def is_slower(self) -> bool:
        return self.ratio > 1.0


def change_in(run_us: Sequence[float]) -> Change | None:
    """The clearest change among runs in order, none of which lies before an older change; None if none is clear.

    Units: microseconds, each above 0. Cost: that of `MOST_AFTER` looks at 90 runs, however many there are.
    """
    logs = [math.log(us) for us in run_us]
    first = max(LEAST_BEFORE, len(logs) - MOST_AFTER)
    logs, offset = logs[max(0, first - MOST_BEFORE) :], max(0, first - MOST_BEFORE)
    places = range(first - offset, len(logs))
    # Where it is, squares tell best; whether it is one, only enough runs after it.
    place = min(places, key=lambda at: squares_about_mean(logs[:at]) + squares_about_mean(logs[at:]), default=len(logs))
    if len(logs) - place < LEAST_AFTER:
        return None
    found = _at(logs, place)
    if not found.is_clear:
        return None
    half = student(SHOWN, found.freedom) * found.error
    interval = Interval(math.exp(found.shift - half), math.exp(found.shift + half))
    return Change(offset + place, math.exp(found.shift), interval, found.deviation)


@dataclass(frozen=True)
class _Place:
    shift: float
    """Of the mean logarithm."""
    deviation: float
    error: float
    freedom: int
    ranked: float
    """The share of pairs that lie the way the means do."""

    @property
    def is_clear(self) -> bool:
        """Too far to be chance, and further than one run lies from the next anyway."""
        return (
            abs(self.shift) > max(self.deviation, student(CONFIDENCE, self.freedom) * self.error)
            and self.ranked >= LEAST_RANKED
        )


def _at(logs: Sequence[float], place: int) -> _Place:
    before, after = logs[:place], logs[place:]
    freedom = len(logs) - 2
    squares = squares_about_mean(before) + squares_about_mean(after)
    deviation = max(LEAST_DEVIATION, math.sqrt(squares / freedom))
    lingering = _lingering(before, after, squares)
    widened = math.sqrt((1 + lingering) / (1 - lingering))
    error = widened * deviation * math.sqrt(1 / len(before) + 1 / len(after))
    shift = statistics.fmean(after) - statistics.fmean(before)
    sign = math.copysign(1.0, shift)
    ranked = sum(sign * late > sign * early for late in after for early in before) / (len(before) * len(after))
    return _Place(shift, deviation, error, freedom, ranked)


def _lingering(before: Sequence[float], after: Sequence[float], squares: float) -> float:
    """The correlation of a run with the next one: what lasts for days makes few runs look like many."""
    if squares <= 0:
        return 0.0
    products = 0.0
    for values in (before, after):
        middle = statistics.fmean(values)
        products += math.fsum((early - middle) * (late - middle) for early, late in zip(values, values[1:]))
    return min(MOST_LINGERING, max(0.0, products / squares))

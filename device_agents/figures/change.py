"""Lasting changes in the times of one thing, measured again and again on one device.

A device makes the same run every day. Its times move by its own noise, which they show themselves; a change is where
two means, before and after, stand further apart than that noise lets them, however often one looks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.figures.digits import faster_or_slower
from device_agents.figures.intervals import Interval, squares_about_mean, student
from device_agents.figures.separate_runs import UNKNOWN, Variation

LEAST_EACH = 5
"""Runs on each side: fewer may be a few bad days."""
LEAST_FREEDOM = 11
"""Runs beyond the first of each stretch: fewer do not show the noise."""
MOST_BEFORE, MOST_AFTER = 60, 30
"""Older ones are of another time; what thirty runs did not show is too small to be told of."""
CONFIDENCE = 0.999999
"""Confidence of one look at one place. A history of a year has hundreds of looks at dozens of places each."""
LEAST_RANKED = 0.95
"""The share of pairs, one run before and one after, that must lie the same way: a few wild runs move a mean alone."""
LEAST_LINGERING, MOST_LINGERING = 0.2, 0.9
"""Share of a run's distance from the mean that lingers in the next run: days are alike, which few runs do not show."""
LEAST_DEVIATION = 1e-3
"""The least deviation of the logarithm of a run's time: no device repeats itself better for ever."""
SUSPECT = 3.0
"""Deviations from the mean before: so far off lies one run of hundreds by chance."""
SHOWN = 0.95
"""Confidence of the interval that is shown beside a change."""


@dataclass(frozen=True)
class Change:
    """A lasting change from one run to the next."""

    at: int
    """The number of runs before it."""
    ratio: float
    """Ratio of the time after the change to the time before."""
    interval: Interval
    deviation: float
    """Deviation of one run's time from the middle, relative: the device's noise."""

    @property
    def is_slower(self) -> bool:
        return self.ratio > 1.0

    @property
    def words(self) -> str:
        """`1.052x slower (1.046 to 1.058x)`."""
        return faster_or_slower(self.ratio, self.interval)


def change_in(run_us: Sequence[float], noise: Variation = UNKNOWN) -> Change | None:
    """The likeliest change among runs in order, none of which lies before an older change; None if none is clear.

    `noise`: the device's noise, as the stretches before older changes show it.

    Units: microseconds, each above 0. Cost: that of `MOST_AFTER` looks at 90 runs, however many there are.
    """
    logs, offset, place = _likeliest(run_us)
    if len(logs) - place < LEAST_EACH:
        return None
    split = _at(logs, place, noise)
    if split.freedom < LEAST_FREEDOM or not split.is_clear:
        return None
    half = student(SHOWN, split.freedom) * split.error
    interval = Interval(math.exp(split.shift - half), math.exp(split.shift + half))
    return Change(offset + place, math.exp(split.shift), interval, split.deviation)


def may_have_changed(run_us: Sequence[float], noise: Variation = UNKNOWN) -> bool:
    """Whether the newest runs, fewer than show a change, lie so far off that more of them should be made soon."""
    logs, _, place = _likeliest(run_us)
    if not 0 < len(logs) - place < LEAST_EACH:
        return False
    split = _at(logs, place, noise)
    return split.freedom >= LEAST_EACH and abs(split.shift) > SUSPECT * split.deviation


def _likeliest(run_us: Sequence[float]) -> tuple[Sequence[float], int, int]:
    """The logarithms of the runs that count, how many older ones do not, and before which of those that count two means
    leave the least squares. That is where a change is, if there is one; at their end, if there are too few."""
    first = max(LEAST_EACH, len(run_us) - MOST_AFTER)
    offset = max(0, first - MOST_BEFORE)
    logs = [math.log(us) for us in run_us[offset:]]
    places = range(first - offset, len(logs))
    place = min(places, key=lambda at: squares_about_mean(logs[:at]) + squares_about_mean(logs[at:]), default=len(logs))
    return logs, offset, place


@dataclass(frozen=True)
class _Place:
    shift: float
    """The shift of the mean logarithm."""
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


def _at(logs: Sequence[float], place: int, noise: Variation) -> _Place:
    before, after = logs[:place], logs[place:]
    squares = squares_about_mean(before) + squares_about_mean(after)
    freedom = len(logs) - 2 + noise.freedom
    deviation = max(LEAST_DEVIATION, math.sqrt((squares + noise.freedom * noise.deviation**2) / freedom))
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
        return LEAST_LINGERING
    products = 0.0
    for values in (before, after):
        middle = statistics.fmean(values)
        products += math.fsum((early - middle) * (late - middle) for early, late in zip(values, values[1:]))
    return min(MOST_LINGERING, max(LEAST_LINGERING, products / squares))

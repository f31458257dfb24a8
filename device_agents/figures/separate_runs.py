"""Comparison of two runs that were not made together: at most it says that they are likely different.

Between two runs of one and the same bundle a device's times move by more than they do within a run: pages lie
elsewhere, it is warmer, something else runs. How much, the runs show that it has made again and again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from device_agents.figures.digits import TIMES, faster_or_slower, ratio_span
from device_agents.figures.intervals import Interval, error_of_median, squares_about_mean, student
from device_agents.figures.one_run import LEAST_BLOCKS

LEAST_FREEDOM = 5
"""Repetitions beyond the first of each kind: fewer do not show how much a device varies."""
CONFIDENCE = 0.995
"""Confidence of an interval on the ratio of two runs."""


@dataclass(frozen=True)
class Variation:
    """The variation of the logarithm of a run's time from one run of the same to the next on one device."""

    deviation: float
    freedom: int

    @property
    def is_known(self) -> bool:
        return self.freedom >= LEAST_FREEDOM


UNKNOWN = Variation(0.0, 0)


def together(first: Variation, other: Variation) -> Variation:
    """Returns the variation from everything that both were learned from."""
    freedom = first.freedom + other.freedom
    squares = first.freedom * first.deviation**2 + other.freedom * other.deviation**2
    return Variation(math.sqrt(squares / freedom), freedom) if freedom else UNKNOWN


def variation_of(kinds: Iterable[Sequence[float]]) -> Variation:
    """Learned from medians of runs that were the same run again: those of one kind (bundle, settings) together."""
    squares, freedom = 0.0, 0
    for medians in kinds:
        logs = [math.log(us) for us in medians]
        if len(logs) > 1:
            squares += squares_about_mean(logs)
            freedom += len(logs) - 1
    return Variation(math.sqrt(squares / freedom) if freedom else 0.0, freedom)


@dataclass(frozen=True)
class Run:
    """The known facts of a run: its blocks' medians in microseconds, and how its device varies."""

    block_us: Sequence[float]
    variation: Variation


@dataclass(frozen=True)
class Standing:
    """The place of the logarithm of a run's time, and how sure it is: what any rule of two or more runs goes by."""

    middle: float
    variance: float
    """Its device's, from run to run, and what its own blocks vary by on top of that."""
    freedom: int


def standing(run: Run) -> Standing | None:
    """Returns the standing of a run; None where nothing is known of it (`silence`)."""
    if silence(run):
        return None
    variance = run.variation.deviation**2 + error_of_median([math.log(us) for us in run.block_us]) ** 2
    return Standing(math.log(statistics.median(run.block_us)), variance, run.variation.freedom)


def half_width(first: Standing, other: Standing, confidence: float = CONFIDENCE) -> float:
    """Returns the half width of the interval on the difference of two logarithms: if they are further apart, they are
    likely different.
    """
    return student(confidence, min(first.freedom, other.freedom)) * math.sqrt(first.variance + other.variance)


def ratio_interval(base: Run, other: Run) -> Interval | None:
    """Returns the interval of the ratio of the time of `other` to that of `base`. None where nothing can be said of
    them (`silence`).
    """
    first, second = standing(base), standing(other)
    if first is None or second is None:
        return None
    middle, half = second.middle - first.middle, half_width(first, second)
    return Interval(math.exp(middle - half), math.exp(middle + half))


@dataclass(frozen=True)
class Difference:
    """The ratio of one run's time to another's that was not made together with it."""

    ratio: float
    interval: Interval | None
    """The interval of the ratio, with the devices' own variation in it. None where nothing can be said."""

    @property
    def is_likely(self) -> bool:
        """Whether the two are likely different."""
        return self.interval is not None and not self.interval.has(1.0)

    @property
    def words(self) -> str:
        """`likely 1.84x faster (1.70 to 2.00x)`, `cannot tell`."""
        return ratio_text(self.ratio, self.interval)


def difference(base: Run, other: Run) -> Difference:
    """Returns the difference of `other` from `base`; each has one block at least."""
    middle = statistics.median(other.block_us) / statistics.median(base.block_us)
    return Difference(middle, ratio_interval(base, other))


def silence(run: Run) -> str:
    """Why nothing can be said of the run beside others; empty if something can."""
    if len(run.block_us) < LEAST_BLOCKS:
        return f"measured in {len(run.block_us)} of the {LEAST_BLOCKS} blocks that an interval needs; profile it"
    if not run.variation.is_known:
        missing = LEAST_FREEDOM - run.variation.freedom
        return (
            f"how its device varies from run to run is not known; make one of its profile runs {missing}{TIMES} again"
        )
    return ""


def ratio_text(ratio: float, interval: Interval | None) -> str:
    """Describes a run beside another one: `likely 1.84x faster (1.70 to 2.00x)`, or `cannot tell`, with what is
    possible.
    """
    if interval is None:
        return "cannot tell"
    if interval.has(1.0):
        return f"cannot tell ({ratio_span(interval)})"
    return f"likely {faster_or_slower(ratio, interval)}"

"""Intervals of a middle value. Each is exact for the noise that its docstring names, with no random numbers drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

MEDIAN_COST = math.sqrt(math.pi / 2)
"""The ratio of the median's error to the mean's where errors are normal; elsewhere the median's is the smaller one, so
that an interval with this factor is too wide rather than too narrow.
"""


class Interval(NamedTuple):
    low: float
    high: float

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


def around_median(values: Sequence[float], confidence: float) -> Interval | None:
    """The middle of what the values are drawn from, each independently: Student's interval around their median, as wide
    as a median asks for. None for fewer than two values."""
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    middle, half = statistics.median(values), student(confidence, freedom) * error_of_median(values)
    return Interval(middle - half, middle + half)


def error_of_median(values: Sequence[float]) -> float:
    """The standard error of the median of at least two values, each drawn independently."""
    return MEDIAN_COST * math.sqrt(squares_about_mean(values) / (len(values) - 1) / len(values))


def squares_about_mean(values: Sequence[float]) -> float:
    middle = statistics.fmean(values)
    return math.fsum((value - middle) ** 2 for value in values)


def by_signed_ranks(values: Sequence[float], confidence: float) -> Interval | None:
    """The middle of what the values are drawn from, if each lies below it as probably as above, by equal amounts.

    Wilcoxon's signed-rank test turned round: nothing else is asked of the noise, not even that it is the same for all
    values, and a few wild ones hardly matter. None where so few values cannot give that confidence.
    Source: Hollander and Wolfe, Nonparametric Statistical Methods, 3.1 and 3.3.
    """
    left_out = ranks_left_out(len(values), confidence)
    if left_out is None:
        return None
    means = walsh(values)
    return Interval(means[left_out], means[-1 - left_out])


def walsh(values: Sequence[float]) -> list[float]:
    """The means of all pairs, each value with itself too, in order; their median is the Hodges-Lehmann estimate."""
    return sorted((first + other) / 2 for at, first in enumerate(values) for other in values[at:])


@cache
def ranks_left_out(count: int, confidence: float) -> int | None:
    """Returns how many means of pairs lie outside at each end: the most such that both ends together are improbable
    enough.
    """
    ways = [1]  # by sum of ranks: how many choices of signs have it
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    allowed, below = (1 - confidence) / 2 * 2**count, 0
    for total, number in enumerate(ways):
        below += number
        if below > allowed:
            return total - 1 if total else None
    return None


@cache
def student(confidence: float, freedom: int) -> float:
    """Returns how many standard errors to each side hold that share of Student's distribution."""
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
    return high


def _student_within(t: float, freedom: int) -> float:
    """The share of Student's distribution between -t and t. Source: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (number - 1) / number
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total

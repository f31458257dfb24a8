"""The ranks by time of several runs that were made apart: ranges, where noise leaves more than one."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.figures.intervals import student
from device_agents.figures.separate_runs import CONFIDENCE, Standing, half_width

FALSE_RANK = 0.05
"""The probability that chance alone puts any run of a ranking before another one that takes as long, at most: over all
pairs.
"""


@dataclass(frozen=True)
class Rank:
    """The possible ranks of a run: from `best`, 1 more than there are runs likely faster, to `worst`, as many as there
    are not likely slower.
    """

    best: int
    worst: int

    @property
    def words(self) -> str:
        """`1`, `2 to 4`."""
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


def ranks(standings: Sequence[Standing | None]) -> list[Rank | None]:
    """Returns the rank of each run among them all; None for those of which nothing can be said (`apart.silence`), which
    count nowhere.
    """
    indexed = [(standing, at) for at, standing in enumerate(standings) if standing is not None]
    indexed.sort(key=lambda pair: (pair[0].middle, pair[1]))
    ranked: list[Rank | None] = [None] * len(standings)
    for (_, at), rank in zip(indexed, _in_order([standing for standing, _ in indexed])):
        ranked[at] = rank
    return ranked


def confidence(count: int) -> float:
    """Returns the confidence of the interval on each ratio in a ranking of so many: that of two runs by themselves, or
    as much more as it takes to keep to `FALSE_RANK`, for many pairs give chance many tries.
    """
    pairs = count * (count - 1) // 2
    return max(CONFIDENCE, 1 - FALSE_RANK / pairs) if pairs else CONFIDENCE


def is_faster(first: Standing, other: Standing, count: int) -> bool:
    """Whether the first is likely faster than the second, in a ranking of so many."""
    return other.middle - first.middle > half_width(first, other, confidence(count))


def _in_order(standings: Sequence[Standing]) -> list[Rank]:
    """`standings`: by their middles. Only pairs whose distance leaves it open are looked at one by one."""
    if not standings:
        return []
    count, sure = len(standings), confidence(len(standings))
    middles, variances = [standing.middle for standing in standings], [standing.variance for standing in standings]
    freedoms = [standing.freedom for standing in standings]
    least, most = student(sure, max(freedoms)), student(sure, min(freedoms))
    faster, begins, worst = [0] * count, [0] * (count + 1), []
    for at, standing in enumerate(standings):
        near = standing.middle + least * math.sqrt(standing.variance + min(variances))
        far = standing.middle + most * math.sqrt(standing.variance + max(variances))
        start, end = bisect_right(middles, near, at + 1), bisect_right(middles, far, at + 1)
        open_ones = range(start, end)
        slower = [place for place in open_ones if is_faster(standing, standings[place], count)]
        for place in slower:
            faster[place] += 1
        begins[end] += 1  # it is faster than all from there on
        worst.append(count - len(slower) - (count - end))
    ranked, before = [], 0
    for at in range(count):
        before += begins[at]
        ranked.append(Rank(1 + before + faster[at], worst[at]))
    return ranked

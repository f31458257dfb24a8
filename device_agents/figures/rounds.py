"""How much longer one step takes than another, from processes that took turns: the statistics of a compare job.

A round has two processes of each bundle, in an order that chance chooses, and then the same order backwards (A B B A,
or B A A B). Of a bundle's two the quicker counts: something else that ran meanwhile seldom slows both, and whatever
rises or falls over many rounds is the same for all bundles of one. Where two bundles are equal, chance alone decides
which of them stood where, so that the difference of a round is as probable with one sign as with the other, whatever
the noise: signed ranks over rounds give an interval that needs no model of it.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from device_agents.figures.intervals import Interval, by_signed_ranks, ranks_left_out, walsh
from device_agents.figures.warm_up import settled

LOOKS = (12, 18, 27, 40)
"""After so many rounds it is asked whether the comparison may end. The last of them ends it, or its time does."""
PILOT = 4
"""Rounds after which it is told what the comparison can find. They decide nothing by themselves."""
FALSE_ALARM = 0.004
"""How often equal bundles are called different, at most: shared out among looks, the end by the clock, and pairs."""
FOUND = 0.95
"""How often a difference of the detectable size is found."""
RANK_EFFICIENCY = 3 / math.pi
"""Of signed ranks beside means where noise is normal, and rounds are many."""
FEWEST, FEW_COST, FEW_COST_OF_EACH = 8, 1.9, 0.35
"""What few rounds cost on top of that, relative: so much over their number beyond the first. Fitted to the exact test
on normal noise, 12 to 40 rounds of 2 to 4 bundles; it errs towards the larger difference."""
QUICKER_COST = math.sqrt(2 * (1 - 1 / math.pi))
"""Deviation of a difference between the quicker ones of two and two, in those of one process with normal noise."""

Order = tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """What one round found. `order`: which bundle each process was of, by its place in the job's list."""

    order: Order
    median_us: tuple[float, ...]
    """Of the steps of each process, in that order."""


@dataclass(frozen=True)
class Ratio:
    """How the time of one bundle stands to the first one's."""

    bundle: int
    ratio: float
    interval: Interval | None
    """Null where the rounds are too few for any."""

    @property
    def differs(self) -> bool:
        return self.interval is not None and not self.interval.has(1.0)

    def is_within(self, effect: float) -> bool:
        """Whether no difference as large as that is left."""
        return self.interval is not None and 1 / (1 + effect) < self.interval.low and self.interval.high < 1 + effect


class Process(Protocol):
    """What a fresh process reported: of which bundle it was, and the times of all its steps."""

    @property
    def bundle(self) -> int: ...
    @property
    def step_us(self) -> Sequence[float]: ...


def rounds_of(processes: Iterable[Process], *, bundles: int, steps: int) -> tuple[Round, ...]:
    """The whole rounds in what processes reported, in the order in which they ran; `steps` of each count."""
    told = [(one.bundle, statistics.median(settled(one.step_us, steps))) for one in processes]
    width = 2 * bundles
    parts = [told[start : start + width] for start in range(0, len(told) - width + 1, width)]
    return tuple(Round(tuple(one for one, _ in part), tuple(us for _, us in part)) for part in parts)


def order_of(number: int, *, bundles: int, seed: int) -> Order:
    """Of the round with this number, from 0: anyone who knows the seed can check it."""
    there = random.Random(f"{seed}/{number}").sample(range(bundles), bundles)
    return (*there, *reversed(there))


def confidence(bundles: int) -> float:
    """Of each interval at each look, so that all together are wrong in no more than `FALSE_ALARM` of comparisons."""
    return 1 - FALSE_ALARM / (len(LOOKS) + 1) / (bundles - 1)


def ratios(rounds: Sequence[Round], *, bundles: int) -> tuple[Ratio, ...]:
    """Of each bundle but the first to the first, at a look or at the end."""
    return tuple(_ratio(rounds, bundle, confidence(bundles)) for bundle in range(1, bundles))


def _ratio(rounds: Sequence[Round], bundle: int, sure: float) -> Ratio:
    found = differences(rounds, bundle)
    interval = by_signed_ranks(found, sure)
    middle = math.exp(statistics.median(walsh(found)))
    return Ratio(bundle, middle, interval and Interval(math.exp(interval.low), math.exp(interval.high)))


def differences(rounds: Sequence[Round], bundle: int) -> list[float]:
    """Of each round: the logarithm of the quicker of the bundle's two times less that of the first bundle's."""
    return [_quicker(one, bundle) - _quicker(one, 0) for one in rounds]


def _quicker(one: Round, bundle: int) -> float:
    return min(math.log(us) for which, us in zip(one.order, one.median_us) if which == bundle)


def may_end(rounds: Sequence[Round], *, bundles: int, effect: float) -> bool:
    """Whether nothing is left to find out: each pair differs, or differs by less than the effect that is looked for."""
    if len(rounds) >= LOOKS[-1]:
        return True
    return len(rounds) in LOOKS and all(one.differs or one.is_within(effect) for one in ratios(rounds, bundles=bundles))


def deviation_of(rounds: Sequence[Round]) -> float:
    """Of the logarithm of a process's time, as the two of each bundle in a round show it: few rounds are enough."""
    squares = count = 0.0
    for one in rounds:
        for bundle in set(one.order):
            first, second = (math.log(us) for which, us in zip(one.order, one.median_us) if which == bundle)
            squares, count = squares + (second - first) ** 2 / 2, count + 1
    return math.sqrt(squares / count)


def detectable(deviation: float, rounds: int, *, bundles: int) -> float | None:
    """The relative difference that so many rounds find in `FOUND` of comparisons; `deviation` of a single process.

    None where so few rounds find nothing, however large it is.
    """
    sure, normal = confidence(bundles), NormalDist()
    outside = ranks_left_out(rounds, sure)
    if outside is None:
        return None
    errors = normal.inv_cdf((1 + sure) / 2) + normal.inv_cdf(FOUND)
    few = 1 + (FEW_COST + FEW_COST_OF_EACH * bundles) / (rounds - FEWEST)
    sizes = [few * errors / math.sqrt(rounds * RANK_EFFICIENCY)]
    if outside == 0:  # every round must have the same sign
        sizes.append(normal.inv_cdf(FOUND ** (1 / rounds)))
    return math.expm1(max(sizes) * QUICKER_COST * deviation)

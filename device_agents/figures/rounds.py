"""The statistics of a compare job: how much longer one step takes than another, from processes that took turns.

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
"""The numbers of rounds after which the comparison may end. The last of them ends it, or its time does."""
PILOT = 4
"""Rounds after which it is told what the comparison can find. They decide nothing by themselves."""
FALSE_ALARM = 0.004
"""The probability that equal bundles are called different, at most: shared out among looks, the end by the clock, and
pairs.
"""
FOUND = 0.95
"""The probability that a difference of the detectable size is seen."""
RANK_EFFICIENCY = 3 / math.pi
"""Efficiency of signed ranks relative to means where noise is normal, and rounds are many."""
FEWEST, FEW_COST, FEW_COST_OF_EACH = 8, 1.9, 0.35
"""Cost of few rounds on top of that, relative: so much over their number beyond the first. Fitted to the exact test on
normal noise, 12 to 40 rounds of 2 to 4 bundles; it errs towards the larger difference.
"""
QUICKER_COST = math.sqrt(2 * (1 - 1 / math.pi))
"""Deviation of a difference between the quicker ones of two and two, in those of one process with normal noise."""

Order = tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """The times of a round. `order`: the bundle of each process, by its place in the job's list."""

    order: Order
    median_us: tuple[float, ...]
    """The median time of the steps of each process, in that order."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of one bundle's time to the first one's."""

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
    """The report of a fresh process: its bundle, and the times of all its steps."""

    @property
    def bundle(self) -> int: ...
    @property
    def step_us(self) -> Sequence[float]: ...


def rounds_of(processes: Iterable[Process], *, bundles: int, steps: int) -> tuple[Round, ...]:
    """The whole rounds in what processes reported, in the order in which they ran; `steps` of each count."""
    medians = [(process.bundle, statistics.median(settled(process.step_us, steps))) for process in processes]
    width = 2 * bundles
    parts = [medians[start : start + width] for start in range(0, len(medians) - width + 1, width)]
    return tuple(Round(tuple(bundle_index for bundle_index, _ in part), tuple(us for _, us in part)) for part in parts)


def order_of(number: int, *, bundles: int, seed: int) -> Order:
    """Returns the order of the round with this number, from 0: anyone who knows the seed can check it."""
    there = random.Random(f"{seed}/{number}").sample(range(bundles), bundles)
    return (*there, *reversed(there))


def confidence(bundles: int) -> float:
    """Returns the confidence of each interval at each look, so that all together are wrong in no more than
    `FALSE_ALARM` of comparisons.
    """
    return 1 - FALSE_ALARM / (len(LOOKS) + 1) / (bundles - 1)


def ratios(rounds: Sequence[Round], *, bundles: int) -> tuple[Ratio, ...]:
    """Returns the ratio of each bundle but the first to the first, at a look or at the end."""
    return tuple(_ratio(rounds, bundle, confidence(bundles)) for bundle in range(1, bundles))


def _ratio(rounds: Sequence[Round], bundle: int, sure: float) -> Ratio:
    log_ratios = differences(rounds, bundle)
    interval = by_signed_ranks(log_ratios, sure)
    middle = math.exp(statistics.median(walsh(log_ratios)))
    return Ratio(bundle, middle, interval and Interval(math.exp(interval.low), math.exp(interval.high)))


def differences(rounds: Sequence[Round], bundle: int) -> list[float]:
    """Returns for each round the logarithm of the quicker of the bundle's two times, less that of the first one's."""
    return [_quicker(round_, bundle) - _quicker(round_, 0) for round_ in rounds]


def _quicker(round_: Round, bundle: int) -> float:
    return min(math.log(us) for which, us in zip(round_.order, round_.median_us) if which == bundle)


def may_end(rounds: Sequence[Round], *, bundles: int, effect: float) -> bool:
    """Whether nothing is left to find out: each pair differs, or differs by less than the effect that is looked for."""
    if len(rounds) >= LOOKS[-1]:
        return True
    return len(rounds) in LOOKS and all(
        ratio.differs or ratio.is_within(effect) for ratio in ratios(rounds, bundles=bundles)
    )


def deviation_of(rounds: Sequence[Round]) -> float:
    """Returns the deviation of the logarithm of a process's time, as the two of each bundle in a round show it: few
    rounds are enough.
    """
    squares = count = 0.0
    for round_ in rounds:
        for bundle in set(round_.order):
            first, second = (math.log(us) for which, us in zip(round_.order, round_.median_us) if which == bundle)
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

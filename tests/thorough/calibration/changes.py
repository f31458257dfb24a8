"""How often a change is told of a device's history that has none, and how often one that is there is found in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from device_agents.figures.change import LEAST_EACH, change_in
from device_agents.figures.separate_runs import UNKNOWN
from tests.thorough.calibration.noises import Slowness
from tests.thorough.calibration.rates import Promise, Rate

DEVIATION = 0.008
"""Of one canary from the next."""
YEAR, MONTH, WITHIN = 365, 30, 12
"""Canaries: of a history, before a change, and in which the change is to be found."""
History = Callable[[np.random.Generator, int], Slowness]


def independent(random: np.random.Generator, days: int) -> Slowness:
    """Each day by itself."""
    return DEVIATION * random.standard_normal(days)


def lingering(random: np.random.Generator, days: int) -> Slowness:
    """A day has three tenths of what the one before it had."""
    found = DEVIATION * random.standard_normal(days)
    for day in range(1, days):
        found[day] += 0.3 * found[day - 1]
    return found


def heavy_tails(random: np.random.Generator, days: int) -> Slowness:
    """A few days are far out."""
    return DEVIATION * random.standard_t(3, days)


def two_modes(random: np.random.Generator, days: int) -> Slowness:
    """A run is fast, or 3% slower, by where its pages lie."""
    return 0.3 * independent(random, days) + 0.03 * (random.random(days) < 0.5)


def bursts(random: np.random.Generator, days: int) -> Slowness:
    """One day a week something else is at work."""
    return independent(random, days) + np.where(random.random(days) < 1 / 7, random.exponential(0.05, days), 0.0)


CHOSEN_WITH: Mapping[str, History] = {"independent": independent, "lingering": lingering}
OTHERS: Mapping[str, History] = {"heavy tails": heavy_tails, "two modes": two_modes, "bursts": bursts}


def told_after(logs: Slowness) -> int | None:
    """After how many canaries a change is told for the first time; None: never."""
    times = [1000.0 * math.exp(log) for log in logs]
    looks = range(2 * LEAST_EACH, len(times) + 1)
    return next((count for count in looks if change_in(times[:count], UNKNOWN) is not None), None)


def nothing(noise: History, seed: int) -> bool:
    """Whether a change is told of a year without one."""
    return told_after(noise(np.random.default_rng(seed), YEAR)) is not None


def slower(noise: History, seed: int, by: float) -> bool:
    """Whether a device that is slower after a month is told to be so within a dozen canaries, and not before."""
    logs = noise(np.random.default_rng(seed), MONTH + WITHIN)
    logs[MONTH:] += math.log1p(by)
    found = told_after(logs)
    return found is not None and found > MONTH


def rates(trials: int, *, seed: int, noises: str) -> Iterator[Rate]:
    """Each as soon as it is known. Of `other` noises it is only promised that no change is made up."""
    least = 0.95 if noises == "chosen" else 0.0
    for name, noise in (CHOSEN_WITH if noises == "chosen" else OTHERS).items():
        made_up = Promise("change", 1.0, "history of a year, no change: one is told", most=0.02)
        yield Rate(made_up, name, sum(nothing(noise, seed + trial) for trial in range(trials)), trials)
        for by in (0.05, 0.03):
            found = Promise("change", 1 + by, f"{by:.0%} slower: told within {WITHIN} canaries", least=least)
            yield Rate(found, name, sum(slower(noise, seed + trial, by) for trial in range(trials)), trials)

"""Noise as machines make it, as the logarithm by which a process is slower than it could be.

Each kind is made anew for a *stretch*: so many processes one after another, with what happens to the machine meanwhile.
`CHOSEN_WITH` are those that the limits on what is found hold for; `OTHERS` were looked at less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Slowness = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Slowness]
"""`noise(random, processes)`: of each process of one stretch."""

PROCESS = 0.006
"""What each process has of its own in every kind: where its pages lie."""


def own(random: np.random.Generator, count: int) -> Slowness:
    return random.normal(0.0, PROCESS, count)


def independent(random: np.random.Generator, count: int) -> Slowness:
    """Nothing but each process's own."""
    return own(random, count)


def autoregressive(random: np.random.Generator, count: int) -> Slowness:
    """A neighbour's load that lingers: each process has nine tenths of what the one before it had."""
    found, now = np.empty(count), random.normal(0.0, 0.014)
    for at in range(count):
        now = 0.9 * now + random.normal(0.0, 0.006)
        found[at] = now
    return own(random, count) + found


def shifted(random: np.random.Generator, count: int) -> Slowness:
    """Every stretch at a level of its own, by 1%."""
    return own(random, count) + random.normal(0.0, 0.01)


def thermal(random: np.random.Generator, count: int) -> Slowness:
    """A board that gets warm, and then lets its clock go up and down between two steps to stay so."""
    at = np.arange(count) / 100
    warming = 0.05 * np.minimum(1.0, at * random.uniform(1.0, 4.0))
    throttling = 0.02 * (np.sin(2 * math.pi * (at * random.uniform(2.0, 20.0) + random.uniform())) > 0)
    return own(random, count) + warming + np.where(warming >= 0.05, throttling, 0.0)


def bursts(random: np.random.Generator, count: int) -> Slowness:
    """A seventh of processes is disturbed, some of them by far."""
    return own(random, count) + np.where(random.random(count) < 1 / 7, random.exponential(0.08, count), 0.0)


def two_modes(random: np.random.Generator, count: int) -> Slowness:
    """A process runs either fast or 3% slower, by where its pages lie."""
    return own(random, count) + 0.03 * (random.random(count) < 0.4)


def steps_up(random: np.random.Generator, count: int) -> Slowness:
    """Now and then something begins, or ends, that slows everything for a while."""
    level, found = 0.0, np.empty(count)
    for at in range(count):
        level = random.choice([0.0, 0.04, 0.1]) if random.random() < 0.05 else level
        found[at] = level
    return own(random, count) + found


def heavy_tails(random: np.random.Generator, count: int) -> Slowness:
    """Stretches and processes of which a few are far out."""
    return 0.006 * random.standard_t(3, count) + 0.006 * random.standard_t(3)


CHOSEN_WITH: Mapping[str, Noise] = {
    "independent": independent,
    "autoregressive": autoregressive,
    "per-run shift": shifted,
    "thermal replay": thermal,
}
OTHERS: Mapping[str, Noise] = {
    "bursts": bursts,
    "two modes": two_modes,
    "levels": steps_up,
    "heavy tails": heavy_tails,
}

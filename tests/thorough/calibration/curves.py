"""Synthetic curves of sustained runs, with a slow-down at a known time or none; nothing was read from a board."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from device_agents.figures.sustained import curve_of
from device_agents.wire import Sustained, SustainedWindow

COUNT, WINDOW_S, STEP_US = 600, 1.5, 20_000.0
NEAR = 0.05
"""Of the curve: so far off an onset may be found."""


@dataclass(frozen=True)
class Found:
    """Of one curve: its onset as a share of it, and where one is found."""

    onset: float | None
    said: float | None

    @property
    def is_missed(self) -> bool:
        return self.onset is not None and (self.said is None or abs(self.said - self.onset) > NEAR)

    @property
    def is_invented(self) -> bool:
        return self.onset is None and self.said is not None


def looked_at(source: random.Random, number: int) -> Found:
    """The next curve: every second one slows down for good, by 6% to 50%, at once or over some seconds; the others have
    brief dips, a drift of up to 2%, or a slow-down that goes by."""
    onset = source.uniform(0.1, 0.7) if number % 2 == 0 else None
    us = _noise(source)
    if onset is not None:
        factor, takes = source.uniform(1.06, 1.5), source.choice((1e-3, 3.0, 8.0))
        us = [
            time_us * (1 + (factor - 1) * -math.expm1(-max(0.0, at + 0.5 - onset * COUNT) / takes))
            for at, time_us in enumerate(us)
        ]
    else:
        us = source.choice((_dips, _drifts, _goes_by))(source, us)
    windows = tuple(SustainedWindow(int(WINDOW_S * 0.9e6 / one), one, 1.01 * one) for one in us)
    told = Sustained(WINDOW_S, windows, sum(one.steps for one in windows), 8, 2, 1e9, "time")
    said_s = curve_of(told).onset_s
    return Found(onset, None if said_s is None else said_s / (COUNT * WINDOW_S))


def _noise(source: random.Random) -> list[float]:
    """Of windows that resemble their neighbours by up to 0.8."""
    keeps, deviation, last = source.choice((0.0, 0.4, 0.8)), source.choice((0.002, 0.005, 0.01)), 0.0
    found = []
    for _ in range(COUNT):
        last = keeps * last + source.gauss(0, deviation * math.sqrt(1 - keeps**2))
        found.append(STEP_US * math.exp(last))
    return found


def _dips(source: random.Random, us: list[float]) -> list[float]:
    for _ in range(4):
        begins, takes, factor = source.randrange(COUNT - 20), source.randrange(2, 15), source.uniform(1.05, 2.0)
        us[begins : begins + takes] = [factor * one for one in us[begins : begins + takes]]
    return us


def _drifts(source: random.Random, us: list[float]) -> list[float]:
    whole = source.uniform(0.0, 0.019)
    return [one * (1 + whole * at / COUNT) for at, one in enumerate(us)]


def _goes_by(source: random.Random, us: list[float]) -> list[float]:
    begins, factor = source.randrange(100, 250), source.uniform(1.05, 1.4)
    return [factor * one if begins <= at < begins + 100 else one for at, one in enumerate(us)]

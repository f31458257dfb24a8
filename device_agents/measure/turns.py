"""Bundles take turns on one device until it is known which takes longer, or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from device_agents.figures.rounds import (
    LOOKS,
    PILOT,
    Ratio,
    Round,
    detectable,
    deviation_of,
    may_end,
    order_of,
    ratios,
)
from device_agents.wire import Why

Process = Callable[[int], float]
"""Runs a fresh process of the bundle at that place in the list, and returns the median of its settled steps, in
microseconds.
"""


@dataclass(frozen=True)
class Wanted:
    """The comparison that is wanted. `effect`: the relative difference that matters; smaller ones need not be found."""

    bundles: int
    effect: float
    budget_s: float
    seed: int


@dataclass(frozen=True)
class Prospect:
    """The expectation that is stated before the rounds that decide."""

    rounds: int
    effect: float | None
    """The relative difference that so many rounds find nineteen times of twenty; None: they are too few for any."""


@dataclass(frozen=True)
class Compared:
    """The findings of a comparison."""

    rounds: tuple[Round, ...]
    ratios: tuple[Ratio, ...]
    prospect: Prospect | None
    """The prospect of the comparison; None where the time was over before there could be one."""
    why: Why


def take_turns(
    wanted: Wanted,
    process: Process,
    *,
    tell: Callable[[Prospect], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Compared:
    """Compares the bundles. What `process` raises ends it."""
    began_s = clock()
    rounds: list[Round] = []
    prospect: Prospect | None = None
    longest_s: float = 0.0
    why: Why = "time"
    while clock() - began_s + longest_s <= wanted.budget_s:
        round_began_s = clock()
        order = order_of(len(rounds), bundles=wanted.bundles, seed=wanted.seed)
        rounds.append(Round(order, tuple(process(which) for which in order)))
        longest_s = max(longest_s, clock() - round_began_s)
        if len(rounds) == PILOT:
            left_s = wanted.budget_s - (clock() - began_s)
            prospect = _prospect(rounds, int(left_s / longest_s) if longest_s else LOOKS[-1], wanted.bundles)
            tell(prospect)
        if may_end(rounds, bundles=wanted.bundles, effect=wanted.effect):
            why = "rounds" if len(rounds) >= LOOKS[-1] else "known"
            break
    return Compared(tuple(rounds), ratios(rounds, bundles=wanted.bundles) if rounds else (), prospect, why)


def _prospect(rounds: list[Round], more: int, bundles: int) -> Prospect:
    there = min(len(rounds) + more, LOOKS[-1])
    return Prospect(there, detectable(deviation_of(rounds), there, bundles=bundles))

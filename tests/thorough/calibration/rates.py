"""What is promised of the rates: one table for the simulation and for real processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["compare", "separate", "change"]


@dataclass(frozen=True)
class Promise:
    """How often two builds, of which the second does so many times as much, are called different: `least` to `most`."""

    kind: Kind
    factor: float
    what: str
    least: float = 0.0
    most: float = 1.0


PROMISES = (
    Promise("compare", 1.0, "compare job, equal bundles: called different", most=0.01),
    Promise("compare", 1.03, "compare job, 3% slower: found", least=0.95),
    Promise("compare", 1.01, "compare job, 1% slower: found", least=0.5),
    Promise("separate", 1.0, "separate runs of one bundle: likely different", most=0.05),
    Promise("separate", 1.2, "separate runs, 20% slower: likely different"),
)
BUDGET_S = 20.0
"""Of a comparison."""
EFFECT = 0.01
"""What a comparison looks for."""
CANARIES = 10
"""Runs of one bundle from which a device's variation is learned."""


@dataclass(frozen=True)
class Rate:
    """Of trials that ended with two called different, and what it must be."""

    promise: Promise
    where: str
    """Noise or machine, and what else is to be known."""
    count: int
    trials: int

    @property
    def is_kept(self) -> bool:
        return self.promise.least <= self.count / self.trials <= self.promise.most

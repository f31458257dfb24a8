"""The comparison of bundles that took turns: a row for each, the first beside itself."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from device_agents.figures.digits import faster_or_slower, ratio_span
from device_agents.figures.rounds import PILOT, Process, Ratio, Round, detectable, deviation_of, ratios, rounds_of

ENDS: Mapping[str, str] = {
    "known": "nothing was left to find out",
    "rounds": "the most rounds that are made",
    "time": "the time was over; a longer one finds smaller differences",
    "cut": "it was ended before",
}
"""Why bundles no longer took turns, by a report's word for it."""


@dataclass(frozen=True)
class Compared:
    """A bundle's row: the median over rounds of the quicker of its two processes, and how it stands to the first."""

    place: int
    median_us: float
    ratio: Ratio | None
    """The ratio to the first bundle; None for the first itself."""
    message: str

    @property
    def fields(self) -> dict[str, Any]:
        """Returns the row's figures as they are shown: plain, and null where there is none."""
        low, high = (self.ratio and self.ratio.interval) or (None, None)
        return {
            "median_us": self.median_us,
            "ratio": self.ratio and self.ratio.ratio,
            "ratio_low": low,
            "ratio_high": high,
            "message": self.message,
        }


@dataclass(frozen=True)
class Verdict:
    """The figures that are worked out from a comparison's raw times."""

    rounds: int
    rows: tuple[Compared, ...]
    detectable: float | None
    """The relative difference that the rounds foreseen after the first few find nineteen times of twenty."""


class ComparisonReport(Protocol):
    """The report of bundles that took turns: raw times, of at least one whole round."""

    @property
    def bundles(self) -> Sequence[str]: ...
    @property
    def steps(self) -> int: ...
    @property
    def processes(self) -> Sequence[Process]: ...
    @property
    def foreseen_rounds(self) -> int | None: ...


def verdict_of(comparison: ComparisonReport, effect: float) -> Verdict:
    """Works out the verdict from the raw times; `effect`: the relative difference that was looked for."""
    bundles, foreseen_rounds = len(comparison.bundles), comparison.foreseen_rounds
    rounds = rounds_of(comparison.processes, bundles=bundles, steps=comparison.steps)
    bundle_ratios: list[Ratio | None] = [None, *ratios(rounds, bundles=bundles)]
    rows = tuple(
        Compared(place, _median_us(rounds, place), ratio, ratio_text(ratio, effect) if ratio else "")
        for place, ratio in enumerate(bundle_ratios)
    )
    can_find = None
    if foreseen_rounds is not None and len(rounds) >= PILOT:
        can_find = detectable(deviation_of(rounds[:PILOT]), foreseen_rounds, bundles=bundles)
    return Verdict(len(rounds), rows, can_find)


def _median_us(rounds: tuple[Round, ...], place: int) -> float:
    quicker = (min(us for which, us in zip(round_.order, round_.median_us) if which == place) for round_ in rounds)
    return statistics.median(quicker)


def ratio_text(ratio: Ratio, effect: float) -> str:
    """Returns the ratio to the first as text: `1.031x slower (1.026 to 1.036x)`, `no difference of 1% or more (...)`,
    or `cannot tell`.
    """
    interval = ratio.interval
    if interval is None:
        return "cannot tell: too few rounds"
    if not ratio.differs:
        words = f"no difference of {100 * effect:.3g}% or more" if ratio.is_within(effect) else "cannot tell"
        return f"{words} ({ratio_span(interval)})"
    return faster_or_slower(ratio.ratio, interval)

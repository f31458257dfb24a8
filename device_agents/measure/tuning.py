"""The choice of the schedule that a kernel should get, from the times of its variants: pure functions.

A schedule replaces the default only if it is faster by more than noise. Times are compared round by round, since the
schedules of a kernel take turns: half of the rounds must show `MIN_GAIN`, and three quarters of them any gain at all.
And its median must be the smaller one, which few rounds on a busy board need not agree with: no winner looks slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agents.wire import KernelTuning, VariantTime

MIN_ROUNDS = 4
MIN_GAIN = 0.03
MAX_DIFFERENCE = 1e-3
"""Outputs of two schedules differ by rounding, and Winograd's by more of it; more than this is another result."""


@dataclass(frozen=True)
class Trial:
    """A kernel of a tuning bundle. `choices`: the schedule of each of its variants, the default (empty) first."""

    kernel: str
    name: str
    calls: int
    choices: tuple[str, ...]


def tuned(trial: Trial, variants: Sequence[VariantTime]) -> KernelTuning:
    """The measured variants of one kernel, the default first, with the winner."""
    return KernelTuning(trial.kernel, trial.name, trial.calls, tuple(variants), winner(variants))


def winner(variants: Sequence[VariantTime]) -> str:
    """The choice of the fastest variant that is better than the default by more than noise; empty if none is."""
    default = next((variant for variant in variants if not variant.choice), None)
    if default is None or default.rounds < MIN_ROUNDS:
        return ""
    better = [variant for variant in variants if variant.choice and _is_better(variant, default)]
    return min(better, key=lambda variant: (variant.ratio, variant.choice)).choice if better else ""


def _is_better(variant: VariantTime, default: VariantTime) -> bool:
    return (
        variant.rounds >= MIN_ROUNDS
        and variant.difference is not None
        and variant.difference <= MAX_DIFFERENCE
        and variant.ratio <= 1 - MIN_GAIN
        and variant.ratio_high < 1
        and variant.median_us < default.median_us
    )

"""Which schedule a kernel should get, from the times of its variants: pure functions.

A schedule replaces the default only if it is faster by more than noise: its median is lower by `MIN_GAIN`, and even its
slower half of times (up to the third quartile) lies below the default's faster ones (down to the first quartile).
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agents.bundle import Trial
from device_agents.protocol import KernelTuning, VariantTime

MIN_ROUNDS = 4
MIN_GAIN = 0.03
MAX_DIFFERENCE = 1e-3
"""Outputs of two schedules differ by rounding, and Winograd's by more of it; more than this is another result."""


def tuned(trial: Trial, variants: Sequence[VariantTime]) -> KernelTuning:
    """The measured variants of one kernel, the default first, with the winner."""
    return KernelTuning(trial.kernel, trial.name, trial.calls, tuple(variants), winner(variants))


def winner(variants: Sequence[VariantTime]) -> str:
    """The choice of the fastest variant that is better than the default by more than noise; empty if none is."""
    default = next((variant for variant in variants if not variant.choice), None)
    if default is None or default.rounds < MIN_ROUNDS:
        return ""
    better = [variant for variant in variants if variant.choice and _is_better(variant, default)]
    return min(better, key=lambda variant: (variant.median_us, variant.choice)).choice if better else ""


def _is_better(variant: VariantTime, default: VariantTime) -> bool:
    return (
        variant.rounds >= MIN_ROUNDS
        and variant.difference is not None
        and variant.difference <= MAX_DIFFERENCE
        and variant.median_us <= default.median_us * (1 - MIN_GAIN)
        and variant.high_us < default.low_us
    )

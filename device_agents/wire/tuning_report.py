"""The report of a run of mode tune: wire types of `device_agents.wire`. Standard library only."""

from dataclasses import dataclass
from typing import Optional

from device_agents.wire.codec import check

MAX_US = 1e12
MAX_ROUNDS = 1 << 20
MAX_CALLS = 1 << 30


@dataclass(frozen=True)
class VariantTime:
    """Times of one call of a kernel in one schedule; the schedules of a kernel took turns."""

    choice: str
    """The schedule's parameters; empty for the default, which comes first."""
    rounds: int
    median_us: float
    ratio_low: float
    ratio: float
    ratio_high: float
    """Quartiles of its time divided by the default's in the same round."""
    difference: Optional[float]
    """Largest difference of its outputs from the default's, relative to the largest value; null when not finite."""

    def __post_init__(self) -> None:
        check(1 <= self.rounds <= MAX_ROUNDS, "rounds", f"1 to {MAX_ROUNDS:,}")
        check(0 < self.median_us <= MAX_US, "median_us", f"more than 0, at most {MAX_US:g}")
        check(0 < self.ratio_low <= self.ratio <= self.ratio_high, "ratio", "more than 0, between its quartiles")
        check(self.difference is None or self.difference >= 0, "difference", "at least 0")


@dataclass(frozen=True)
class KernelTuning:
    """The measurements of a kernel, and the schedule that it should get."""

    kernel: str
    """The kernel's signature."""
    name: str
    calls: int
    """Calls of the kernel in one step."""
    variants: tuple[VariantTime, ...]
    winner: str
    """The `choice` of the winner; empty: the default, for nothing was better by more than noise."""

    def __post_init__(self) -> None:
        check(0 <= self.calls <= MAX_CALLS, "calls", f"0 to {MAX_CALLS:,}")


@dataclass(frozen=True)
class Tuning:
    """The measurements of a run of mode tune."""

    threads: int
    kernels: tuple[KernelTuning, ...]

"""What a run of mode tune reports: wire types of `device_agents.protocol`. Standard library only."""

from dataclasses import dataclass
from typing import Optional


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


@dataclass(frozen=True)
class KernelTuning:
    """What was measured of one kernel, and which schedule it should get."""

    kernel: str
    """The kernel's signature."""
    name: str
    calls: int
    """Of the kernel, in one step."""
    variants: tuple[VariantTime, ...]
    winner: str
    """The `choice` of the winner; empty: the default, for nothing was better by more than noise."""


@dataclass(frozen=True)
class Tuning:
    """All that a run of mode tune measured."""

    threads: int
    kernels: tuple[KernelTuning, ...]

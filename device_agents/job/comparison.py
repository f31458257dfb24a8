"""Findings of a run of mode compare so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from device_agents.wire import ComparedProcess, Comparison, Why


@dataclass
class ComparisonFindings:
    """Filled process by process; good after a failure too."""

    bundles: int
    steps: int
    processes: list[ComparedProcess] = field(default_factory=list)
    threads: dict[int, int] = field(default_factory=dict)
    """The number of threads by the bundle's place, as its binary says."""
    foreseen_rounds: int | None = None
    ended: Why = "cut"

    def report(self, digests: Sequence[str]) -> Comparison | None:
        """Whole rounds only; None before the first."""
        whole = len(self.processes) - len(self.processes) % (2 * self.bundles)
        threads = tuple(self.threads.get(place, 0) for place in range(self.bundles))
        return (
            Comparison(
                tuple(digests), self.steps, tuple(self.processes[:whole]), self.ended, threads, self.foreseen_rounds
            )
            if whole
            else None
        )

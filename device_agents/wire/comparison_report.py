"""The report of a run of mode compare: wire types of `device_agents.wire`. Standard library only.

Raw times only: which of them are warm-up, the ratios and their intervals are worked out from them by whoever reads
(`device_agents/figures/rounds.py`), the farm too.
"""

import re
from dataclasses import dataclass
from typing import Literal, Optional, get_args

from device_agents.figures.rounds import LOOKS
from device_agents.wire.codec import check

Why = Literal["known", "rounds", "time", "cut"]
"""Why it ended: nothing is left to find out, the last look, its time is over, it failed or was stopped."""
MOST_BUNDLES = 4
PROTOCOLS = ("turns/1",)
"""The protocols by which bundles took turns; the last is this release's: order, looks and warm-up as in
`device_agents/figures/`.
"""
LEAST_US, MAX_US = 1e-3, 1e12
"""Bounds of a step's time: clocks of a binary tell nanoseconds."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ComparedProcess:
    """A fresh process."""

    bundle: int
    """Its bundle, by the place in the list."""
    step_us: tuple[float, ...]
    """The times of each of its steps in order, those of its warm-up too."""

    def __post_init__(self) -> None:
        check(0 <= self.bundle < MOST_BUNDLES, "bundle", f"0 to {MOST_BUNDLES - 1}")
        check(bool(self.step_us), "step_us", "of one step at least")
        for number, us in enumerate(self.step_us):
            check(LEAST_US <= us <= MAX_US, f"step_us[{number}]", f"{LEAST_US:g} to {MAX_US:g}")


@dataclass(frozen=True)
class Comparison:
    """Whole rounds of processes that took turns, in the order in which they ran."""

    bundles: tuple[str, ...]
    """Digests; the first is what the others stand beside."""
    steps: int
    """Steps of each process that count: after its warm-up."""
    processes: tuple[ComparedProcess, ...]
    ended: Why
    threads: tuple[int, ...]
    """Threads of each bundle."""
    foreseen_rounds: Optional[int] = None
    """The number of rounds that the time allowed, as foreseen after the first few; null where it was over before."""
    protocol: str = PROTOCOLS[-1]

    def __post_init__(self) -> None:
        check(2 <= len(self.bundles) <= MOST_BUNDLES, "bundles", f"2 to {MOST_BUNDLES}")
        for number, digest in enumerate(self.bundles):
            check(bool(_DIGEST.fullmatch(digest)), f"bundles[{number}]", "sha256:<64 hex digits>")
        check(self.steps >= 1, "steps", "at least 1")
        rounds, rest = divmod(len(self.processes), 2 * len(self.bundles))
        check(rest == 0 and 1 <= rounds <= LOOKS[-1], "processes", f"1 to {LOOKS[-1]} whole rounds")
        check(self.ended != "rounds" or rounds == LOOKS[-1], "ended", f"another, unless there are {LOOKS[-1]} rounds")
        check(self.protocol in PROTOCOLS, "protocol", f"one of {', '.join(PROTOCOLS)}")
        check(self.ended in get_args(Why), "ended", f"one of {', '.join(get_args(Why))}")
        check(len(self.threads) == len(self.bundles), "threads", "one number for each bundle")
        check(all(0 <= count <= 1024 for count in self.threads), "threads", "0 to 1,024")
        is_number = self.foreseen_rounds is None or 1 <= self.foreseen_rounds <= LOOKS[-1]
        check(is_number, "foreseen_rounds", f"1 to {LOOKS[-1]}")

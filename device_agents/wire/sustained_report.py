"""The report of a run of mode sustained: wire types of `device_agents.wire`. Standard library only.

A run of ten minutes has millions of steps, so their times come in windows of equal wall time. What the windows say (the
onset of a slow-down, the ratio) is worked out from them by whoever reads (`device_agents/figures/sustained.py`), the
farm too.
"""

from dataclasses import dataclass
from typing import Literal, Optional, get_args

from device_agents.wire.codec import check
from device_agents.wire.comparison_report import LEAST_US, MAX_US
from device_agents.wire.settings import MAX_SUSTAIN_S, MAX_THREADS

SustainedEnd = Literal["time", "cut"]
"""Why it ended: its time is over, or it failed or was stopped."""
MOST_WINDOWS = 3600
MOST_WINDOW_STEPS = 1 << 22
"""Steps of one window, at most; the agent holds it until it is over: a step of a microsecond has fewer."""
PROTOCOLS = ("sustained/1",)
"""The protocols by which windows are made; the last is this release's: a step counts for the window in which its end
was heard of.
"""
CLOCK_SLACK, CLOCK_SLACK_S = 1.05, 0.1
"""The binary's stop-watch and the agent's differ by no more."""


@dataclass(frozen=True)
class SustainedWindow:
    """The steps that ended in a stretch of wall time."""

    steps: int
    median_us: Optional[float] = None
    """Null without a step: one may take longer than a window."""
    p90_us: Optional[float] = None

    def __post_init__(self) -> None:
        check(0 <= self.steps <= MOST_WINDOW_STEPS, "steps", f"0 to {MOST_WINDOW_STEPS:,}")
        for name in ("median_us", "p90_us"):
            us = getattr(self, name)
            check((us is None) == (self.steps == 0), name, "null without a step, and a time with one")
            check(us is None or LEAST_US <= us <= MAX_US, name, f"{LEAST_US:g} to {MAX_US:g}")
        is_order = self.median_us is None or self.p90_us is None or self.median_us <= self.p90_us
        check(is_order, "p90_us", "at least the median")

    @property
    def least_us(self) -> float:
        """Returns the time that its steps took together, at least: half of them, the middle one too, the median or
        more.
        """
        return (self.steps + 1) // 2 * (self.median_us or 0.0)


@dataclass(frozen=True)
class Sustained:
    """Windows of equal wall time, one after the other, from the beginning of the first step on."""

    window_s: float
    windows: tuple[SustainedWindow, ...]
    """Whole ones."""
    steps: int
    """Steps of all windows."""
    batch: int
    threads: int
    began_at: float
    """When the first step did, by the board's clock, as device states have it."""
    ended: SustainedEnd
    protocol: str = PROTOCOLS[-1]

    def __post_init__(self) -> None:
        check(0 < self.window_s <= MAX_SUSTAIN_S, "window_s", f"above 0, at most {MAX_SUSTAIN_S:,g}")
        check(1 <= len(self.windows) <= MOST_WINDOWS, "windows", f"1 to {MOST_WINDOWS:,}")
        check(self.steps == sum(window.steps for window in self.windows), "steps", "those of all windows")
        check(self.steps >= 1, "steps", "at least 1")
        check(1 <= self.batch <= 1 << 62, "batch", "at least 1")
        check(0 <= self.threads <= MAX_THREADS, "threads", f"0 to {MAX_THREADS:,}")
        check(0 <= self.began_at <= 95_000_000_000.0, "began_at", "a time after 1970 and before the year 5000")
        check(self.ended in get_args(SustainedEnd), "ended", f"one of {', '.join(get_args(SustainedEnd))}")
        check(self.protocol in PROTOCOLS, "protocol", f"one of {', '.join(PROTOCOLS)}")
        self._check_passed()

    @property
    def lasted_s(self) -> float:
        """Returns the seconds of all windows together."""
        return self.window_s * len(self.windows)

    @property
    def step_s(self) -> float:
        """Wall time for each step, its rests with it."""
        return self.lasted_s / self.steps

    def _check_passed(self) -> None:
        """Checks that the steps reported by the end of each window fit into the time until then. One window alone may
        hold more: the end of a long step, or what an agent that was held up heard of late.
        """
        least_us = 0.0
        for number, window in enumerate(self.windows):
            least_us += window.least_us
            passed_us = ((number + 1) * self.window_s * CLOCK_SLACK + CLOCK_SLACK_S) * 1e6
            check(least_us <= passed_us, f"windows[{number}]", f"no more steps than fit into {passed_us * 1e-6:,.1f} s")

"""The views of a sustained run."""

from __future__ import annotations

from service.base.schemas import View


class SustainedWindowView(View):
    """The steps of one stretch of wall time."""

    start_s: float
    """Seconds from the beginning of the first step to that of the window."""
    steps: int
    median_us: float | None
    """Null: no step came to its end in it."""
    p90_us: float | None


class SustainedView(View):
    """The farm's evaluation of the curve of a run's step time (docs/measurement.md)."""

    protocol: str
    """How its windows are made."""
    ended: str
    lasted_s: float
    window_s: float
    steps: int
    first_us: float
    """Step time at the beginning, after the warm-up."""
    sustained_us: float
    """Step time over the last third."""
    ratio: float
    """Ratio of the second to the first."""
    ratio_low: float | None
    ratio_high: float | None
    """Interval of the ratio (99%); null: too few windows."""
    onset_s: float | None
    """Seconds from the first step until it is slower for good; null: it does not slow down, or that cannot be
    determined.
    """
    busy: float
    """The share of wall time that its steps filled, about."""
    throttled_s: float | None
    """When the board first said that it held its speed back; null: it did not, or has no word for it."""
    clock_first_hz: float | None
    clock_last_hz: float | None
    """The board's clock in the same two stretches; null: it tells none."""
    message: str
    """The result in words: slows down after so long, no slow-down, or cannot tell."""
    board_message: str
    """Statement of the board itself, in words; empty: none."""
    windows: list[SustainedWindowView]

"""The curve of a step's time over many minutes: whether it slows down for good, from when on, and by how much.

It is made of windows of equal wall time, each with the median of its steps. Neighbours resemble each other, whatever
slows one slows the next, so that intervals and the onset are found from medians of several windows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from device_agents.figures.digits import TIMES, places_of_ratio, ratio_span
from device_agents.figures.intervals import Interval, error_of_median, student
from device_agents.figures.warm_up import PRICE, deviation, settled_from, spread

MOST_WINDOWS = 600
LEAST_WINDOW_S = 1.0
EFFECT = 0.02
"""Relative: a curve that rises by less does not slow down."""
FIRST_S, FIRST_SHARE = 60.0, 0.1
"""Length of the beginning: so long, or such a share, the shorter."""
LAST_SHARE = 1 / 3
"""Share of the curve, at its end, whose speed counts as sustained."""
LEAST_BLOCKS, MOST_BLOCKS = 5, 10
"""Number of blocks of windows in each of the two: an interval needs so many, and more would be neighbours that resemble
each other.
"""
LEAST_FREEDOM = 3
CONFIDENCE = 0.99
CELLS = 100
"""The number of cells in which the curve is searched for its onset: a brief dip is a cell or two, and noise has less
memory from one to the next.
"""
LEAST_CELLS = 20
LEAST_AFTER = 0.05
"""The share of the curve that must follow the onset: of what is slow at the very end nobody knows if it stays so."""
PARTS = 5
"""Parts of the curve after the onset: each of them is slower, or it is no slow-down for good."""
MOST_MEMORY = 0.9
"""The most that a value may remember of the one before it: what a curve that short can show."""
LEAST_RISE_CELLS = 3
"""The fewest cells on each side of a change."""
CLEAR = 3.0
"""Deviations above the cells before: such a one is of the rise."""
RISE_SHARE = 0.5
"""Share of the rise that `EFFECT` asks for: as much is a part of it, earlier or later."""
BUSY = 0.9
"""The share of wall time that steps are expected to fill: where it is less, the board rests in between."""
WIDE = 2.0
"""A ratio's interval that reaches further says nothing in numbers."""


class Window(Protocol):
    """A report's summary of a stretch of wall time."""

    @property
    def steps(self) -> int: ...
    @property
    def median_us(self) -> float | None: ...


class State(Protocol):
    """A board's own statement of its state."""

    @property
    def at(self) -> float: ...
    @property
    def throttled(self) -> bool | None: ...
    @property
    def frequency_hz(self) -> float | None: ...


class SustainedReport(Protocol):
    """The report of a sustained run."""

    @property
    def window_s(self) -> float: ...
    @property
    def windows(self) -> Sequence[Window]: ...
    @property
    def began_at(self) -> float: ...


@dataclass(frozen=True)
class Curve:
    """The figures that are worked out from the windows, and the board's own reports meanwhile."""

    lasted_s: float
    first_us: float
    """The time of a step at the beginning, after the warm-up and before the onset."""
    sustained_us: float
    """The time of a step over the last third."""
    ratio: float
    interval: Interval | None
    """The interval of the ratio; None where there are too few windows."""
    onset_s: float | None
    """Seconds from the first step to the onset; none where it does not slow down for good."""
    busy: float
    """The share of wall time that steps filled, about."""
    throttled_s: float | None
    """When the board said for the first time that it held its speed back; none: it did not, or cannot."""
    clock_hz: tuple[float, float] | None
    """The clock at the beginning and over the last third; none without one."""
    message: str
    """The curve in words."""
    board_message: str
    """The board's statements in words; empty where it says nothing."""

    @property
    def fields(self) -> dict[str, Any]:
        """Returns the curve's figures as they are shown: plain, and null where there is none."""
        low, high = self.interval or (None, None)
        first_hz, last_hz = self.clock_hz or (None, None)
        return {
            "lasted_s": self.lasted_s,
            "first_us": self.first_us,
            "sustained_us": self.sustained_us,
            "ratio": self.ratio,
            "ratio_low": low,
            "ratio_high": high,
            "onset_s": self.onset_s,
            "busy": self.busy,
            "throttled_s": self.throttled_s,
            "clock_first_hz": first_hz,
            "clock_last_hz": last_hz,
            "message": self.message,
            "board_message": self.board_message,
        }


class Stretch(NamedTuple):
    """Windows from one number up to another, which is not one of them."""

    start: int
    end: int


def window_count(lasts_s: float) -> int:
    """Returns the number of windows that so many seconds are split into: 600, as far as each takes a second at
    least.
    """
    return max(1, min(MOST_WINDOWS, int(lasts_s / LEAST_WINDOW_S)))


def curve_of(sustained: SustainedReport, states: Iterable[State] = ()) -> Curve:
    """Returns the curve of the windows, which have at least one step."""
    us, window_s = [window.median_us for window in sustained.windows], sustained.window_s
    first, last = _stretches(us, window_s)
    onset = onset_of(us, first.start)
    if onset is not None and first.start < onset < first.end:
        first = Stretch(first.start, onset)
    first_us, last_us = _median(us, first), _median(us, last)
    interval = _interval(_logs(us, first), _logs(us, last))
    is_slower = interval is not None and interval.low > 1.0
    onset_s = onset * window_s if onset is not None and is_slower else None
    lasted_s, ratio = len(us) * window_s, last_us / first_us
    busy = min(1.0, sum(window.steps * (window.median_us or 0.0) for window in sustained.windows) * 1e-6 / lasted_s)
    throttled_s, clock_hz = _board(states, sustained.began_at, window_s, first, last)
    return Curve(
        lasted_s,
        first_us,
        last_us,
        ratio,
        interval,
        onset_s,
        busy,
        throttled_s,
        clock_hz,
        slow_down_text(ratio, interval, onset_s, lasted_s) + _rests(busy),
        _board_said(throttled_s, clock_hz),
    )


def onset_of(us: Sequence[float | None], start: int = 0) -> int | None:
    """The window with which a slow-down for good begins; None if there is none.

    A change is where two middle values, one before and one after, explain the logarithms of the times better than one
    does, by more than noise saves. What lies before it is looked at again: a board that gets warm slows down over
    minutes, and the first of many changes is the onset. After it the curve stays above, in each of five parts.
    """
    width = max(1, (len(us) - start) // CELLS)
    logs = [_log(us[at : at + width]) for at in range(start, len(us) - width + 1, width)]
    cells = [log for log in logs if log is not None]
    if len(cells) < LEAST_CELLS or len(cells) < len(logs) / 2:
        return None
    correlation = memory([cells])
    price = PRICE * deviation(cells) * math.sqrt(1 + correlation) / (1 - correlation)
    at = _rise(cells, math.log1p(EFFECT), max(LEAST_RISE_CELLS, round(LEAST_AFTER * len(cells))), price)
    earlier = at
    while earlier is not None:
        at, earlier = earlier, _rise(cells[:earlier], RISE_SHARE * math.log1p(EFFECT), LEAST_RISE_CELLS, price)
    if at is None:
        return None
    level = statistics.median(cells[:at]) + max(RISE_SHARE * math.log1p(EFFECT), CLEAR * deviation(cells))
    while cells[at - 1] > level:  # some are above: the median of those before is not
        at -= 1
    places = [place for place, log in enumerate(logs) if log is not None]
    return start + places[at] * width


def memory(stretches: Iterable[Sequence[float]]) -> float:
    """Returns how much of a value's deviation is left in the next one, as in a first-order autoregression: from how far
    values are from the middle of their neighbours, next to them and one further. Changes, brief dips and what rises
    evenly hardly count.
    """
    near, far = [], []
    for values in stretches:
        near += [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:])]
        far += [abs(a - 2 * b + c) for a, b, c in zip(values, values[2:], values[4:])]
    if not far or not statistics.median(near):
        return 0.0
    ratio, low, high = (statistics.median(far) / statistics.median(near)) ** 2, 0.0, MOST_MEMORY
    while high - low > 1e-3:
        correlation = (low + high) / 2
        low, high = (
            (correlation, high)
            if (1 + correlation) * (3 - correlation**2) / (3 - correlation) < ratio
            else (low, correlation)
        )
    return low


def _rise(cells: Sequence[float], least: float, after: int, price: float) -> int | None:
    """Returns the cell with which a rise of at least so much begins that lasts; none of the last `after` cells.
    `price`: of a change, for each natural logarithm of the number of cells.
    """
    if len(cells) < 2 * after:
        return None
    price *= math.log(len(cells))
    whole = spread(sorted(cells))
    saved, best = 0.0, None
    for at in range(LEAST_RISE_CELLS, len(cells) - after + 1):
        gain = whole - spread(sorted(cells[:at])) - spread(sorted(cells[at:]))
        if gain > saved:
            saved, best = gain, at
    if best is None or saved <= price:
        return None
    before = statistics.median(cells[:best])
    rises = [statistics.median(part) - before for part in _parts(cells[best:], min(PARTS, len(cells) - best))]
    is_risen = statistics.median(cells[best:]) - before >= least
    return best if is_risen and min(rises) >= RISE_SHARE * least else None


def _parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    return [values[low:high] for low, high in zip(edges, edges[1:])]


def _log(us: Sequence[float | None]) -> float | None:
    logs = [math.log(median) for median in us if median is not None]
    return statistics.median(logs) if logs else None


def _stretches(us: Sequence[float | None], window_s: float) -> tuple[Stretch, Stretch]:
    """The beginning, after its warm-up, and the last third; each has a window with steps."""
    count = len(us)
    end = max(1, round(min(FIRST_S / window_s, FIRST_SHARE * count)))
    filled = [number for number, median in enumerate(us) if median is not None]
    end = max(end, filled[0] + 1)
    opening = [median for median in us[:end] if median is not None]
    warm = settled_from(opening, most=len(opening) // 3)
    start = [number for number in filled if number < end][warm]
    return Stretch(start, end), Stretch(min(count - max(1, round(LAST_SHARE * count)), filled[-1]), count)


def _median(us: Sequence[float | None], stretch: Stretch) -> float:
    return statistics.median(median for median in us[stretch.start : stretch.end] if median is not None)


def _logs(us: Sequence[float | None], stretch: Stretch) -> list[float]:
    return [math.log(median) for median in us[stretch.start : stretch.end] if median is not None]


def _interval(first: Sequence[float], last: Sequence[float]) -> Interval | None:
    """Returns the interval of the ratio of the two: Student's, around the medians of their blocks of windows, as much
    wider and with as many degrees of freedom less as blocks resemble their neighbours. None where there are too few
    blocks.
    """
    if min(len(first), len(last)) < LEAST_BLOCKS:
        return None
    correlation = memory([first, last])
    squares, freedom, middles = 0.0, math.inf, []
    for logs in (first, last):
        blocks = [statistics.median(part) for part in _parts(logs, min(MOST_BLOCKS, len(logs)))]
        wider = _wider(correlation, len(logs) / len(blocks))
        squares += (wider * error_of_median(blocks)) ** 2
        freedom = min(freedom, max(LEAST_FREEDOM, round(len(blocks) / wider**2) - 1))
        middles.append(statistics.median(blocks))
    half = student(CONFIDENCE, int(freedom)) * math.sqrt(squares)
    middle = middles[1] - middles[0]
    return Interval(math.exp(middle - half), math.exp(middle + half))


def _wider(correlation: float, length: float) -> float:
    """Returns how much larger the error of a mean of blocks is than if they were independent: of a first-order
    autoregression that keeps so much from one window to the next, in blocks of so many windows.
    """
    complement = 1 - correlation**length
    alike = correlation * complement**2 / (length * (1 - correlation**2) - 2 * correlation * complement)
    return math.sqrt((1 + alike) / (1 - alike))


def slow_down_text(ratio: float, interval: Interval | None, onset_s: float | None, lasted_s: float) -> str:
    """`slows down after 4 min 10 s, by 1.18x (1.16 to 1.20x)`, `no slow-down of 2% or more in 10 min (...)`, or
    `cannot tell (...)`."""
    if interval is None:
        return "cannot tell: too few windows"
    by = f"{ratio:.{places_of_ratio(interval)}f}{TIMES} ({ratio_span(interval)})"
    if onset_s is not None:
        return f"slows down after {format_duration(onset_s)}, by {by}"
    if interval.high < 1 + EFFECT:
        return f"no slow-down of {100 * EFFECT:g}% or more in {format_duration(lasted_s)} ({ratio_span(interval)})"
    if interval.low > 1 + EFFECT:
        return f"slower at the end, by {by}, without an onset that can be told"
    is_wide = interval.high > WIDE * interval.low
    return "cannot tell: its times vary too much" if is_wide else f"cannot tell ({ratio_span(interval)})"


def _rests(busy: float) -> str:
    return f"; its steps fill {busy:.0%} of the time" if busy < BUSY else ""


def _board(
    states: Iterable[State], began_at: float, window_s: float, first: Stretch, last: Stretch
) -> tuple[float | None, tuple[float, float] | None]:
    """When the board first said that it was throttled, and its clock in both stretches."""
    timeline = sorted(((state.at - began_at, state) for state in states), key=lambda timed_state: timed_state[0])
    end_s = last.end * window_s
    within = [(at_s, state) for at_s, state in timeline if 0 <= at_s <= end_s]
    throttled_s = next((at_s for at_s, state in within if state.throttled), None)
    clocks = [
        [
            state.frequency_hz
            for at_s, state in within
            if state.frequency_hz and stretch.start * window_s <= at_s <= stretch.end * window_s
        ]
        for stretch in (first, last)
    ]
    if not all(clocks):
        return throttled_s, None
    return throttled_s, (statistics.median(clocks[0]), statistics.median(clocks[1]))


def _board_said(throttled_s: float | None, clock_hz: tuple[float, float] | None) -> str:
    phrases = []
    if throttled_s is not None:
        phrases.append(f"throttled from {format_duration(throttled_s)} on, or before")
    if clock_hz is not None:
        phrases.append(f"clock {clock_hz[0] / 1e6:,.0f} MHz at first, {clock_hz[1] / 1e6:,.0f} MHz over the last third")
    return "; ".join(phrases)


def format_duration(seconds: float) -> str:
    """`45 s`, `4 min 10 s`, `10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"

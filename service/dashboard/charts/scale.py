"""Axes: a linear scale from values to pixels, and the round numbers that label it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg

MOST_DRAWN = 1e300


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] linearly onto pixels [start, end]; `end` may be above `start` (a vertical axis)."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (_drawable(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Returns about `count` round values within the range."""
        step = _round_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(i * step, 12) for i in range(first, last + 1))


def _drawable(value: float) -> float:
    """Limits a value so that differences of what is drawn are finite: stored values may be anything."""
    return max(-MOST_DRAWN, min(MOST_DRAWN, value))


def nice_scale(values: Sequence[float], start: float, end: float, *, from_zero: bool = False, count: int = 5) -> Scale:
    """Returns a scale whose ends are round numbers around the values; a single value gets room on both sides."""
    low, high = (_drawable(min(values)), _drawable(max(values))) if values else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= max(abs(high), 1.0) * 1e-9:
        room = abs(high) * 0.1 if abs(high) > 1e-9 else 1.0
        low, high = (0.0 if from_zero and low >= 0 else low - room), high + room
    step = _round_step((high - low) / count)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, start, end)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))


@dataclass(frozen=True, slots=True)
class LogScale:
    """Maps [low, high], both above 0, logarithmically onto pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> tuple[float, ...]:
        """Returns 1, 10, 100; with 2 and 5 between them where that leaves about `count`."""
        first, last = math.floor(math.log10(self.low) - 1e-9), math.ceil(math.log10(self.high) + 1e-9)
        steps = (1, 2, 5) if last - first <= max(1, count // 2) else (1,)
        candidates = [factor * 10.0**power for power in range(first, last + 1) for factor in steps]
        return tuple(tick for tick in candidates if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9))


def log_scale(values: Sequence[float], start: float, end: float) -> LogScale:
    """Returns a logarithmic scale with room around the values, which are above 0."""
    low, high = (min(values), max(values)) if values else (1.0, 10.0)
    return LogScale(low / 1.4, high * 1.4, start, end)


def labels_of(scale: Scale | LogScale, ticks: Sequence[float]) -> tuple[str, ...]:
    """Returns the labels beside the ticks of a scale."""
    return tick_labels(ticks) if isinstance(scale, Scale) else tuple(fmt.significant(tick) for tick in ticks)


def tick_labels(ticks: Sequence[float]) -> tuple[str, ...]:
    """Labels with just as many decimals as the distance between ticks needs."""
    if len(ticks) < 2:
        return tuple(fmt.significant(tick) for tick in ticks)
    step = ticks[1] - ticks[0]
    digits = next((d for d in range(12) if abs(round(step, d) - step) <= step * 1e-6), 12)
    return tuple(fmt.number(tick, digits) for tick in ticks)


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area inside a picture."""

    width: float
    height: float
    left: float = 52.0
    right: float = 14.0
    top: float = 24.0
    bottom: float = 40.0

    @property
    def x_range(self) -> tuple[float, float]:
        """Left and right pixel of the area."""
        return self.left, self.width - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        """Bottom and top pixel of the area: larger values are higher."""
        return self.height - self.bottom, self.top


def axes(
    frame: Frame,
    x: Scale | LogScale,
    y: Scale | LogScale,
    x_title: str,
    y_title: str,
    *,
    x_count: int = 6,
    y_count: int = 5,
) -> Markup:
    """Draws horizontal grid lines, tick labels, the base line and both titles."""
    (left, right), (bottom, top) = frame.x_range, frame.y_range
    parts: list[Markup] = []
    y_ticks = y.ticks(y_count)
    for tick, label in zip(y_ticks, labels_of(y, y_ticks), strict=True):
        parts.append(svg.line(left, y(tick), right, y(tick), "grid"))
        parts.append(svg.text(left - 7, y(tick) + 3.5, label, anchor="end"))
    x_ticks = x.ticks(x_count)
    for tick, label in zip(x_ticks, labels_of(x, x_ticks), strict=True):
        parts.append(svg.line(x(tick), bottom, x(tick), bottom + 4, "axis"))
        parts.append(svg.text(x(tick), bottom + 17, label, anchor="middle"))
    parts.append(svg.line(left, bottom, right, bottom, "axis"))
    parts.append(svg.text(0, top - 11, y_title, "axis-title"))
    parts.append(svg.text(right, bottom + 33, x_title, "axis-title", "end"))
    return svg.group("axes", *parts)

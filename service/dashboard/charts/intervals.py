"""Medians with their intervals, one line per run, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, nice_scale, tick_labels

ROW_HEIGHT = 34.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and its 95% interval, in ms."""

    label: str
    median: float
    low: float
    high: float


def interval_plot(intervals: Sequence[Interval], width: float) -> Markup:
    """Draws a dot at each median, a bar over its interval, and the figure beside it."""
    frame = Frame(width, 46 + ROW_HEIGHT * len(intervals), left=30, right=30, top=8, bottom=38)
    x = nice_scale([value for entry in intervals for value in (entry.low, entry.high)], *frame.x_range, from_zero=True)
    (left, right), (bottom, top) = frame.x_range, frame.y_range
    parts: list[Markup] = []
    ticks = x.ticks(6)
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        parts.append(svg.line(x(tick), top, x(tick), bottom, "grid"))
        parts.append(svg.text(x(tick), bottom + 16, label, anchor="middle"))
    parts.append(svg.text(right, bottom + 32, "ms per step", "axis-title", "end"))
    for index, entry in enumerate(intervals):
        parts.append(_row(index, entry, x(entry.low), x(entry.median), x(entry.high), top + ROW_HEIGHT * (index + 0.5)))
    parts.append(svg.line(left, top, left, bottom, "axis"))
    title = "Median step time: " + "; ".join(f"{e.label} {fmt.latency(e.median)}" for e in intervals)
    return svg.picture(width, frame.height, title, "interval-plot", *parts)


def _row(index: int, entry: Interval, low: float, middle: float, high: float, y: float) -> Markup:
    span = (entry.low, entry.high)
    title = f"{entry.label}: {fmt.latency(entry.median)}, from {fmt.latency_span(entry.median, span)}"
    return svg.group(
        f"interval series-{index + 1}",
        svg.element("title", {}, title),
        svg.text(20, y + 4, entry.label, "direct-label", "end"),
        svg.rectangle(low, y - 5, max(high - low, 2), 10, "whisker"),
        svg.circle(middle, y, 4.5, "dot"),
    )

"""The curve of a sustained run: each window's median and 90th percentile over minutes, and where it slows down."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from device_agents.figures.sustained import format_duration
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

CEILING = 4.0
"""Ceiling of the axis: so many times as far above the upper quartile of the 90th percentiles as that is above the
median.
"""


@dataclass(frozen=True, slots=True)
class SustainedSeries:
    """(seconds from the first step to the middle of a window, milliseconds), of windows that have steps."""

    median_ms: tuple[tuple[float, float], ...]
    p90_ms: tuple[tuple[float, float], ...]
    lasted_s: float
    onset_s: float | None
    throttled_s: float | None
    message: str


def sustained_plot(series: SustainedSeries, width: float, height: float = 280.0) -> Markup:
    """Draws two lines over minutes, a broken one where the step slows down for good, and one where the board first
    reported throttling.
    """
    frame = Frame(width, height, right=width * 0.05 + 34)
    x = Scale(0, series.lasted_s / 60, *frame.x_range)
    y = Scale(*sustained_range(series), *frame.y_range)
    (_, right), (bottom, top) = frame.x_range, frame.y_range
    parts = [axes(frame, x, y, "minutes", "ms per step")]
    for points, name in ((series.p90_ms, "p90-line"), (series.median_ms, "curve median")):
        parts.extend(_line([(x(at_s / 60), y(min(ms, y.high))) for at_s, ms in points], name))
    for moment, label, drop in (
        (series.throttled_s, "the board says throttled", 26),
        (series.onset_s, "slows down", 12),
    ):
        if moment is not None:
            at = x(min(moment, series.lasted_s) / 60)
            parts.append(svg.line(at, top, at, bottom, "limit-line"))
            is_right = at > (frame.x_range[0] + right) / 2
            shift, anchor = (-5, "end") if is_right else (5, "start")
            parts.append(svg.text(at + shift, top + drop, label, "direct-label", anchor))
    median_y, p90_y = (y(min(points[-1][1], y.high)) for points in (series.median_ms, series.p90_ms))
    parts.append(svg.text(right + 6, max(median_y + 4, p90_y + 16), "median", "direct-label"))
    parts.append(svg.text(right + 6, p90_y + 4, "p90", "direct-label quiet"))
    title = f"Step time over {format_duration(series.lasted_s)}: {series.message}"
    return svg.picture(width, height, title, "sustained-plot", *parts)


def sustained_range(series: SustainedSeries) -> tuple[float, float]:
    """Returns where the axis of times begins and ends, in ms."""
    top_ms = _ceiling(series)
    scale = nice_scale([ms for _, ms in (*series.median_ms, *series.p90_ms) if ms <= top_ms], 0, 1)
    return scale.low, scale.high


def beyond(series: SustainedSeries) -> int:
    """Returns how many windows have a 90th percentile above the plot's upper end."""
    top_ms = _ceiling(series)
    return sum(1 for _, ms in series.p90_ms if ms > top_ms)


def _ceiling(series: SustainedSeries) -> float:
    # One window that something disturbed would flatten everything else.
    highest = max(ms for _, ms in series.median_ms)
    p90 = sorted(ms for _, ms in series.p90_ms)
    middle, usual = statistics.median(ms for _, ms in series.median_ms), p90[(3 * len(p90)) // 4]
    return max(min(highest, 3 * middle), usual + CEILING * max(0.0, usual - middle), 1.05 * middle)


def _line(points: Sequence[tuple[float, float]], name: str) -> list[Markup]:
    if len(points) == 1:
        return [svg.circle(*points[0], 2.5, f"{name} dot")]
    return [svg.path(points, name)] if points else []

"""The time of one thing on a device, run after run, and the points where it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

DAY_S = 86_400.0
LEAST_DAYS = 1 / 24


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A run: seconds since 1970, and its median."""

    at: float
    ms: float
    counts: bool
    """Whether it is judged."""
    label: str


@dataclass(frozen=True, slots=True)
class HistoryChange:
    """A line between two runs."""

    at: float
    label: str


def history_plot(
    points: Sequence[HistoryPoint], changes: Sequence[HistoryChange], width: float, height: float = 190.0
) -> Markup:
    """Draws a dot for each run (hollow: not judged) over days, and a line where the times changed."""
    frame = Frame(width, height)
    first = points[0].at
    days = [(point.at - first) / DAY_S for point in points]
    x = Scale(0.0, max(days[-1], LEAST_DAYS), *frame.x_range)
    y = nice_scale([point.ms for point in points], *frame.y_range, count=4)
    (bottom, top) = frame.y_range
    parts = [axes(frame, x, y, f"days since {fmt.clock(first)} UTC", "ms per step", y_count=4)]
    for change in changes:
        at = x(max(0.0, (change.at - first) / DAY_S))
        parts.append(
            svg.group("change", svg.element("title", {}, change.label), svg.line(at, top, at, bottom, "change-line"))
        )
    parts += [
        svg.circle(x(day), y(point.ms), 3, "history dot" if point.counts else "history hollow", point.label)
        for day, point in zip(days, points, strict=True)
    ]
    slowest, quickest = max(point.ms for point in points), min(point.ms for point in points)
    title = f"{fmt.plural(len(points), 'run')} from {fmt.significant(quickest)} to {fmt.significant(slowest)} ms; \
{fmt.plural(len(changes), 'change')}"
    return svg.picture(width, height, title, "history-plot", *parts)

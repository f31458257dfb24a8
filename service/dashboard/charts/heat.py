"""A device's temperature over days: a line that breaks where no value was reported."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

DAY_S = 86_400.0
GAP_S = 2_700.0
"""Moments further apart are not joined: nothing was told in between."""
UNIT = "\N{DEGREE SIGN}C"


def heat_plot(points: Sequence[tuple[float, float]], width: float, height: float = 190.0) -> Markup:
    """Draws the temperature. `points`: (seconds since 1970, degrees Celsius), at least two."""
    frame = Frame(width, height)
    first, last = points[0][0], points[-1][0]
    x = Scale(0.0, (last - first) / DAY_S, *frame.x_range)
    y = nice_scale([heat_c for _, heat_c in points], *frame.y_range, count=4)
    parts = [axes(frame, x, y, f"days since {fmt.clock(first)} UTC", UNIT, y_count=4)]
    for stretch in stretches(points):
        placed = [(x((at - first) / DAY_S), y(heat_c)) for at, heat_c in stretch]
        parts.append(svg.path(placed, "heat-line") if len(placed) > 1 else svg.circle(*placed[0], 2, "heat-line dot"))
    coolest, hottest = min(heat_c for _, heat_c in points), max(heat_c for _, heat_c in points)
    title = f"Temperature from {fmt.clock(first)} to {fmt.clock(last)} UTC: {coolest:.1f} to {hottest:.1f} {UNIT}"
    return svg.picture(width, height, title, "heat-plot", *parts)


def stretches(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Returns the stretches of points that follow each other without a gap."""
    segments = [list(points[:1])] if points else []
    for before, point in pairwise(points):
        if point[0] - before[0] > GAP_S:
            segments.append([])
        segments[-1].append(point)
    return segments

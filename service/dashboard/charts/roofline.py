"""The roofline: what each kernel reached over its intensity, below what memory and arithmetic allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, axes, log_scale


@dataclass(frozen=True, slots=True)
class RoofPoint:
    """A kernel: FLOP for each byte that it moves, GFLOP/s, and its row of the table."""

    name: str
    phase: str
    intensity: float
    gflop_per_s: float
    anchor: str


def roof_line(low: float, high: float, gflop_per_s: float, gb_per_s: float) -> tuple[tuple[float, float], ...]:
    """Returns (intensity, GFLOP/s) of the roof from one intensity to another: a slope, then a ceiling."""
    ridge = gflop_per_s / gb_per_s
    corner = [(ridge, gflop_per_s)] if low < ridge < high else []
    ends = [(at, min(gflop_per_s, at * gb_per_s)) for at in (low, high)]
    return (ends[0], *corner, ends[1])


def roofline_plot(
    points: Sequence[RoofPoint], gflop_per_s: float, gb_per_s: float, width: float, height: float = 300.0
) -> Markup:
    """Draws the roofline. Both axes are logarithmic, and a dot links to its kernel's row. None of `points` is at 0."""
    frame = Frame(width, height, left=60)
    x = log_scale([*(point.intensity for point in points), gflop_per_s / gb_per_s], *frame.x_range)
    y = log_scale([*(point.gflop_per_s for point in points), gflop_per_s], *frame.y_range)
    roof = [(x(at), y(max(value, y.low))) for at, value in roof_line(x.low, x.high, gflop_per_s, gb_per_s)]
    dots = [
        svg.link(
            f"#{point.anchor}",
            f"{point.name}: {fmt.significant(point.gflop_per_s)} GFLOP/s at {fmt.significant(point.intensity)} FLOP/B",
            svg.circle(x(point.intensity), y(point.gflop_per_s), 4, f"roof-dot phase-{point.phase}"),
        )
        for point in points
    ]
    title = f"{fmt.plural(len(points), 'kernel')} below {fmt.significant(gflop_per_s)} GFLOP/s and \
{fmt.significant(gb_per_s)} GB/s"
    parts = [axes(frame, x, y, "FLOP per byte moved", "GFLOP/s"), svg.path(roof, "roof"), *dots]
    return svg.picture(width, height, title, "roofline-plot", *parts, interactive=True)

"""The cost of less memory: bytes that a step needs against its arithmetic, one mark for each way to run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, axes, nice_scale

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WayPoint:
    """A way to run a step. `flops_ratio`: its arithmetic, by that without repeated kernels."""

    name: str
    needed_bytes: int
    flops_ratio: float
    is_chosen: bool


def ways_plot(ways: Sequence[WayPoint], width: float, height: float = 240.0) -> Markup:
    """Draws the ways, where lower left is better: a line joins those that no other beats. The full mark is the way that
    was chosen.
    """
    frame = Frame(width, height)
    x = nice_scale([way.needed_bytes / MIB for way in ways], *frame.x_range, from_zero=True)
    y = nice_scale([1.0, *(way.flops_ratio for way in ways)], *frame.y_range)
    placed = [(x(way.needed_bytes / MIB), y(way.flops_ratio), way) for way in ways]
    marks = [
        svg.circle(px, py, 6, f"mark {'best' if way.is_chosen else 'dominated'}", _title(way)) for px, py, way in placed
    ]
    line = svg.path([(x(way.needed_bytes / MIB), y(way.flops_ratio)) for way in worthwhile(ways)], "front")
    title = f"Arithmetic against memory: {fmt.plural(len(ways), 'way')} to run the step"
    return svg.picture(width, height, title, "ways-plot", axes(frame, x, y, "MiB in all", "× FLOPs"), line, *marks)


def worthwhile(ways: Sequence[WayPoint]) -> list[WayPoint]:
    """Returns the ways that no other beats on both axes, by falling memory."""
    front: list[WayPoint] = []
    for way in sorted(ways, key=lambda way: (way.needed_bytes, way.flops_ratio)):
        if not front or way.flops_ratio < front[-1].flops_ratio:
            front.append(way)
    return front[::-1]


def _title(way: WayPoint) -> str:
    suffix = " (taken)" if way.is_chosen else ""
    return f"{fmt.size(way.needed_bytes)}, {way.flops_ratio:.2f} × FLOPs{suffix}: {way.name}"

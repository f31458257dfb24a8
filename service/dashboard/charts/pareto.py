"""The trade-off picture: latency against memory, and latency against loss, dominated points hollow and faint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, LogScale, Scale, axes, log_scale, nice_scale

Axis = Literal["latency", "memory", "loss", "error", "energy", "bundle"]
AXIS_TITLES: dict[Axis, str] = {
    "latency": "ms per step",
    "memory": "planned MiB",
    "loss": "final loss",
    "error": "wrong samples, %",
    "energy": "mJ per step",
    "bundle": "bundle, MiB",
}


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """A configuration. Units: latency ms, memory MiB. `letter` is what the table beside the picture calls it."""

    letter: str
    label: str
    anchor: str
    latency: float | None
    memory: float | None
    loss: float | None
    dominated: bool
    error: float | None = None
    """Percent of samples that the trained model gets wrong: of accuracies too, less is better here."""
    energy: float | None = None
    bundle: float | None = None

    def value(self, axis: Axis) -> float | None:
        """Returns the coordinate on one axis."""
        coordinate: float | None = getattr(self, axis)
        return coordinate


def tradeoff_plot(
    points: Sequence[TradeoffPoint],
    x_axis: Axis,
    y_axis: Axis,
    width: float,
    height: float = 280.0,
    *,
    is_known: bool,
    is_log: bool = False,
) -> Markup:
    """Draws the points on two axes, where lower left is better. Points carry the letters of the table's rows. A step
    line joins those that none dominates if it `is_known` of each pair which is better: otherwise it would follow noise.
    """
    placed = [(point, point.value(x_axis), point.value(y_axis)) for point in points]
    plotted = [(point, px, py) for point, px, py in placed if px is not None and py is not None]
    frame = Frame(width, height)
    xs, ys = [px for _, px, _ in plotted], [py for _, _, py in plotted]
    x = log_scale(xs, *frame.x_range) if is_log else nice_scale(xs, *frame.x_range, from_zero=True)
    y = log_scale(ys, *frame.y_range) if is_log else nice_scale(ys, *frame.y_range, from_zero=True)
    front = [(px, py) for point, px, py in plotted if not point.dominated]
    parts = [axes(frame, x, y, AXIS_TITLES[x_axis], AXIS_TITLES[y_axis])]
    if is_known and len(front) > 1:
        parts.append(svg.path(_staircase(front, x, y), "front"))
    parts.extend(_labels([(point, x(px), y(py)) for point, px, py in plotted], frame))
    parts.extend(
        _mark(point, x(px), y(py)) for point, px, py in sorted(plotted, key=lambda entry: not entry[0].dominated)
    )
    front_size = sum(1 for point, _, _ in plotted if not point.dominated)
    count = f"{fmt.plural(len(plotted), 'configuration')}, {front_size} not dominated"
    title = f"{AXIS_TITLES[y_axis]} against {AXIS_TITLES[x_axis]}: {count}"
    return svg.picture(width, height, title, "tradeoff-plot", *parts, interactive=True)


def _staircase(
    front: Sequence[tuple[float, float]], x: Scale | LogScale, y: Scale | LogScale
) -> list[tuple[float, float]]:
    return [(x(px), y(py)) for px, py in front_of(front)]


def front_of(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the corners of a step line through those that are best on these two axes: with a third axis the rest
    would make the line go back up.
    """
    corners: list[tuple[float, float]] = []
    best = float("inf")
    for px, py in sorted(points):
        if py >= best:
            continue
        if corners:
            corners.append((px, corners[-1][1]))
        corners.append((px, py))
        best = py
    return corners


def _labels(placed: Sequence[tuple[TradeoffPoint, float, float]], frame: Frame) -> list[Markup]:
    # Best points first; a label that would cover a mark or another label is left out: the letters still lead to rows.
    occupied = [(px - 11, py - 9, px + 11, py + 9) for _, px, py in placed]
    labels: list[Markup] = []
    for point, px, py in sorted(placed, key=lambda entry: entry[0].dominated):
        extent = 6.2 * len(point.label)
        for left, anchor in ((px + 14, "start"), (px - 14 - extent, "end")):
            box = (left, py - 8, left + extent, py + 8)
            if left < frame.left or left + extent > frame.width or any(_overlap(box, other) for other in occupied):
                continue
            occupied.append(box)
            quiet = " quiet" if point.dominated else ""
            x = left if anchor == "start" else left + extent
            labels.append(svg.text(x, py + 4, point.label, f"direct-label{quiet}", anchor))
            break
    return labels


def _overlap(box: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _mark(point: TradeoffPoint, px: float, py: float) -> Markup:
    state = "dominated" if point.dominated else "best"
    return svg.link(
        f"#{point.anchor}",
        f"{point.letter}: {point.label}, {'dominated' if point.dominated else 'not dominated'}",
        svg.circle(px, py, 9.5, f"mark {state}"),
        svg.text(px, py + 3.6, point.letter, f"mark-text {state}", "middle"),
    )

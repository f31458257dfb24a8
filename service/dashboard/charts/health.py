"""A board's state over a run (small multiples), and how its last attempts ended (a strip of marks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

MAX_POINTS = 400


@dataclass(frozen=True, slots=True)
class StateSeries:
    """A sensor over a run: (seconds since the first sample, value)."""

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]
    kind: Literal["line", "dots"] = "line"


def state_plot(series: StateSeries, width: float, height: float = 150.0, *, lasted_s: float | None = None) -> Markup:
    """Draws a line over seconds, the axis fitted to the values. `lasted_s`: where time ends, if not with the last
    value.
    """
    frame = Frame(width, height, left=46, bottom=38)
    stride = -(-len(series.points) // MAX_POINTS) or 1
    points = series.points[::stride]
    x = Scale(0, max(lasted_s or points[-1][0], 1e-3), *frame.x_range)
    y = nice_scale([value for _, value in points], *frame.y_range, count=3)
    title = f"{series.title} during the run: from {fmt.significant(min(v for _, v in points))} to \
{fmt.significant(max(v for _, v in points))} {series.unit}"
    places = [(x(at), y(value)) for at, value in points]
    lines = (
        svg.path(places, "curve smooth")
        if series.kind == "line"
        else svg.group("points", *(svg.circle(*place, 2.2, "point") for place in places))
    )
    plot_axes = axes(frame, x, y, "seconds", f"{series.title}, {series.unit}", x_count=4, y_count=3)
    return svg.picture(width, height, title, "state-plot", plot_axes, lines)


@dataclass(frozen=True, slots=True)
class AttemptMark:
    """The end of an attempt: `good`, `bad`, `odd` (cancelled, inconclusive) or `open`."""

    tone: str
    label: str
    href: str


def attempt_strip(marks: Sequence[AttemptMark], width: float) -> Markup:
    """Draws the attempts from oldest to newest: full bars succeeded, crossed short ones failed, hollow ones ended
    otherwise.
    """
    pitch = min(16.0, width / max(len(marks), 1))
    bars = [_attempt(mark, index * pitch, max(pitch - 4, 2)) for index, mark in enumerate(marks)]
    good = sum(1 for mark in marks if mark.tone == "good")
    title = f"Last {fmt.plural(len(marks), 'attempt')}: {good} succeeded"
    return svg.picture(width, 30, title, "attempt-strip", *bars, interactive=True)


def _attempt(mark: AttemptMark, left: float, width: float) -> Markup:
    top, height = {"good": (3, 24), "bad": (15, 12)}.get(mark.tone, (9, 18))
    return svg.link(
        mark.href,
        mark.label,
        svg.rectangle(left, 0, width + 4, 30, "hit"),
        svg.rectangle(left + 1, top, width, height, f"attempt {mark.tone}"),
    )

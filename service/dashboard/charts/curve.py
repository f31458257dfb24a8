"""Loss curves: one run, or several laid over each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.dashboard import format as fmt
from service.dashboard.charts import svg
from service.dashboard.charts.scale import Frame, Scale, axes, nice_scale

MAX_POINTS = 600
WINDOW_PARTS = 24
MOST_DOTS = 60
LOSS = ("loss", "Loss")


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses in step order; None where the loss was not finite (the line breaks there)."""

    label: str
    losses: tuple[float | None, ...]


def loss_plot(
    curves: Sequence[Curve],
    width: float,
    height: float = 260.0,
    *,
    validations: Sequence[tuple[int, float]] = (),
    what: tuple[str, str] = LOSS,
) -> Markup:
    """Draws one line per run over step number; a single run also gets its smoothed line (mean of the nearest steps).

    `validations` are (step, loss) of a single run, each a dot on a line of their own. `what`: the title of y, and what
    the picture begins its own with, for values that are no losses.
    """
    single = len(curves) == 1
    frame = Frame(width, height)
    finite = [value for curve in curves for value in curve.losses if value is not None]
    finite += [loss for _, loss in validations]
    longest = max((len(curve.losses) for curve in curves), default=1)
    x = Scale(1, max(longest, 2), *frame.x_range)
    y = nice_scale(finite, *frame.y_range, from_zero=bool(finite) and min(finite) >= 0)
    parts = [axes(frame, x, y, "step", what[0])]
    for index, curve in enumerate(curves, start=1):
        drawn = _drawn(len(curve.losses))
        values = [curve.losses[place] for place in drawn]
        parts.extend(_strokes(drawn, values, x, y, "curve raw" if single else f"curve series-{index}"))
        if single:
            parts.extend(_strokes(drawn, smoothed(curve.losses, drawn), x, y, "curve smooth"))
    parts.extend(_validation_marks(validations, x, y))
    return svg.picture(width, height, _title(curves, validations, what), "loss-plot", *parts)


def _validation_marks(validations: Sequence[tuple[int, float]], x: Scale, y: Scale) -> list[Markup]:
    stride = -(-len(validations) // MAX_POINTS) if validations else 1
    sampled = [*validations[::stride], *validations[-1:]]
    points = [(x(step), y(loss)) for step, loss in dict(sampled).items()]
    line = [svg.path(points, "curve validation")] if len(points) > 1 else []
    return [
        *line,
        *(svg.circle(*point, 2.5, "curve validation dot") for point in points[:: 1 + len(points) // MOST_DOTS]),
    ]


def smoothed(losses: Sequence[float | None], places: Sequence[int]) -> list[float | None]:
    """Returns the mean over a 24th of the run on each side, at the steps `places`; None where the step itself is."""
    reach = max(1, len(losses) // WINDOW_PARTS)
    finite = [value for value in losses if value is not None]
    counts = [0, *itertools.accumulate(value is not None for value in losses)]
    means: list[float | None] = []
    for place in places:
        near = finite[counts[max(0, place - reach)] : counts[min(len(losses), place + reach + 1)]]
        means.append(sum(near) / len(near) if losses[place] is not None else None)
    return means


def _drawn(count: int) -> list[int]:
    """Returns the steps that are drawn: at most `MAX_POINTS`, and the last."""
    stride = -(-count // MAX_POINTS) if count else 1
    return sorted({*range(0, count, stride), count - 1} - {-1})


def _strokes(
    places: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale, class_name: str
) -> list[Markup]:
    strokes: list[Markup] = []
    stretch: list[tuple[float, float]] = []
    for place, value in zip(places, values, strict=True):
        if value is not None:
            stretch.append((x(place + 1), y(value)))
            continue
        strokes.extend(_stroke(stretch, class_name))
        stretch = []
    return [*strokes, *_stroke(stretch, class_name)]


def _stroke(stretch: list[tuple[float, float]], class_name: str) -> list[Markup]:
    if len(stretch) == 1:
        return [svg.circle(*stretch[0], 2.5, f"{class_name} dot")]
    return [svg.path(stretch, class_name)] if stretch else []


def _title(curves: Sequence[Curve], validations: Sequence[tuple[int, float]], what: tuple[str, str]) -> str:
    parts = []
    for curve in curves:
        finite = [value for value in curve.losses if value is not None]
        if finite:
            parts.append(f"{curve.label} from {fmt.significant(finite[0])} to {fmt.significant(finite[-1])}")
    if validations:
        first, last = (fmt.significant(validations[place][1]) for place in (0, -1))
        parts.append(f"validation from {first} to {last}")
    return f"{what[1]} by step: " + "; ".join(parts or [f"no finite {what[1].lower()}"])

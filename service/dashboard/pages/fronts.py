"""The trade-offs on each device of a group: a picture for each, over axes that readers choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from device_agents.figures.separate_runs import Standing
from service.base.problems import Invalid
from service.dashboard import format as fmt
from service.dashboard.charts import HALF_WIDTH, for_screens
from service.dashboard.charts.interactive import Chart, Line
from service.dashboard.charts.pareto import AXIS_TITLES, Axis, TradeoffPoint, front_of, tradeoff_plot
from service.dashboard.comparison import beaten_flags, dominated_flags
from service.dashboard.facts import RunFacts
from service.dashboard.parts import Figure, Filter

LABELS: tuple[tuple[Axis, str], ...] = (
    ("latency", "latency"),
    ("memory", "memory"),
    ("loss", "loss"),
    ("error", "wrong samples"),
    ("energy", "energy"),
    ("bundle", "bundle size"),
)
USUAL: tuple[Axis, Axis] = ("latency", "memory")
ROOM = 1.25
"""Beyond the last point, for its name."""
MOST_FRONTS = 6
"""Most pictures of a group; a device that is chosen in the filter is always shown."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Two of `LABELS`; on a logarithmic scale, if readers want that."""

    x: Axis = USUAL[0]
    y: Axis = USUAL[1]
    is_log: bool = False


def axes_of(x: str, y: str, scale: str) -> Axes:
    """Returns the axes that a query names, with the usual ones as defaults. Raises: Invalid if both are the same."""
    if x and x == y:
        others = ", ".join(name for name, _ in LABELS if name != x)
        raise Invalid(
            "query.value",
            f"{dict[str, str](LABELS)[y]} is across already",
            where="y",
            hint=f"choose another one for y; there are: {others}",
        )
    axes_by_name: dict[str, Axis] = {name: name for name, _ in LABELS}
    across = axes_by_name.get(x, _usual(USUAL, y))
    up = axes_by_name.get(y, _usual(USUAL[::-1], across))
    return Axes(across, up, scale == "log")


def _usual(axes: Sequence[Axis], but: str) -> Axis:
    return next(axis for axis in axes if axis != but)


def axis_filters(chosen: Axes) -> tuple[Filter, ...]:
    """Returns the choices for the form beside the page's filters."""
    scales = (("log", "logarithmic"),)
    return (
        Filter("x", "Across", chosen.x, LABELS),
        Filter("y", "Up", chosen.y, LABELS),
        Filter("scale", "Scale", "log" if chosen.is_log else "", scales),
    )


def fronts(
    name: str,
    like: Sequence[RunFacts],
    points: Sequence[TradeoffPoint],
    standings: Sequence[Standing | None],
    chosen: Axes,
) -> tuple[Figure, ...]:
    """Draws a picture for each device that has two configurations or more with both values. `name`: of their table."""
    by_device: dict[str, list[int]] = {}
    for place, entry in enumerate(like):
        by_device.setdefault(entry.device_name or entry.target, []).append(place)
    figures = [
        figure
        for number, (device, places) in enumerate(by_device.items(), start=1)
        if (figure := _front(f"{name}-front-{number}", device, places, like, points, standings, chosen))
    ]
    return tuple(figures[:MOST_FRONTS])


def _front(
    anchor: str,
    device: str,
    places: Sequence[int],
    like: Sequence[RunFacts],
    points: Sequence[TradeoffPoint],
    standings: Sequence[Standing | None],
    chosen: Axes,
) -> Figure | None:
    plotted = [
        place for place in places if all(_value(like[place], points[place], axis) for axis in (chosen.x, chosen.y))
    ]
    if len(plotted) < 2:
        return None
    judged, is_known = _judged(
        [replace(points[place], label=like[place].plan_name) for place in plotted],
        [standings[place] for place in plotted],
        chosen,
    )
    drawing = for_screens(
        lambda width: tradeoff_plot(judged, chosen.x, chosen.y, width, is_known=is_known, is_log=chosen.is_log),
        HALF_WIDTH,
    )
    best = sum(1 for point in judged if not point.dominated)
    note = f"{best} of {fmt.plural(len(judged), 'configuration')} not dominated."
    if not is_known:
        note += " Of some it is not known which is the faster one: no line joins them."
    return Figure(anchor, device, drawing, note, chart=_chart(judged, chosen, is_known))


def _value(entry: RunFacts, point: TradeoffPoint, axis: Axis) -> float | None:
    """Returns a value above 0, so that it has a place on either scale; None for a time or an energy of an emulated
    board.
    """
    if axis in ("latency", "energy") and not entry.timing_means_something:
        return None
    value = point.value(axis)
    return value if value is not None and value > 0 else None


def _judged(
    points: list[TradeoffPoint], standings: Sequence[Standing | None], chosen: Axes
) -> tuple[list[TradeoffPoint], bool]:
    """Marks the points that others dominate on these two axes; in time, a point dominates if it is likely faster. Also
    returns whether that is known of all points.
    """
    exact = [[point.value(axis) or 0.0 for axis in (chosen.x, chosen.y) if axis != "latency"] for point in points]
    is_timed = "latency" in (chosen.x, chosen.y)
    flags = beaten_flags(exact, standings) if is_timed else dominated_flags(exact)
    is_known = not is_timed or all(standing is not None for standing in standings)
    return [replace(point, dominated=flag) for point, flag in zip(points, flags, strict=True)], is_known


def _chart(points: Sequence[TradeoffPoint], chosen: Axes, is_known: bool) -> Chart:
    kinds = (("not dominated", "accent", False), ("dominated", "ink-2", True))
    lines = [
        Line(
            label,
            ink,
            kind="dots",
            points=tuple(_place(point, chosen) for point in some),
            labels=tuple(f"{point.letter} {point.label}" for point in some),
        )
        for label, ink, dominated in kinds
        if (some := [point for point in points if point.dominated == dominated])
    ]
    best = [_place(point, chosen) for point in points if not point.dominated]
    if is_known and len(best) > 1:
        lines.append(Line("front", "accent", points=tuple(front_of(best)), is_dashed=True))
    xs, ys = zip(*(_place(point, chosen) for point in points), strict=True)
    room = (None, None) if chosen.is_log else ((0.0, ROOM * max(xs)), (0.0, ROOM * max(ys)))
    return Chart(
        tuple(lines),
        AXIS_TITLES[chosen.x],
        AXIS_TITLES[chosen.y],
        is_log=(chosen.is_log, chosen.is_log),
        height=280,
        range_x=room[0],
        range_y=room[1],
    )


def _place(point: TradeoffPoint, chosen: Axes) -> tuple[float, float]:
    return point.value(chosen.x) or 0.0, point.value(chosen.y) or 0.0

"""Charts as geometry: what is drawn where, read back from the SVG."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.dashboard.charts import curve
from service.dashboard.charts.arena import ArenaPlan, ArenaValue, arena_picture, live_bytes, stretches
from service.dashboard.charts.curve import MAX_POINTS as MAX_DRAWN
from service.dashboard.charts.curve import WINDOW_PARTS, Curve, loss_plot, smoothed
from service.dashboard.charts.health import AttemptMark, StateSeries, attempt_strip, state_plot
from service.dashboard.charts.intervals import Interval, interval_plot
from service.dashboard.charts.kernels import KernelBar, kernel_bars, phase_bar, phase_totals
from service.dashboard.charts.pareto import TradeoffPoint, tradeoff_plot
from service.dashboard.charts.scale import Scale, nice_scale, tick_labels
from service.dashboard.charts.steps import MAX_POINTS, StepSeries, outliers_above, step_plot
from service.dashboard.charts.ways import WayPoint, ways_plot

NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(text: str, tag: str, class_name: str) -> list[ElementTree.Element]:
    """Elements of a class in a picture that must be well-formed."""
    root = ElementTree.fromstring(text)
    return [e for e in root.iter(NAMESPACE + tag) if class_name in e.get("class", "").split()]


def figures(element: ElementTree.Element, *names: str) -> list[float]:
    """Some attributes as numbers."""
    return [float(element.get(name, "nan")) for name in names]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_a_scale_covers_its_values_with_round_ends(values: list[float]) -> None:
    scale = nice_scale(values, 0, 100)
    room = 1e-9 * (scale.high - scale.low)
    assert scale.low - room <= min(values) <= max(values) <= scale.high + room
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 13
    assert len(set(tick_labels(ticks))) == len(ticks)


def test_a_scale_maps_ends_to_pixels() -> None:
    scale = Scale(10, 20, 200, 100)
    assert scale(10) == 200
    assert scale(20) == 100
    assert scale(15) == 150


def step_series(values: list[float]) -> StepSeries:
    """A series of one block."""
    return StepSeries(tuple(values), (len(values),), 10.0, (9.5, 10.5), 11.0)


def test_every_step_is_a_point_and_higher_is_slower() -> None:
    picture = step_plot(step_series([9.0, 10.0, 11.0]), 500)
    points = drawn(picture, "circle", "point")
    (x1, y1), (x2, y2), (x3, y3) = (figures(point, "cx", "cy") for point in points)
    assert x1 < x2 < x3
    assert y1 > y2 > y3
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.02)


def test_a_hiccup_is_hollow_at_the_edge_and_counted() -> None:
    series = step_series([10.0] * 50 + [900.0])
    picture = step_plot(series, 500)
    assert outliers_above(series) == 1
    assert len(drawn(picture, "circle", "beyond")) == 1
    assert len(drawn(picture, "circle", "point")) == 50


def test_a_long_run_keeps_its_extremes() -> None:
    values = [10 + math.sin(i / 50) for i in range(20_000)]
    values[7777], values[12_345] = 13.5, 7.0
    picture = step_plot(step_series(values), 1000)
    points = drawn(picture, "circle", "point")
    assert len(points) <= MAX_POINTS + 2
    assert "step 7778: 13.5 ms" in picture
    assert "step 12346: 7.00 ms" in picture


def test_a_loss_that_is_not_finite_breaks_the_line() -> None:
    picture = loss_plot([Curve("loss", (3.0, 2.0, None, 1.0, 0.5))], 500)
    assert len(drawn(picture, "path", "raw")) == 2
    assert smoothed((3.0, 2.0, None, 1.0), range(4)) == [2.5, 2.5, None, 1.0]


def test_a_long_curve_is_smoothed_where_it_is_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was smoothed at each of 100,000 steps, over 8,000 neighbours: for 38 seconds."""
    losses = [None if step % 97 == 5 else 1 / (1 + step / 100) for step in range(10_000)]
    drawn_at = [0, 5, 417, 5000, 9999]
    reach = len(losses) // WINDOW_PARTS
    for place, mean in zip(drawn_at, smoothed(losses, drawn_at), strict=True):
        near = [value for value in losses[max(0, place - reach) : place + reach + 1] if value is not None]
        assert mean == (None if losses[place] is None else pytest.approx(sum(near) / len(near)))
    asked: list[Sequence[int]] = []

    def counted(values: Sequence[float | None], places: Sequence[int]) -> list[float | None]:
        asked.append(places)
        return smoothed(values, places)

    monkeypatch.setattr(curve, "smoothed", counted)
    loss_plot([Curve("loss", (1.0,) * 100_000)], 500)
    assert len(asked) == 1
    assert len(asked[0]) <= MAX_DRAWN + 1


def test_several_losses_differ_by_class() -> None:
    picture = loss_plot([Curve("A", (2.0, 1.0)), Curve("B", (3.0, 1.0))], 500)
    assert len(drawn(picture, "path", "series-1")) == len(drawn(picture, "path", "series-2")) == 1


def test_bars_are_as_long_as_their_times_and_lead_to_their_rows() -> None:
    bars = [KernelBar(f"k{i}", "forward", 10.0 * (i + 1), f"kernel-{i}") for i in range(30)]
    picture = kernel_bars(bars, 800)
    drawn_bars = drawn(picture, "rect", "phase-forward")
    widths = [figures(bar, "width")[0] for bar in drawn_bars]
    assert len(widths) == 20
    assert widths == sorted(widths, reverse=True)
    assert widths[0] / widths[10] == pytest.approx(300 / 200, rel=1e-3)
    assert re.findall(r'href="#(kernel-\d+)"', picture)[:3] == ["kernel-29", "kernel-28", "kernel-27"]


def test_phases_share_the_bar_by_time() -> None:
    bars = [KernelBar("a", "forward", 30, "a"), KernelBar("b", "backward", 60, "b"), KernelBar("c", "update", 10, "c")]
    assert phase_totals(bars) == {"forward": 30, "backward": 60, "update": 10}
    picture = phase_bar(bars, 500)
    widths = [figures(drawn(picture, "rect", f"phase-{p}")[0], "width")[0] for p in ("forward", "backward", "update")]
    assert widths == pytest.approx([148, 298, 48])


PLAN = ArenaPlan(
    arena_bytes=4096,
    values=(ArenaValue("a", 0, 1024, 0, 3), ArenaValue("b", 1024, 2048, 1, 2), ArenaValue("c", 1024, 3072, 3, 3)),
    phases=("forward", "forward", "backward", "update"),
)


def test_live_bytes_at_each_call() -> None:
    assert live_bytes(PLAN) == (1024, 3072, 3072, 4096)
    assert stretches(PLAN.phases) == (("forward", 0, 2), ("backward", 2, 3), ("update", 3, 4))


def test_boxes_do_not_overlap_where_values_do_not() -> None:
    boxes = [figures(e, "x", "y", "width", "height") for e in drawn(arena_picture(PLAN, 600), "rect", "value")]
    assert len(boxes) == 3
    for i, (x, y, w, h) in enumerate(boxes):
        for other_x, other_y, other_w, other_h in boxes[i + 1 :]:
            apart = x + w <= other_x + 0.02 or other_x + other_w <= x + 0.02
            assert apart or y + h <= other_y + 0.02 or other_y + other_h <= y + 0.02
    heights = [box[3] for box in boxes]
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.01)
    assert heights[2] / heights[0] == pytest.approx(3, rel=0.01)


def test_the_tradeoff_picture_marks_best_and_dominated() -> None:
    points = [
        TradeoffPoint("A", "fast", "row-1", 1.0, 5.0, None, False),
        TradeoffPoint("B", "small", "row-2", 5.0, 1.0, None, False),
        TradeoffPoint("C", "neither", "row-3", 6.0, 6.0, None, True),
    ]
    picture = tradeoff_plot(points, "latency", "memory", 600, is_known=True)
    assert len(drawn(picture, "circle", "best")) == 2
    assert len(drawn(picture, "circle", "dominated")) == 1
    assert "neither, dominated" in picture
    (x1, y1), (x2, y2) = (figures(mark, "cx", "cy") for mark in drawn(picture, "circle", "best"))
    assert (x1 < x2) == (y1 < y2)


def test_intervals_and_states_are_to_scale() -> None:
    picture = interval_plot([Interval("A", 10, 8, 12), Interval("B", 20, 19, 21)], 500)
    first, second = (figures(e, "x", "width") for e in drawn(picture, "rect", "whisker"))
    assert first[1] == pytest.approx(2 * second[1], rel=0.01)
    assert first[0] < second[0]
    state = state_plot(StateSeries("Temperature", "°C", ((0.0, 40.0), (1.0, 50.0))), 340)
    assert "from 40 to 50 °C" in state
    strip = attempt_strip([AttemptMark("good", "ok", "/a"), AttemptMark("bad", "no", "/b")], 300)
    heights = [figures(e, "height")[0] for e in drawn(strip, "rect", "attempt")]
    assert heights[0] > heights[1]


def test_names_in_charts_are_text() -> None:
    name = "<b>&\"'"
    pictures = (
        kernel_bars([KernelBar(name, "forward", 1.0, "kernel-0")], 800),
        arena_picture(ArenaPlan(64, (ArenaValue(name, 0, 64, 0, 0),), ("forward",)), 600),
        tradeoff_plot([TradeoffPoint("A", name, "row", 1, 1, 1, False)], "latency", "memory", 500, is_known=True),
    )
    for picture in pictures:
        assert "<b>" not in picture
        ElementTree.fromstring(picture)


@pytest.mark.parametrize("width", [340.0, 566.0, 1198.0])
def test_nothing_is_drawn_outside_the_picture(width: float) -> None:
    pictures = [
        step_plot(step_series([9.0, 10.0, 500.0]), width),
        loss_plot([Curve("loss", (3.0, 2.0, 1.0))], width),
        kernel_bars([KernelBar("a-very-long-kernel-name" * 4, "backward", 12345.6, "k")], width),
        arena_picture(PLAN, width),
        interval_plot([Interval("A", 10, 8, 12)], width),
    ]
    for picture in pictures:
        for element in ElementTree.fromstring(picture).iter(NAMESPACE + "rect"):
            x, across = figures(element, "x", "width")
            assert x >= -0.01
            assert x + across <= width + 0.01


def test_less_memory_is_further_left_and_costs_more() -> None:
    ways = [
        WayPoint("whole", 4 << 20, 1.0, True),
        WayPoint("some again", 3 << 20, 1.1, False),
        WayPoint("<all> again", 2 << 20, 1.3, False),
    ]
    picture = ways_plot(ways, 600)
    assert len(drawn(picture, "circle", "best")) == 1
    marks = [*drawn(picture, "circle", "best"), *drawn(picture, "circle", "dominated")]
    (x1, y1), (x2, y2), (x3, y3) = (figures(mark, "cx", "cy") for mark in marks)
    assert x1 > x2 > x3
    assert y1 > y2 > y3
    assert "<all>" not in picture

"""Whatever is stored, a page is a page: numbers that no step computes are drawn and written all the same."""

from __future__ import annotations

import math

import pytest

from service.dashboard import format as fmt
from service.dashboard.charts.scale import nice_scale, tick_labels

HUGE = [1e308, -1e308, 1.7e308, 5e-324, -1.7976931348623157e308, 0.0, 1e154]


@pytest.mark.parametrize("values", [HUGE, HUGE[:1], HUGE[:2], HUGE[3:4], [1e308] * 3, [-1e300, 1e300]])
def test_a_scale_of_any_numbers_has_places_for_them(values: list[float]) -> None:
    scale = nice_scale(values, 10.0, 110.0)
    assert all(math.isfinite(scale(value)) for value in values)
    assert all(map(math.isfinite, scale.ticks()))
    assert all(len(label) < 40 for label in tick_labels(scale.ticks()))


@pytest.mark.parametrize("value", HUGE)
def test_a_figure_of_any_size_fits_a_line(value: float) -> None:
    for written in (fmt.number(value, 4), fmt.loss(value), fmt.rounded(value), fmt.significant(value)):
        assert len(written) < 400
    assert len(fmt.loss(1e308)) < 12
    assert len(fmt.number(1e308, 4)) < 12

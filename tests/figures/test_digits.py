"""How times and ratios are written: the unit that fits, and no digit that means nothing."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from device_agents.figures.digits import TIME_UNITS, faster_or_slower, ratio_span, step_time, time_span
from device_agents.figures.intervals import Interval


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0.4705, "470 ns"),
        (1.0, "1.00 us"),
        (97.06, "97.1 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),
        (9_996.0, "10.0 ms"),
        (42_345.0, "42.3 ms"),
        (471_200.0, "471 ms"),
        (1_200_000.0, "1.20 s"),
        (1_234_567_890.0, "1,230 s"),
        (0.0, "0 ns"),
    ],
)
def test_a_time_has_the_unit_that_fits_and_three_digits_where_nothing_is_known_of_it(us: float, said: str) -> None:
    assert step_time(us) == said


@pytest.mark.parametrize(
    ("us", "low", "high", "said", "span"),
    [
        (42_345.0, 42_100.0, 42_600.0, "42.3 ms", "42.1 to 42.6 ms"),
        (42_345.0, 42_340.0, 42_350.0, "42.3 ms", "42.340 to 42.350 ms"),
        (42_345.0, 30_000.0, 60_000.0, "42.3 ms", "30.0 to 60.0 ms"),
        (153_800.0, 128_000.0, 181_000.0, "154 ms", "128 to 181 ms"),
        (123.456789, 123.456788, 123.456790, "123 us", "123.457 to 123.457 us"),
        (999.9, 990.0, 1010.0, "1.00 ms", "0.990 to 1.010 ms"),
        (5.0, 5.0, 5.0, "5.00 us", "5.00000 to 5.00000 us"),
    ],
)
def test_a_time_is_written_alike_everywhere_and_its_interval_with_the_digits_that_it_bears(
    us: float, low: float, high: float, said: str, span: str
) -> None:
    assert step_time(us) == said
    assert time_span(us, Interval(low, high)) == span


@example(us=0.99609375, half=0.5)
@given(us=st.floats(1e-3, 1e9), half=st.floats(1e-5, 0.5))
def test_the_last_digit_of_an_interval_is_a_third_of_its_width_or_less(us: float, half: float) -> None:
    interval = Interval(us * (1 - half), us * (1 + half))
    low, _, high, unit = time_span(us, interval).split(" ")
    size = 10.0 ** dict(TIME_UNITS)[unit]
    width = interval.high - interval.low
    for written, end in ((low, interval.low), (high, interval.high)):
        assert abs(float(written.replace(",", "")) * size - end) <= max(width / 6, us * 5e-6) * 1.001


def test_a_ratio_has_two_to_four_digits_after_the_point() -> None:
    assert faster_or_slower(1.0312, Interval(1.0261, 1.0359)) == "1.031× slower (1.026 to 1.036×)"
    assert faster_or_slower(0.5, Interval(0.4, 0.625)) == "2.00× faster (1.60 to 2.50×)"
    assert ratio_span(Interval(1.0, 1.0)) == "1.0000 to 1.0000×"

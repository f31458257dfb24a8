"""Intervals against SciPy's distributions, and against every way in which chance could have fallen."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from device_agents.figures.intervals import around_median, by_signed_ranks, student, walsh


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99, 0.999])
def test_students_distribution_is_scipys(confidence: float) -> None:
    for freedom in (1, 2, 3, 4, 5, 8, 13, 30, 101):
        expected = stats.t.ppf((1 + confidence) / 2, freedom)
        assert student(confidence, freedom) == pytest.approx(expected, rel=1e-6)


def test_signed_ranks_leave_out_what_scipys_test_refuses() -> None:
    """A middle is in the interval just where the test of the values about it has a larger p."""
    random = np.random.default_rng(1)
    for count, confidence in ((6, 0.95), (9, 0.99), (12, 0.998), (20, 0.95)):
        values = random.normal(0.3, 1.0, count).tolist()
        interval = by_signed_ranks(values, confidence)
        assert interval is not None
        for edge, inwards in ((interval.low, 1e-9), (interval.high, -1e-9)):
            inside, outside = ([value - edge - step for value in values] for step in (inwards, -inwards))
            assert stats.wilcoxon(inside, method="exact").pvalue > 1 - confidence
            assert stats.wilcoxon(outside, method="exact").pvalue <= 1 - confidence


def test_equal_things_are_called_different_as_seldom_as_is_said_whatever_the_noise() -> None:
    """Over all choices of signs, which are equally probable where there is no difference: two wild values too."""
    sizes = [0.1, 0.2, 0.3, 0.7, 1.1, 1.3, 2.9, 4.0, 300.0, 5000.0]
    alarms = 0
    for signs in product((-1, 1), repeat=len(sizes)):
        interval = by_signed_ranks([sign * size for sign, size in zip(signs, sizes, strict=True)], 0.99)
        assert interval is not None
        alarms += not interval.has(0.0)
    assert 0 < alarms <= 0.01 * 2 ** len(sizes)


def test_too_few_values_have_no_interval() -> None:
    assert by_signed_ranks([1.0] * 7, 0.99) is None
    assert by_signed_ranks([1.0] * 8, 0.99) == (1.0, 1.0)
    assert around_median([1.0], 0.95) is None


@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("count", [5, 8, 20])
def test_the_interval_around_a_median_holds_the_middle(noise: str, count: int) -> None:
    random = np.random.default_rng(count)
    draws = {
        "normal": random.normal(0.0, 1.0, (2000, count)),
        "heavy": random.standard_t(3, (2000, count)),
        "skewed": np.log(2) - random.exponential(1.0, (2000, count)),
    }[noise]
    held = [around_median(values, 0.95).has(0.0) for values in draws.tolist()]  # type: ignore[union-attr]
    assert np.mean(held) >= 0.94


def test_means_of_pairs() -> None:
    assert walsh([3.0, 1.0]) == [1.0, 2.0, 3.0]

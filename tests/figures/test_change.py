"""Where histories changed for good: what noise makes of them, and what a real change does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_agents.figures.change import LEAST_EACH, LEAST_FREEDOM, Change, change_in, may_have_changed
from device_agents.figures.separate_runs import Variation
from tests.sample import sample

Noise = NDArray[np.float64]


def history(random: np.random.Generator, days: int, kind: str, deviation: float = 0.008) -> Noise:
    """Logarithms of times: independent, heavy-tailed, lingering, in two modes, with bursts."""
    if kind == "heavy tails":
        return deviation * random.standard_t(3, days)
    if kind == "lingering":
        noise = deviation * random.standard_normal(days)
        for day in range(1, days):
            noise[day] += 0.3 * noise[day - 1]
        return noise
    if kind == "two modes":
        return 0.3 * deviation * random.standard_normal(days) + 0.03 * (random.random(days) < 0.5)
    bursts = np.where(random.random(days) < 1 / 7, random.exponential(0.05, days), 0.0) if kind == "bursts" else 0.0
    return deviation * random.standard_normal(days) + bursts


def as_it_came(logs: Noise) -> tuple[int, Change] | None:
    """What is found first, after how many days."""
    times = [float(us) for us in 1000.0 * np.exp(logs)]
    for days in range(LEAST_FREEDOM, len(times) + 1):
        found = change_in(times[:days])
        if found is not None:
            return days, found
    return None


@pytest.mark.parametrize(
    "kind", sample(["independent", "heavy tails", "lingering", "two modes", "bursts"], {"lingering", "bursts"})
)
def test_noise_is_no_change_in_a_season(kind: str) -> None:
    alarms = sum(as_it_came(history(np.random.default_rng(seed), 90, kind)) is not None for seed in range(40))
    assert alarms <= 1


@pytest.mark.parametrize(
    ("change", "kind"),
    [(0.05, "independent"), (-0.05, "independent"), (0.05, "lingering"), (0.1, "two modes"), (0.2, "bursts")],
)
def test_a_change_is_found_within_a_week_and_where_it_was(change: float, kind: str) -> None:
    missed, off, covered = 0, 0, 0
    for seed in range(40):
        logs = history(np.random.default_rng(seed), 37, kind)
        logs[30:] += np.log1p(change)
        found = as_it_came(logs)
        if found is None or found[0] <= 30:
            missed += 1
            continue
        assert found[1].is_slower == (change > 0)
        off += abs(found[1].at - 30) > 1
        covered += found[1].interval.has(1 + change)
    assert missed <= (1 if kind == "independent" else 6)
    assert off <= 2
    assert covered >= 30


def test_what_is_below_the_noise_is_none() -> None:
    logs = history(np.random.default_rng(1), 400, "independent", 0.02)
    logs[200:] += 0.01
    assert as_it_came(logs) is None


def test_one_bad_day_is_none_and_two_call_for_more() -> None:
    quiet = [1000.0, 1002.0, 999.0, 1001.0, 998.0, 1003.0, 1000.0, 999.0, 1001.0, 1002.0]
    assert change_in([*quiet, 1300.0]) is None
    assert may_have_changed([*quiet, 1300.0, 1290.0])
    assert not may_have_changed(quiet)
    assert change_in([*quiet, 1300.0, *quiet]) is None
    assert not may_have_changed([*quiet, 1300.0, *quiet])


@given(st.lists(st.floats(1e-3, 1e9), max_size=60))
def test_any_times_have_an_answer(times: list[float]) -> None:
    found = change_in(times)
    may_have_changed(times)
    if found is not None:
        assert LEAST_EACH <= found.at <= len(times) - LEAST_EACH
        assert found.interval.low <= found.ratio <= found.interval.high
        assert not found.interval.has(1.0)


def test_equal_times_are_no_change_and_a_step_of_them_is() -> None:
    assert change_in([1000.0] * 50) is None
    found = change_in([1000.0] * 10 + [1010.0] * 5)
    assert found is not None
    assert (found.at, found.words[:6]) == (10, "1.0100")


def test_a_short_stretch_is_judged_by_the_noise_of_older_ones() -> None:
    back = [1100.0, 1101.0, 1099.0, 1102.0, 1098.0, 1000.0, 1001.0, 999.0, 1002.0, 998.0]
    assert change_in(back) is None, "ten runs show no noise"
    found = change_in(back, Variation(0.002, 9))
    assert found is not None
    assert (found.at, found.is_slower) == (5, False)
    assert change_in(back, Variation(0.2, 9)) is None, "on a device whose runs vary by a fifth"

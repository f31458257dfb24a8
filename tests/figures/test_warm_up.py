"""Warm-up that was put there is found, noise is not called warm-up."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from device_agents.figures.warm_up import LEAST_DEVIATION, LEAST_SETTLED, PRICE, QUIET_FACTOR, settled_from

REPEATS = 200


def found(count: int, slower: Sequence[float], noise: float, *, disturbed: bool = False) -> list[int]:
    """What is called warm-up in so many processes whose first steps take that many times as long."""
    random = np.random.default_rng(count)
    lengths = []
    for _ in range(REPEATS):
        times = 5000.0 * np.exp(random.normal(0.0, noise, count))
        times[: len(slower)] *= slower
        if disturbed:
            times[random.integers(len(slower) + 1, count)] *= 1.5
        lengths.append(settled_from(times.tolist(), most=count // 2))
    return lengths


@pytest.mark.parametrize("count", [12, 20, 60])
@pytest.mark.parametrize("disturbed", [False, True])
def test_slow_first_steps_are_left_out(count: int, disturbed: bool) -> None:
    lengths = found(count, [3.0, 1.2], 0.005, disturbed=disturbed)
    assert np.mean([2 <= length <= 4 for length in lengths]) > 0.95


@pytest.mark.parametrize("count", [8, 20, 60])
@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_steps_at_one_pace_are_kept(count: int, noise: float) -> None:
    assert np.mean([length == 0 for length in found(count, [], noise)]) > 0.9


def test_a_ramp_is_left_out_step_by_step() -> None:
    assert np.mean([length >= 2 for length in found(30, [1.3, 1.2, 1.1, 1.05], 0.005)]) > 0.95


def test_what_slows_down_is_no_warm_up_and_enough_is_left() -> None:
    assert settled_from([100.0] * 5 + [150.0] * 15, most=10) == 0
    assert settled_from([300.0] * 4, most=4) == 0
    falling = [1000.0 / (step + 1) for step in range(12)]
    assert settled_from(falling, most=12) <= len(falling) - LEAST_SETTLED


def test_steps_that_never_settle_reach_the_most() -> None:
    assert settled_from([2.0**-step for step in range(20)], most=6) == 6


def by_definition(step_us: Sequence[float], most: int) -> int:
    """Each stretch summed about its own median, from the first step anew for each place of a change."""

    def spread(values: Sequence[float]) -> float:
        return math.fsum(abs(value - statistics.median(values)) for value in values)

    def change(logs: Sequence[float], most: int) -> int:
        steps = sorted(abs(late - early) for early, late in itertools.pairwise(logs))
        price = PRICE * max(QUIET_FACTOR * steps[len(steps) // 4], LEAST_DEVIATION) * math.log(len(logs))
        gains = [
            (spread(logs) - spread(logs[:at]) - spread(logs[at:]), -at)
            for at in range(1, most + 1)
            if statistics.median(logs[:at]) > statistics.median(logs[at:])
        ]
        gain, at = max(gains, default=(0.0, 0))
        return -at if gain > price else 0

    logs, done = [math.log(us) for us in step_us], 0
    while done < most and len(logs) - done > LEAST_SETTLED:
        more = change(logs[done:], min(most - done, len(logs) - done - LEAST_SETTLED))
        if not more:
            break
        done += more
    return done


@pytest.mark.parametrize("count", [6, 12, 26, 80])
def test_it_is_the_change_that_saves_most(count: int) -> None:
    random = np.random.default_rng(count)
    for number in range(60):
        times = 5000.0 * np.exp(random.normal(0.0, 0.01, count))
        times[: random.integers(0, count // 2)] *= random.uniform(0.9, 1.6)
        times[: random.integers(0, 3)] *= 1.3
        assert settled_from(times.tolist(), most=count // 2) == by_definition(times.tolist(), count // 2), number
    assert settled_from([7.0] * count, most=count // 2) == 0

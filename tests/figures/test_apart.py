"""Two runs that were not made together: what a device's own variation leaves to be said."""

from __future__ import annotations

import math

import numpy as np
import pytest

from device_agents.figures.intervals import Interval
from device_agents.figures.one_run import LEAST_BLOCKS, run_interval
from device_agents.figures.separate_runs import (
    LEAST_FREEDOM,
    Run,
    Variation,
    ratio_interval,
    ratio_text,
    silence,
    variation_of,
)


def run(random: np.random.Generator, between: float, within: float, blocks: int = LEAST_BLOCKS) -> list[float]:
    """Block medians of one run: a shift of its own, and its blocks' noise."""
    shift = random.normal(0.0, between)
    return [5000.0 * math.exp(shift + random.normal(0.0, within)) for _ in range(blocks)]


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.002), (0.003, 0.01), (0.05, 0.05)])
@pytest.mark.parametrize("canaries", [6, 20])
def test_runs_of_one_bundle_are_seldom_called_different(between: float, within: float, canaries: int) -> None:
    random = np.random.default_rng(canaries)
    alarms = 0
    for _ in range(200):
        known = variation_of([[float(np.median(run(random, between, within))) for _ in range(canaries)]])
        interval = ratio_interval(*(Run(run(random, between, within), known) for _ in range(2)))
        assert interval is not None
        alarms += not interval.has(1.0)
    assert alarms <= 0.03 * 200


def test_a_difference_well_beyond_the_variation_is_found() -> None:
    random = np.random.default_rng(0)
    known = variation_of([[float(np.median(run(random, 0.01, 0.003))) for _ in range(20)]])
    base, other = run(random, 0.01, 0.003), [1.2 * us for us in run(random, 0.01, 0.003)]
    interval = ratio_interval(Run(base, known), Run(other, known))
    assert interval is not None
    assert 1.0 < interval.low < 1.2 < interval.high


def test_variation_is_that_of_each_kind_about_its_own_middle() -> None:
    kinds = [[100.0, 110.0], [5000.0, 5500.0, 5250.0], [7.0]]
    expected = sum(sum((math.log(us) - np.mean(np.log(kind))) ** 2 for us in kind) for kind in kinds) / 3
    found = variation_of(kinds)
    assert found.freedom == 3
    assert found.deviation == pytest.approx(math.sqrt(expected))
    assert not found.is_known
    assert variation_of([]) == Variation(0.0, 0)


def test_nothing_is_said_of_too_few_blocks_or_of_a_device_that_is_not_known() -> None:
    random = np.random.default_rng(1)
    known, new = Variation(0.01, LEAST_FREEDOM), Variation(0.01, LEAST_FREEDOM - 1)
    whole, short = run(random, 0.0, 0.01), run(random, 0.0, 0.01, LEAST_BLOCKS - 1)
    assert ratio_interval(Run(whole, known), Run(whole, known)) is not None
    for other in (Run(short, known), Run(whole, new)):
        assert ratio_interval(Run(whole, known), other) is None
        assert ratio_interval(other, Run(whole, known)) is None
    assert "4 of the 5 blocks" in silence(Run(short, known))
    assert silence(Run(whole, new)).endswith("make one of its profile runs 1× again")
    assert silence(Run(whole, known)) == ""


def test_a_run_that_varies_more_than_its_device_widens_the_interval() -> None:
    known = Variation(0.005, 20)
    calm = Run([5000.0, 5001.0, 4999.0, 5000.0, 5000.0], known)
    wild = Run([4000.0, 6000.0, 5000.0, 4500.0, 5500.0], known)
    near, far = ratio_interval(calm, calm), ratio_interval(calm, wild)
    assert near is not None
    assert far is not None
    assert far.high - far.low > 5 * (near.high - near.low)


def test_two_devices_bring_each_its_own_variation() -> None:
    blocks = [5000.0, 5001.0, 4999.0, 5000.0, 5000.0]
    calm, wild = Run(blocks, Variation(0.001, 50)), Run(blocks, Variation(0.05, 50))
    same, both = ratio_interval(calm, calm), ratio_interval(calm, wild)
    assert same is not None
    assert both is not None
    assert both.high > 1.1 > 1.01 > same.high


def test_what_is_said_names_the_faster_one_and_the_interval_of_the_ratio() -> None:
    assert ratio_text(0.5, Interval(0.4, 0.625)) == "likely 2.00× faster (1.60 to 2.50×)"
    assert ratio_text(1.5, Interval(1.2, 1.9)) == "likely 1.50× slower (1.20 to 1.90×)"
    assert ratio_text(1.02, Interval(0.97, 1.08)) == "cannot tell (0.97 to 1.08×)"
    assert ratio_text(1.02, None) == "cannot tell"


def test_a_run_has_an_interval_from_five_blocks_on() -> None:
    blocks = [5000.0, 5100.0, 4900.0, 5050.0, 4950.0]
    found = run_interval(blocks)
    assert found is not None
    assert found.low < min(blocks) < 5000.0 < max(blocks) < found.high, "five blocks' least and greatest are too near"
    assert found.low * found.high == pytest.approx(5000.0**2)
    assert run_interval(blocks[:4]) is None
    assert run_interval([]) is None

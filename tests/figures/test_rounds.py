"""Rounds in which bundles take turns: what cancels, what is found, what is called different though it is equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from device_agents.figures import rounds as turns
from device_agents.figures.rounds import LOOKS, Round
from tests.sample import thinned

Clock = Callable[[float], float]
"""The logarithm by which everything is slower at a moment (in processes since the start)."""


def played(
    count: int, factors: tuple[float, ...], *, seed: int, clock: Clock = lambda _: 0.0, noise: float = 0.005
) -> list[Round]:
    """Rounds of bundles that take 5 ms times their factor."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        order = turns.order_of(number, bundles=len(factors), seed=seed)
        began = number * len(order)
        found.append(
            Round(
                order,
                tuple(
                    5000.0 * factors[which] * math.exp(clock(began + place) + random.normal(0.0, noise))
                    for place, which in enumerate(order)
                ),
            )
        )
    return found


def test_each_order_goes_there_and_back_and_chance_decides_who_is_first() -> None:
    orders = [turns.order_of(number, bundles=2, seed=5) for number in range(200)]
    assert set(orders) == {(0, 1, 1, 0), (1, 0, 0, 1)}
    assert 60 < orders.count((0, 1, 1, 0)) < 140
    assert len({turns.order_of(number, bundles=3, seed=5) for number in range(200)}) == 6
    assert orders == [turns.order_of(number, bundles=2, seed=5) for number in range(200)]


def test_what_slows_all_of_a_round_or_one_process_of_it_is_no_difference() -> None:
    rising = played(24, (1.0, 1.02), seed=1, clock=lambda at: 0.1 * (at // 4), noise=0.0)
    assert turns.differences(rising, 1) == pytest.approx([math.log(1.02)] * 24)
    hit = played(24, (1.0, 1.02), seed=1, clock=lambda at: 3.0 * (at % 4 == 2), noise=0.0)
    assert turns.differences(hit, 1) == pytest.approx([math.log(1.02)] * 24)
    (found,) = turns.ratios(hit, bundles=2)
    assert found.ratio == pytest.approx(1.02)
    assert found.differs


def test_a_steady_rise_within_rounds_says_nothing_for_either_side() -> None:
    rising = played(400, (1.0, 1.0), seed=1, clock=lambda at: 0.01 * at, noise=0.0)
    found = turns.differences(rising, 1)
    assert np.abs(found) == pytest.approx([0.01] * 400)
    assert abs(np.mean(found)) < 0.0015


def decided(factor: float, seed: int, clock: Clock = lambda _: 0.0, noise: float = 0.005) -> turns.Ratio:
    """What a job says at the look at which it may end."""
    whole = played(LOOKS[-1], (1.0, factor), seed=seed, clock=clock, noise=noise)
    for look in LOOKS:
        if turns.may_end(whole[:look], bundles=2, effect=0.001):
            return turns.ratios(whole[:look], bundles=2)[0]
    raise AssertionError("the last look ends it")


@pytest.mark.parametrize(
    "clock",
    [lambda _: 0.0, lambda at: 0.03 * math.sin(at / 7), lambda at: 0.05 * (at > 30), lambda at: 0.2 * (at % 13 == 0)],
    ids=["still", "waves", "a step", "bursts"],
)
def test_equal_bundles_are_seldom_called_different_and_unequal_ones_often(clock: Clock) -> None:
    assert sum(decided(1.0, seed, clock).differs for seed in range(150)) <= 3
    assert all(decided(1.1, seed, clock).differs for seed in range(20))


@pytest.mark.parametrize(
    ("rounds", "bundles"),
    thinned(
        [
            pytest.param(rounds, bundles, id=f"{bundles} in {rounds}")
            for rounds, bundles in ((12, 2), (13, 3), (14, 2), (18, 2), (18, 4), (27, 3), (40, 2), (40, 4))
        ],
        3,
    ),
)
def test_what_so_many_rounds_detect_they_find(rounds: int, bundles: int) -> None:
    """Nineteen of twenty are said; two of a hundred less come about by chance."""
    effect = turns.detectable(0.01, rounds, bundles=bundles)
    assert effect is not None
    factors = (1.0, *(1 + effect for _ in range(1, bundles)))
    found = [turns.ratios(played(rounds, factors, seed=seed, noise=0.01), bundles=bundles)[0] for seed in range(400)]
    assert sum(one.differs for one in found) >= 372


def test_too_few_rounds_detect_nothing() -> None:
    assert turns.detectable(0.01, 11, bundles=2) is None
    assert turns.detectable(0.01, 12, bundles=3) is None


def test_what_is_detectable_is_detected() -> None:
    """Nineteen of twenty are said; what comes about by chance is allowed for. The looks before the last find some."""
    noise = 0.01
    effect = turns.detectable(noise, LOOKS[-1], bundles=2)
    assert effect is not None
    assert 0.005 < effect < 0.02
    found = [decided(1 + effect, seed, noise=noise) for seed in range(200)]
    assert sum(one.differs for one in found) >= 182
    assert np.mean([one.interval is not None and one.interval.has(1 + effect) for one in found]) > 0.97


def test_a_comparison_may_end_when_what_is_looked_for_is_not_there() -> None:
    calm = played(LOOKS[0], (1.0, 1.0), seed=3, noise=0.002)
    assert turns.may_end(calm, bundles=2, effect=0.03)
    assert not turns.may_end(calm, bundles=2, effect=0.0001)
    assert not turns.may_end(calm[:-1], bundles=2, effect=0.03), "only at a look"


def test_three_bundles_are_each_compared_with_the_first() -> None:
    found = turns.ratios(played(18, (1.0, 1.1, 0.9), seed=4), bundles=3)
    assert [one.bundle for one in found] == [1, 2]
    assert [one.ratio for one in found] == pytest.approx([1.1, 0.9], rel=0.01)
    assert all(one.differs for one in found)
    assert turns.confidence(3) > turns.confidence(2)


def test_too_few_rounds_say_nothing() -> None:
    (found,) = turns.ratios(played(5, (1.0, 2.0), seed=1), bundles=2)
    assert found.interval is None
    assert not found.differs
    assert not found.is_within(0.5)

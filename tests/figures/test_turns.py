"""How a comparison goes on and ends, on a clock that does not run by itself."""

from __future__ import annotations

import random

import pytest

from device_agents.figures.rounds import LOOKS, PILOT
from device_agents.measure.turns import Compared, Prospect, Wanted, take_turns


class Bench:
    """Processes that take a fifth of a second of a clock that nothing else moves."""

    def __init__(self, *factors: float, noise: float = 0.003, seed: int = 0) -> None:
        self.factors, self.noise = factors, noise
        self.now_s, self.played = 100.0, 0
        self.random = random.Random(seed)
        self.told: list[tuple[int, Prospect]] = []

    def process(self, which: int) -> float:
        self.now_s += 0.2
        self.played += 1
        return 5000.0 * self.factors[which] * (1 + self.random.gauss(0.0, self.noise))

    def compare(self, *, effect: float = 0.01, budget_s: float = 60.0) -> Compared:
        wanted = Wanted(len(self.factors), effect, budget_s, seed=3)
        return take_turns(wanted, self.process, tell=self.hear, clock=lambda: self.now_s)

    def hear(self, prospect: Prospect) -> None:
        self.told.append((self.played, prospect))


def test_a_clear_difference_ends_it_at_the_first_look() -> None:
    found = Bench(1.0, 1.05).compare()
    assert (len(found.rounds), found.why) == (LOOKS[0], "known")
    assert found.ratios[0].differs
    assert found.ratios[0].ratio == pytest.approx(1.05, rel=0.005)


def test_no_difference_of_the_size_that_matters_ends_it_too() -> None:
    found = Bench(1.0, 1.0).compare(effect=0.03)
    assert (len(found.rounds), found.why) == (LOOKS[0], "known")
    assert not found.ratios[0].differs


def test_it_ends_with_the_last_look() -> None:
    found = Bench(1.0, 1.0, noise=0.05).compare(effect=0.001)
    assert (len(found.rounds), found.why) == (LOOKS[-1], "rounds")


@pytest.mark.parametrize("budget_s", [1.0, 5.0, 15.7])
def test_it_never_begins_a_round_that_its_time_does_not_hold(budget_s: float) -> None:
    bench = Bench(1.0, 1.0, noise=0.05)
    found = bench.compare(effect=0.001, budget_s=budget_s)
    assert found.why == "time"
    assert len(found.rounds) == int(budget_s / 0.8)
    assert bench.now_s - 100.0 <= budget_s
    assert not found.ratios[0].differs


def test_too_little_time_for_any_round_says_nothing() -> None:
    bench = Bench(1.0, 1.0)
    bench.now_s = 0.0
    found = take_turns(Wanted(2, 0.01, -1.0, 0), bench.process, clock=lambda: bench.now_s)
    assert (found.rounds, found.ratios, found.prospect, found.why) == ((), (), None, "time")


def test_what_it_can_find_is_told_after_the_pilot_and_holds() -> None:
    effects = []
    for seed in range(30):
        bench = Bench(1.0, 1.0, noise=0.01, seed=seed)
        found = bench.compare(effect=0.001, budget_s=22.0)
        ((after, prospect),) = bench.told
        assert after == PILOT * 4
        assert found.prospect == prospect
        assert prospect.rounds == len(found.rounds) == 27
        assert prospect.effect is not None
        effects.append(prospect.effect)
    assert 0.008 < sorted(effects)[15] < 0.015


def test_three_take_turns() -> None:
    found = Bench(1.0, 1.1, 0.9).compare()
    assert [one.ratio for one in found.ratios] == pytest.approx([1.1, 0.9], rel=0.01)
    assert all(sorted(one.order) == [0, 0, 1, 1, 2, 2] for one in found.rounds)

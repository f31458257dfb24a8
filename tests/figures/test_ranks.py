"""Ranks by time of runs that were made apart: what noise leaves open is a range, and chance seldom makes a rank."""

from __future__ import annotations

import math
import random
import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from device_agents.figures import ranks as rule
from device_agents.figures.ranks import FALSE_RANK, Rank, confidence
from device_agents.figures.separate_runs import CONFIDENCE, Run, Standing, Variation, half_width, standing, variation_of

BLOCKS = (1.0, 1.002, 0.998, 1.001, 0.999)
runs = st.builds(
    lambda us, deviation, freedom, blocks: Run([us * one for one in BLOCKS[:blocks]], Variation(deviation, freedom)),
    st.floats(900.0, 1100.0),
    st.sampled_from([0.0, 0.001, 0.01]),
    st.sampled_from([2, 5, 40]),
    st.sampled_from([1, 5, 5, 5]),
)


def ranks(among: list[Run]) -> list[Rank | None]:
    return rule.ranks([standing(run) for run in among])


def by_definition(among: list[Run]) -> list[Rank | None]:
    """Each pair by itself."""
    told = [standing(run) for run in among]
    present = [one for one in told if one is not None]
    sure = confidence(len(present))

    def likely(one: Standing, sign: int) -> int:
        return sum(sign * (other.middle - one.middle) > half_width(one, other, sure) for other in present)

    return [None if one is None else Rank(1 + likely(one, -1), len(present) - likely(one, 1)) for one in told]


@given(st.lists(runs, max_size=12))
def test_a_rank_is_one_more_than_are_likely_faster_to_as_many_as_are_not_likely_slower(among: list[Run]) -> None:
    assert ranks(among) == by_definition(among)


@given(st.lists(runs, max_size=12), st.randoms())
def test_ranks_hold_together_and_do_not_depend_on_the_order(among: list[Run], dice: random.Random) -> None:
    found = ranks(among)
    told = [rank for rank in found if rank]
    assert all(1 <= rank.best <= rank.worst <= len(told) for rank in told)
    assert all(any(rank.best <= place <= rank.worst for rank in told) for place in range(1, len(told) + 1))
    assert not told or (min(rank.best for rank in told), max(rank.worst for rank in told)) == (1, len(told))
    order = list(range(len(among)))
    dice.shuffle(order)
    assert ranks([among[at] for at in order]) == [found[at] for at in order]


def test_equal_runs_share_all_ranks_and_clear_ones_have_one_each() -> None:
    known = Variation(0.005, 20)
    assert [rank and rank.words for rank in ranks([Run([100.0] * 5, known)] * 4)] == ["1 to 4"] * 4
    apart = [Run([us] * 5, known) for us in (400.0, 100.0, 200.0)]
    assert [rank and rank.words for rank in ranks(apart)] == ["3", "1", "2"]
    assert ranks([]) == []
    assert ranks(apart[:1]) == [Rank(1, 1)]


def test_runs_of_which_nothing_can_be_said_have_no_rank_and_push_nobody() -> None:
    known = Variation(0.005, 20)
    short, new = Run([1.0] * 4, known), Run([1.0] * 5, Variation(0.005, 4))
    assert ranks([short, Run([100.0] * 5, known), new]) == [None, Rank(1, 1), None]


def test_up_to_five_runs_are_ranked_by_what_is_likely_of_two_and_more_by_more() -> None:
    assert {confidence(count) for count in range(6)} == {CONFIDENCE}
    assert confidence(6) == 1 - FALSE_RANK / 15


def simulated(noise: np.random.Generator, *, count: int, between: float, within: float) -> list[Run]:
    """Runs of equal bundles on one device, whose variation is learned from ten others."""

    def blocks() -> list[float]:
        shift = noise.normal(0.0, between)
        return [5000.0 * math.exp(shift + noise.normal(0.0, within)) for _ in range(5)]

    known = variation_of([[float(np.median(blocks())) for _ in range(10)]])
    return [Run(blocks(), known) for _ in range(count)]


def test_chance_seldom_ranks_equal_runs() -> None:
    noise = np.random.default_rng(5)
    for count in (2, 5, 12, 30):
        for between, within in ((0.01, 0.002), (0.003, 0.01), (0.03, 0.03)):
            trials = [ranks(simulated(noise, count=count, between=between, within=within)) for _ in range(100)]
            false = sum(any(rank != Rank(1, count) for rank in found) for found in trials)
            print(f"{count} equal runs, {between:.1%} from run to run, {within:.1%} within: {false} of 100 false")
            assert false <= 2 * FALSE_RANK * 100


def test_a_difference_well_beyond_the_noise_is_ranked() -> None:
    noise = np.random.default_rng(6)
    found = 0
    for _ in range(100):
        equal = simulated(noise, count=6, between=0.01, within=0.003)
        quick = Run([0.8 * us for us in equal[0].block_us], equal[0].variation)
        found += ranks([quick, *equal[1:]])[0] == Rank(1, 1)
    assert found >= 95


def test_thousands_are_ranked_at_once() -> None:
    known = Variation(0.002, 40)
    many = [Run([1000.0 * 1.001**number * one for one in BLOCKS], known) for number in range(3000)]
    began = time.process_time()
    found = ranks(many)
    print(f"3,000 runs ranked in {time.process_time() - began:.3f} s")
    assert found[0] is not None
    assert found[-1] is not None
    assert found[0].best == 1
    assert found[-1].worst == 3000

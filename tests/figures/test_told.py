"""The words for bundles that took turns, with digits that their intervals bear."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from device_agents.figures.comparison import ratio_text, verdict_of
from device_agents.figures.intervals import Interval
from device_agents.figures.rounds import LOOKS, PILOT, Ratio, detectable, deviation_of, order_of, rounds_of

STEPS, WARM = 9, 4


@dataclass(frozen=True)
class Ran:
    """A process as it reports."""

    bundle: int
    step_us: tuple[float, ...]


@dataclass(frozen=True)
class Told:
    """What a report says."""

    bundles: tuple[str, ...]
    processes: list[Ran]
    foreseen_rounds: int | None
    steps: int = STEPS


def ran(rounds: int, *factors: float, noise: float = 0.003, seed: int = 0) -> list[Ran]:
    """Of bundles that take so many times 5 ms, after steps of warm-up that take three times as long."""
    source = random.Random(seed)
    found = []
    for number in range(rounds):
        for which in order_of(number, bundles=len(factors), seed=7):
            us = 5000.0 * factors[which] * (1 + source.gauss(0, noise))
            warm = [3 * us] * source.randint(0, WARM)
            settled = [us * (1 + source.gauss(0, 1e-3)) for _ in range(STEPS + WARM - len(warm))]
            found.append(Ran(which, tuple(warm + settled)))
    return found


@pytest.mark.parametrize(
    ("low", "ratio", "high", "words"),
    [
        (1.026, 1.031, 1.036, "1.031× slower (1.026 to 1.036×)"),
        (0.4, 0.5, 0.6, "2.00× faster (1.67 to 2.50×)"),
        (0.9614, 0.9625, 0.9636, "1.0390× faster (1.0378 to 1.0401×)"),
        (0.997, 1.0, 1.004, "no difference of 1% or more (0.997 to 1.004×)"),
        (0.9, 1.02, 1.2, "cannot tell (0.90 to 1.20×)"),
        (1.0, 1.02, 1.04, "cannot tell (1.00 to 1.04×)"),
    ],
)
def test_a_ratio_in_words(low: float, ratio: float, high: float, words: str) -> None:
    assert ratio_text(Ratio(1, ratio, Interval(low, high)), 0.01) == words


def test_too_few_rounds_say_nothing() -> None:
    assert ratio_text(Ratio(1, 3.0, None), 0.01) == "cannot tell: too few rounds"
    found = verdict_of(Told(("a",) * 2, ran(3, 1.0, 1.5), None), 0.01)
    assert [row.message for row in found.rows] == ["", "cannot tell: too few rounds"]
    assert (found.rounds, found.detectable) == (3, None)


def test_warm_up_and_rounds_that_were_cut_do_not_count() -> None:
    processes = ran(LOOKS[1], 1.0, 1.04, 0.98)
    whole = verdict_of(Told(("a",) * 3, processes, 20), 0.01)
    cut = verdict_of(Told(("a",) * 3, [*processes, Ran(0, (1.0,) * 13)], 20), 0.01)
    assert whole == cut
    first, slower, faster = whole.rows
    assert first.median_us == pytest.approx(5000, rel=0.01), "three times as long while it warmed up"
    assert first.ratio is None
    assert slower.message.startswith("1.04")
    assert "slower" in slower.message
    assert "faster" in faster.message


def test_what_was_foreseen_follows_from_the_first_rounds() -> None:
    processes = ran(LOOKS[1], 1.0, 1.0)
    found = verdict_of(Told(("a",) * 2, processes, 30), 0.01)
    pilot = rounds_of(processes, bundles=2, steps=STEPS)[:PILOT]
    assert found.detectable == detectable(deviation_of(pilot), 30, bundles=2)

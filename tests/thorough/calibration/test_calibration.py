"""The campaign's own working: it sees a rule that is wrong, and goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.thorough.calibration import changes, here
from tests.thorough.calibration.__main__ import shown
from tests.thorough.calibration.noises import CHOSEN_WITH, OTHERS
from tests.thorough.calibration.rates import CANARIES, PROMISES, Promise, Rate
from tests.thorough.calibration.simulated import compared, rates, separate


@pytest.mark.parametrize("kind", [*CHOSEN_WITH, *OTHERS])
def test_noise_is_some_and_another_each_time(kind: str) -> None:
    noise = (CHOSEN_WITH | OTHERS)[kind]  # type: ignore[operator]
    first, second = (noise(np.random.default_rng(seed), 100) for seed in (1, 2))
    assert first.shape == (100,)
    assert 0.003 < first.std() < 0.2
    assert not np.array_equal(first, second)


def test_differences_are_found_and_equal_ones_are_not_called_different() -> None:
    noise = CHOSEN_WITH["thermal replay"]
    assert [compared(noise, 1.05, seed) for seed in range(5)] == [True] * 5
    assert sum(compared(noise, 1.0, seed) for seed in range(20)) <= 1
    assert [separate(noise, 1.5, seed) for seed in range(5)] == [True] * 5


def test_changes_of_histories_are_found_and_none_is_made_up() -> None:
    assert [changes.slower(changes.lingering, seed, 0.06) for seed in range(5)] == [True] * 5
    assert sum(changes.slower(changes.independent, seed, 0.001) for seed in range(20)) == 0
    assert not changes.nothing(changes.bursts, 3)


def test_a_rule_that_looks_too_often_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With intervals that hold the ratio in half of cases, equal bundles are called different: the rates say so."""
    monkeypatch.setattr("device_agents.figures.rounds.confidence", lambda _: 0.5)
    first = next(iter(rates(20, seed=1, noises="chosen")))
    assert first.promise.what.endswith("called different")
    assert not first.is_kept


def test_what_is_printed_says_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    limited, free = Promise("compare", 1.0, "a", most=0.01), Promise("compare", 1.0, "b")
    assert shown([Rate(limited, "n", 1, 100)])
    assert not shown([Rate(limited, "n", 2, 100), Rate(free, "n", 7, 100)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["kept", "BROKEN", "(7.0%)"]


def test_trials_that_were_written_down_count_and_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "trials.jsonl"
    made: list[tuple[float, int]] = []

    def compare(_: here.Bundles, factor: float, number: int, seed: int) -> here.Trial:
        made.append((factor, number))
        return here.Trial("compare", factor, number, factor > 1.02, factor, None, None, 12, 1.0)

    monkeypatch.setattr(here, "compared", compare)
    monkeypatch.setattr(here.Bundles, "run", lambda *_: [1000.0, 1001.0, 1002.0, 1003.0, 1004.0])
    found = list(here.rates(3, seed=1, log=log))
    assert [(rate.count, rate.trials) for rate in found] == [(0, 3), (3, 3), (0, 3), (0, 3), (0, 3)]
    factors = [promise.factor for promise in PROMISES if promise.kind == "compare"]
    assert sorted(made) == sorted((factor, number) for factor in factors for number in range(3))
    made.clear()
    again = list(here.rates(4, seed=1, log=log))
    assert sorted(made) == sorted((factor, 3) for factor in factors)
    assert [rate.trials for rate in again] == [4] * len(PROMISES)
    assert sum(json.loads(line)["kind"] == here.CANARY for line in log.read_text().splitlines()) == CANARIES

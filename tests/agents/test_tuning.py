"""Choosing schedules from times: never a slower one, nor one that computes something else; and a measuring run."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from device_agents.execute import run_bundle
from device_agents.measure.tuning import winner
from device_agents.wire import Report, RunSettings, VariantTime, dumps, loads
from tests.agents.fake_step import bundle

TRIALS = [
    {"kernel": "a" * 64, "name": "conv1", "calls": 3, "choices": ["", "rows=6", "rows=8"]},
    {"kernel": "b" * 64, "name": "conv2", "calls": 1, "choices": ["", "rows=6", "rows=8"]},
]


def timed(choice: str, samples: list[float], defaults: list[float], difference: float | None = 1e-6) -> VariantTime:
    ratios = [us / default for us, default in zip(samples, defaults, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return VariantTime(choice, len(samples), statistics.median(samples), low, median, high, difference)


def around(us: float, spread: float = 1.0, *, choice: str = "rows=6", difference: float | None = 0.0) -> VariantTime:
    return timed(choice, [us - spread, us, us, us + spread], [100.0] * 4, difference)


DEFAULT = around(100.0, choice="")


def test_the_fastest_that_is_better_by_more_than_noise_wins() -> None:
    assert winner([DEFAULT, around(90.0), around(80.0, choice="rows=8")]) == "rows=8"


@pytest.mark.parametrize(
    "other",
    [
        around(99.0),
        around(98.0, spread=0.1),
        around(90.0, spread=30.0),
        around(80.0, difference=None),
        around(80.0, difference=0.01),
        VariantTime("rows=6", 3, 80.0, 0.8, 0.8, 0.8, 0.0),
        around(120.0),
    ],
    ids=["as fast", "a little faster", "noisy", "not a number", "another result", "few rounds", "slower"],
)
def test_the_default_stays(other: VariantTime) -> None:
    assert winner([DEFAULT, other]) == ""


def test_no_winner_has_a_larger_median_than_the_default() -> None:
    """A machine that slows down between the turns: the ratios of the rounds are better, the median is not."""
    defaults, others = [100.0, 100.0, 100.0, 300.0, 320.0], [80.0, 80.0, 105.0, 240.0, 256.0]
    default, other = timed("", defaults, defaults), timed("rows=6", others, defaults)
    assert other.ratio_high < 1
    assert other.median_us > default.median_us
    assert winner([default, other]) == ""


def test_no_default_no_winner() -> None:
    assert winner([around(80.0)]) == ""
    assert winner([]) == ""
    assert winner([VariantTime("", 2, 100.0, 1.0, 1.0, 1.0, 0.0), around(50.0)]) == ""


def test_tuned_is_never_slower_than_the_default_by_more_than_noise() -> None:
    """A source of times with known truths: 300 kernels, drifting machine, heavy-tailed noise, many variants."""
    rng = random.Random(7)
    kept, faster, true_gains = 0, 0, []
    for _ in range(300):
        truth = {"": 100.0} | {f"rows={n}": 100.0 * rng.choice((0.8, 0.95, 1.0, 1.0, 1.02, 1.3)) for n in range(8)}
        samples: dict[str, list[float]] = {name: [] for name in truth}
        for _ in range(12):
            drift = rng.uniform(1.0, 1.5)  # of the whole machine: the variants take turns, so it meets all of them
            for name, us in truth.items():
                samples[name].append(us * drift * (1 + abs(rng.gauss(0, 0.02)) + (rng.random() < 0.05) * rng.random()))
        chosen = winner([timed(name, times, samples[""]) for name, times in samples.items()])
        true_gains.append(truth[chosen] / truth[""])
        kept += chosen == ""
        faster += truth[chosen] < 100.0
    assert max(true_gains) <= 1.03
    assert kept + faster == len(true_gains), "a schedule that is really no faster was never chosen"


def test_a_run_reports_variants_and_winners(tmp_path: Path) -> None:
    path, seen = tmp_path / "t.pfb", []
    path.write_bytes(bundle(kind="tuning", trials=TRIALS, threads=1, inputs=[], batch=1))
    result = run_bundle(
        path, RunSettings("tune", tune_s=1.0), notify=lambda kind, **fields: seen.append((kind, fields))
    )
    assert result.error is None
    tuning = result.report.tuning
    assert tuning is not None
    assert tuning.threads == 1
    assert [(row.kernel[0], row.name, row.calls, row.winner) for row in tuning.kernels] == [
        ("a", "conv1", 3, "rows=6"),
        ("b", "conv2", 1, ""),
    ]
    assert [variant.choice for variant in tuning.kernels[0].variants] == ["", "rows=6", "rows=8"]
    assert loads(Report, dumps(result.report)) == result.report
    assert result.report.verdict is None
    assert ("progress", {"fraction": 1.0}) in seen


@pytest.mark.parametrize(("mode", "kind"), [("profile", "tuning"), ("tune", "training")])
def test_a_mode_goes_with_its_kind_of_bundle(tmp_path: Path, mode: Any, kind: str) -> None:
    path = tmp_path / "t.pfb"
    path.write_bytes(bundle(kind=kind, trials=TRIALS, batch=1))
    assert run_bundle(path, RunSettings(mode, steps=1)).report.outcome.code == "bundle.kind"


def test_a_manifest_whose_trials_are_ill_formed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.pfb"
    path.write_bytes(bundle(kind="tuning", trials=[{"kernel": "a"}], batch=1))
    assert run_bundle(path, RunSettings("tune")).report.outcome.code == "bundle.invalid"
    path.write_bytes(bundle(kind="tuning", trials=TRIALS[:1], batch=1))
    assert run_bundle(path, RunSettings("tune")).report.outcome.code == "step.output", (
        "it times a kernel that the bundle lacks"
    )

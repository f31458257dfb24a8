"""How training ends, as the agent tells it: outcomes, validations, learning rates, and the weights that are left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_agents import wire as p
from device_agents.execute import LocalResult, run_bundle
from device_agents.job.words import training_words
from device_agents.wire import RunSettings, Training, Validation, held_out
from tests.agents.conftest import AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script

Start = Callable[..., AgentProcess]
SHARE = RunSettings("train", steps=12, validation=0.25, eval_every=2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    path.write_bytes(npz())
    return path


def trained(data: Path, settings: RunSettings, behaviour: str = "normal", **more: Any) -> LocalResult:
    path = data.parent / "b.pfb"
    path.write_bytes(bundle(behaviour))
    return run_bundle(path, settings, data=data, **more)


def training_of(result: LocalResult) -> Training:
    report = result.report
    assert report.training is not None
    assert p.loads(p.Report, p.dumps(report)) == report, "it travels"
    assert report.training.steps == len(report.losses)
    return report.training


def test_a_run_that_is_not_validated_is_completed(data: Path) -> None:
    result = trained(data, RunSettings("train", steps=3, learning_rate=0.05))
    assert training_of(result) == Training("completed", 3, learning_rates=(0.05,) * 3, weights_step=3)
    assert result.report.outcome.state == "succeeded"
    assert trained(data, RunSettings("eval")).report.training is None


def test_validations_are_told_as_they_come_and_in_the_report(data: Path) -> None:
    told: list[dict[str, Any]] = []
    result = trained(data, SHARE, notify=lambda kind, **fields: told.append({"kind": kind, **fields}))
    training = training_of(result)
    assert [one.step for one in training.validations] == [2, 4, 6, 8, 10, 12]
    assert {one.samples for one in training.validations} == {2}
    assert training.outcome == "completed"
    assert (training.best_step, training.weights_step) == (6, 12)
    evals = [one for one in told if one["kind"] == "eval" and one["message"] == "validation"]
    assert [(one["step"], one["loss"]) for one in evals] == [(one.step, one.loss) for one in training.validations]


def test_patience_ends_training_and_the_best_is_left(data: Path) -> None:
    exported = data.parent / "exported"
    settings = replace(SHARE, steps=100, patience=2, save_best=True)
    result = trained(data, settings, export=exported)
    training = training_of(result)
    assert result.report.outcome.state == "succeeded"
    assert (training.outcome, training.steps, training.best_step, training.weights_step) == ("stopped_early", 10, 6, 6)
    assert float(exported.read_text()) == pytest.approx(1 + 4 * 0.8**6)
    assert result.report.evaluation_after is not None
    assert result.report.evaluation_after.loss == pytest.approx((4 * 0.8**6) ** 2), "of the weights that are left"


@pytest.mark.parametrize("behaviour", ["diverge", "diverge-late"])
def test_training_that_diverges_is_an_outcome_and_no_failure(data: Path, behaviour: str) -> None:
    exported = data.parent / "exported"
    result = trained(data, SHARE, behaviour, export=exported)
    training, report = training_of(result), result.report
    assert report.outcome.state == "succeeded"
    assert training.outcome == "diverged"
    assert training.reason
    assert report.losses[-1] is None
    assert training.weights_step is None
    assert report.evaluation_after is None
    assert report.evaluation_before is not None
    assert not exported.exists()
    if behaviour == "diverge-late":
        assert training.steps == 5
        assert training.reason == "the loss of step 5 is NaN"
        assert [one.step for one in training.validations] == [2, 4]


def test_what_was_best_before_it_diverged_is_left(data: Path) -> None:
    exported = data.parent / "exported"
    result = trained(data, replace(SHARE, save_best=True), "diverge-late", export=exported)
    training = training_of(result)
    assert (training.outcome, training.best_step, training.weights_step) == ("diverged", 4, 4)
    assert float(exported.read_text()) == pytest.approx(1 + 4 * 0.8**4)
    assert result.report.evaluation_after is not None


def test_an_older_binary_trains_as_before(data: Path) -> None:
    """It tells no learning rates and no outcome; one that diverges says so by an error, without the step."""
    assert training_of(trained(data, RunSettings("train", steps=3), "older")) == Training(
        "completed", 3, weights_step=3
    )
    path = data.parent / "b.pfb"
    error = {"event": "error", "cause": "user", "code": "train.diverged", "message": "the loss of step 4 is NaN"}
    path.write_bytes(bundle(step=script("older", then=f"print({json.dumps(error)!r}, flush=True); sys.exit(2)")))
    profile = run_bundle(path, RunSettings("profile", steps=2)).report.outcome
    assert (profile.state, profile.code) == ("failed", "train.diverged"), "of another mode it is none of training"


def test_a_run_that_is_stopped_says_how_far_it_came(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), mode="train", steps=10_000, dataset=npz())
    start_agent("--once")
    farm.wait_for_steps()
    farm.cancelled.add("lease-0001")
    report = farm.report()
    assert report.outcome.state == "cancelled"
    assert report.training is not None
    assert report.training.outcome == "stopped"
    assert report.training.steps == len(report.losses) > 0
    assert report.training.weights_step is None


def test_a_diverged_run_of_the_farm_leaves_no_weights(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("diverge-late"), mode="train", steps=9, dataset=npz(), validation=0.25, eval_every=2)
    start_agent("--once").wait()
    report = farm.report()
    assert report.outcome.state == "succeeded"
    assert report.training is not None
    assert (report.training.outcome, report.training.steps) == ("diverged", 5)
    assert report.weights is None
    events = farm.events["lease-0001"].values()
    assert [event.step for event in events if event.message == "validation"] == [2, 4]


def test_only_what_a_user_set_is_an_option_of_the_binary() -> None:
    assert training_words(RunSettings("train", steps=9, seed=4, threads=2)) == []
    given = RunSettings(
        "train",
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=5,
        schedule_steps=90,
        final_ratio=0.1,
        validation=0.2,
        eval_every=7,
        patience=3,
        min_delta=0.01,
        save_best=True,
        explosion_factor=0.0,
    )
    assert training_words(given) == [
        "--learning-rate",
        "0.001",
        "--schedule",
        "cosine",
        "--warmup-steps",
        "5",
        "--schedule-steps",
        "90",
        "--final-ratio",
        "0.1",
        "--validation",
        "0.2",
        "--eval-every",
        "7",
        "--patience",
        "3",
        "--min-delta",
        "0.01",
        "--save-best",
        "--explosion-factor",
        "0.0",
    ]
    assert training_words(replace(given, mode="eval").fitted()) == []


@pytest.mark.parametrize(("samples", "share", "wanted"), [(10, 0.25, 3), (10, 0.24, 2), (100, 0.07, 7), (3, 0.5, 2)])
def test_shares_are_rounded_as_the_binary_does(samples: int, share: float, wanted: int) -> None:
    assert held_out(samples, share) == wanted


OWN = (Validation(2, 5, 1.0), Validation(4, 5, 0.5))
GOOD = Training("completed", 4, learning_rates=(0.1,) * 4, validations=OWN, best_step=4, weights_step=4)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 3},
        {"steps": -1},
        {"learning_rates": (0.1,)},
        {"learning_rates": (0.1, 0.1, 0.1, -0.1)},
        {"best_step": 2},
        {"best_step": None},
        {"weights_step": 2},
        {"weights_step": 3},
        {"reason": "x" * 1001},
        {"validations": OWN[::-1]},
        {"validations": (OWN[0], OWN[0])},
        {"outcome": "perfect"},
        {"validations": (*OWN, Validation(5, 5, 2.0))},
    ],
)
def test_training_that_cannot_have_been_is_refused(change: dict[str, Any]) -> None:
    said = p.to_json(GOOD)
    assert p.from_json(Training, said) == GOOD
    with pytest.raises(p.ProtocolError):
        p.from_json(Training, {**said, **{name: p.to_json(value) for name, value in change.items()}})

"""A second data set to validate on, at the agent's: signed, fetched, checked and handed over as the first."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_agents import wire as p
from device_agents.errors import BadData
from device_agents.execute import LocalResult, run_bundle
from device_agents.job.dataset import split_data_sets
from device_agents.wire import RunSettings
from tests.agents.conftest import AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script

Start = Callable[..., AgentProcess]
EVERY_2 = RunSettings("train", steps=6, eval_every=2)


def trained(
    tmp_path: Path, settings: RunSettings, validation: bytes | None, *, step: bytes | None = None, **more: Any
) -> LocalResult:
    data, held_out, path = tmp_path / "d.npz", tmp_path / "v.npz", tmp_path / "b.pfb"
    data.write_bytes(npz())
    path.write_bytes(bundle(step=step) if step else bundle())
    if validation is not None:
        held_out.write_bytes(validation)
    return run_bundle(path, settings, data=data, validation_data=held_out if validation else None, **more)


def test_it_is_what_validations_score(tmp_path: Path) -> None:
    """The stand-in's weight goes from 5 towards the labels of the data, 1; those to validate on are 3."""
    told: list[dict[str, Any]] = []
    result = trained(
        tmp_path, EVERY_2, npz(5, label=3), notify=lambda kind, **said: told.append({"kind": kind, **said})
    )
    training = result.report.training
    assert training is not None
    assert [(one.step, one.samples) for one in training.validations] == [(2, 5), (4, 5), (6, 5)]
    weights = [1 + 4 * 0.8**step for step in (2, 4, 6)]
    assert [one.loss for one in training.validations] == pytest.approx([(weight - 3) ** 2 for weight in weights])
    assert result.report.evaluation_before is not None
    assert result.report.evaluation_before.samples == 8
    looked_at = [one for one in told if one["kind"] == "eval" and one["message"] == "of the validation data"]
    assert [(one["samples"], one["loss"]) for one in looked_at] == [(5, 4.0)]


def test_patience_and_the_best_go_by_it(tmp_path: Path) -> None:
    settings = RunSettings("train", steps=50, eval_every=1, patience=2, save_best=True)
    training = trained(tmp_path, settings, npz(3, label=3)).report.training
    assert training is not None
    assert training.outcome == "stopped_early"
    assert training.weights_step == training.best_step == 3, "1 + 4 * 0.8^3 is nearest to 3"


@pytest.mark.parametrize(
    ("settings", "validation", "said"),
    [
        (RunSettings("train", steps=2, validation=0.25), npz(), "both say what to validate on"),
        (RunSettings("eval"), npz(), "mode eval has no validations"),
        (RunSettings("train", steps=2, patience=1), None, "there is nothing to validate on"),
    ],
)
def test_what_goes_with_no_other_is_refused(
    tmp_path: Path, settings: RunSettings, validation: bytes | None, said: str
) -> None:
    outcome = trained(tmp_path, settings, validation).report.outcome
    assert (outcome.state, outcome.cause) == ("failed", "user")
    assert said in outcome.message


def test_one_that_cannot_be_read_is_told_from_the_first(tmp_path: Path) -> None:
    result = trained(tmp_path, EVERY_2, npz(name="other"))
    assert result.report.outcome.code == "data.missing"
    assert result.report.outcome.message.startswith("of the validation data set: ")
    assert not result.report.losses


def test_what_is_wrong_with_it_ends_the_run_before_the_first_step(tmp_path: Path) -> None:
    bad = "'--labels' in given and 'validation' in given['--labels'] and fail('data', 'data.label', 'classes', 3)"
    report = trained(tmp_path, EVERY_2, npz(5), step=script(then=bad)).report
    assert (report.outcome.cause, report.outcome.code) == ("user", "data.label")
    assert not report.losses


def test_another_number_of_samples_is_not_believed(tmp_path: Path) -> None:
    lie = {"event": "validation", "step": 6, "samples": 8, "loss": 1.0, "accuracy": None}
    step = script(then=f"command == 'train' and print({json.dumps(lie)!r}, flush=True)")
    settings = dataclasses.replace(EVERY_2, eval_every=4, steps=6)
    outcome = trained(tmp_path, settings, npz(5), step=step).report.outcome
    assert (outcome.cause, outcome.code) == ("compiler", "step.output")


def test_both_are_within_one_budget(tmp_path: Path) -> None:
    archive = tmp_path / "d.npz"
    archive.write_bytes(npz(100))
    one_bytes = split_data_sets((archive, None), tmp_path / "one", ["input"], max_bytes=1 << 20)[0]
    assert one_bytes is not None
    most = 2 * one_bytes.size_bytes
    data, validation = split_data_sets((archive, archive), tmp_path / "two", ["input"], max_bytes=most)
    assert data is not None
    assert validation is not None
    assert np.array_equal(np.load(data.inputs["input"]), np.load(validation.inputs["input"]))
    with pytest.raises(BadData, match=r"^of the validation data set: y\.npy .* 800 ") as refusal:
        split_data_sets((archive, archive), tmp_path / "three", ["input"], max_bytes=most - 200)
    assert refusal.value.code == "data.size"


# ------------------------------------------------------------------------------------------------------- from a farm


def test_an_agent_fetches_both_and_tells_of_the_right_one(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), mode="train", steps=4, eval_every=2, dataset=npz(), validation_dataset=npz(5, label=3))
    start_agent("--once").wait()
    report = farm.report()
    assert report.outcome.state == "succeeded", report.outcome
    assert report.training is not None
    assert [one.samples for one in report.training.validations] == [5, 5]
    assert ("GET", "/agent/attempts/lease-0001/validation-dataset") in farm.requests


OTHER = "sha256:" + hashlib.sha256(b"another").hexdigest()


def test_another_than_the_signed_one_is_not_used(farm: FakeFarm, start_agent: Start) -> None:
    data = npz(5)
    signed = p.Blob(OTHER, len(data), "/agent/attempts/lease-0001/validation-dataset")
    farm.assign(
        bundle(), mode="train", steps=4, dataset=npz(), validation_dataset=data, signed={"validation_dataset": signed}
    )
    start_agent("--once").wait()
    assert farm.report().outcome.code == "download.digest"


def test_what_is_not_signed_is_not_even_fetched(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(
        bundle(), mode="train", steps=4, dataset=npz(), validation_dataset=npz(5), signed={"validation_dataset": None}
    )
    start_agent("--once").wait()
    assert farm.report().outcome.state == "succeeded"
    assert not [path for _, path in farm.requests if path.endswith("validation-dataset")]


def test_bytes_that_are_not_the_signed_ones_are_refused(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), mode="train", steps=4, dataset=npz(), validation_dataset=npz(5))
    path = "/agent/attempts/lease-0001/validation-dataset"
    farm.blobs[path] = npz(5, label=9)[: len(farm.blobs[path])].ljust(len(farm.blobs[path]), b"x")
    start_agent("--once").wait()
    outcome = farm.report().outcome
    assert outcome.state == "failed"
    assert "digest" in str(outcome.code)


# ------------------------------------------------------------------------------------------------------ older agents


def older(kind: Any) -> Any:
    """The message as agents knew it before there was a second data set."""
    kept = [(one.name, one.type, one) for one in dataclasses.fields(kind) if "validation_dataset" not in one.name]
    return dataclasses.make_dataclass(kind.__name__, kept, frozen=True)


@pytest.mark.parametrize("is_validated", [False, True])
def test_an_older_agent_loses_just_the_runs_that_name_one(farm: FakeFarm, is_validated: bool) -> None:
    validation = {"validation_dataset": npz(5)} if is_validated else {}
    work = farm.assign(bundle(), mode="train", steps=4, dataset=npz(), **validation)  # type: ignore[arg-type]
    if not is_validated:
        assert p.loads(older(p.Assignment), p.dumps(work)).run_id == "run-1"
        return
    with pytest.raises(p.ProtocolError, match=r"^validation_dataset: unknown field"):
        p.loads(older(p.Assignment), p.dumps(work))


def test_an_assignment_validates_on_one_thing() -> None:
    blob = p.Blob("sha256:" + "a" * 64, 1)
    fields = ("run", 1, "dev", "x86-64", "x86-64-v3", "lease-0001", 1.0, 60.0, 0.0, 1e12, 1, "", "", blob)
    with pytest.raises(p.ProtocolError, match=r"^validation_dataset: .*`validation`"):
        p.Assignment(*fields, RunSettings("train", validation=0.5), blob, validation_dataset=blob)
    with pytest.raises(p.ProtocolError, match=r"^patience: .*`validation_dataset`"):
        p.Assignment(*fields, RunSettings("train", patience=2), blob)

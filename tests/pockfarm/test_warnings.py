"""What is odd about a run's data stands beside its report, wherever one reads that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from device_agents.wire import RunSettings
from pockfarm import Client, cli
from pockfarm.client.profile import Profile
from pockfarm.fine_tuning import remarks
from pockfarm.local.preflight import settings_remarks
from pockfarm.values import CompileWarning, Dataset
from tests.pockfarm.fake_farm import Answer, FakeFarm, fake_farm

ODD = {"code": "data.bytes", "where": "dataset.x", "message": "whole numbers from 0 to 255", "hint": "x / 255"}
RUN = {"id": "run_1", "state": "succeeded", "mode": "profile"}
REPORT = {"mode": "profile", "outcome": {"state": "succeeded"}, "measurement_class": "host"}
MANIFEST = {
    "batch": 4,
    "inputs": [{"name": "input", "dtype": "f32", "shape": [4, 2], "weighed": True}],
    "labels": {"name": "labels", "dtype": "i64", "shape": [4], "classes": 3},
}


@pytest.fixture
def farm(loopback: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFarm]:
    with fake_farm() as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", "key-1")
        farm.on("GET", "/runs/run_1", Answer(200, RUN))
        farm.on("GET", "/runs/run_1/report", Answer(200, {"report": REPORT, "warnings": [ODD]}))
        yield farm


def test_report_tells_them_in_every_form(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "run_1"]) == 0
    words = f"{ODD['where']}: {ODD['message']}"
    assert f"\n\nwarning: {words} [data.bytes]\n  {ODD['hint']}" in capsys.readouterr().out
    assert cli.main(["report", "run_1", "--md"]) == 0
    assert rf"**Warning:** {words} \[data.bytes\] {ODD['hint']}" in capsys.readouterr().out
    assert cli.main(["report", "run_1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**REPORT, "warnings": [ODD]}


def test_nothing_odd_is_nothing_said(farm: FakeFarm, capsys: pytest.CaptureFixture[str]) -> None:
    farm.on("GET", "/runs/run_1/report", Answer(200, {"report": REPORT, "warnings": []}))
    assert cli.main(["report", "run_1"]) == 0
    assert cli.main(["report", "run_1", "--md"]) == 0
    assert "arning" not in capsys.readouterr().out


def test_profile_has_them(farm: FakeFarm) -> None:
    with Client() as client:
        profile = client.get_job("run_1").result()
    assert isinstance(profile, Profile)
    assert [one.code for one in profile.warnings] == ["data.bytes"]
    assert "warning: dataset.x: whole numbers" in str(profile)


def test_data_of_a_fine_tuning_are_told_in_the_callers_words() -> None:
    far: dict[str, Any] = {"input": 5000 * np.arange(16, dtype=np.float32).reshape(8, 2), "y": np.arange(8) % 3}
    few: dict[str, Any] = {"input": np.zeros((2, 2), np.float32), "y": np.arange(2)}
    told = list(remarks.of_arrays({"data": far, "validation_data": few}, MANIFEST))
    assert [(one.code, one.where) for one in told] == [("data.scale", "data.input"), ("data.few", "validation_data")]


@pytest.mark.parametrize(
    ("settings", "schedule", "goes_on", "is_odd"),
    [
        ({"steps": 20, "warmup_steps": 20}, {}, False, True),
        ({"steps": 20}, {"warmup_steps": 30}, False, True),
        ({"steps": 21, "warmup_steps": 20}, {}, False, False),
        ({"steps": 20, "warmup_steps": 0}, {"warmup_steps": 30}, False, False),
        ({"steps": 20, "warmup_steps": 20, "schedule_steps": 40}, {}, False, False),
        ({"steps": 20, "warmup_steps": 20}, {}, True, False),
        ({"mode": "eval"}, {"warmup_steps": 30}, False, False),
    ],
)
def test_a_warm_up_that_a_run_does_not_come_out_of_is_told(
    settings: dict[str, Any], schedule: dict[str, int], goes_on: bool, is_odd: bool
) -> None:
    """By the run, by the bundle, as a part of a longer schedule, after another run, where nothing learns."""
    manifest = {**MANIFEST, "schedule": schedule} if schedule else MANIFEST
    odd = settings_remarks(RunSettings(**{"mode": "train", **settings}), manifest, goes_on=goes_on)
    assert [(warning.code, warning.where) for warning in odd] == [("run.only-warmup", "warmup_steps")] * is_odd


def test_data_on_a_farm_are_told_by_the_farm() -> None:
    warnings = (
        CompileWarning("data.bytes", "dataset.x", "odd"),
        CompileWarning("data.few", "validation_dataset", "few"),
        CompileWarning("run.waits", "device", "no device"),
    )
    lying = Dataset("sha256:0", "d", 8)
    found = list(remarks.of_farm(warnings, {"data": lying, "validation_data": "d.npz"}))
    assert [(one.code, one.where) for one in found] == [("data.bytes", "data.x")]
    assert [one.where for one in remarks.of_farm(warnings, {"data": lying, "validation_data": lying})] == [
        "data.x",
        "validation_data",
    ]

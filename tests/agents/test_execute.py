"""A bundle file run without a farm."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy
import pytest

from device_agents.errors import EnrolmentError
from device_agents.execute import run_bundle
from device_agents.job.execution import block_steps
from device_agents.wire import BENCH_PROTOCOL, ProtocolError, Report, RunSettings, dumps, loads
from device_agents.wire.consistency import check_consistent
from tests.agents.conftest import npz
from tests.agents.fake_step import bundle


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    path.write_bytes(npz(label=1))
    return path


def written(tmp_path: Path, behaviour: str = "normal", **changes: Any) -> Path:
    path = tmp_path / "b.pfb"
    path.write_bytes(bundle(behaviour, **changes))
    return path


def test_train_saves_and_goes_on_from_there(tmp_path: Path, data: Path) -> None:
    seen: list[str] = []
    path, saved, exported = written(tmp_path), tmp_path / "saved", tmp_path / "exported"
    first = run_bundle(
        path,
        RunSettings("train", steps=10),
        data=data,
        save=saved,
        export=exported,
        notify=lambda kind, **_: seen.append(kind),
    )
    assert first.error is None
    assert first.report.bundle_digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert float(saved.read_text()) == pytest.approx(1 + 4 * 0.8**10)
    assert exported.read_text() == saved.read_text()
    assert {"phase", "step", "progress", "eval"} <= set(seen)
    second = run_bundle(path, RunSettings("train", steps=1), data=data, weights=saved)
    assert second.report.losses[0] == pytest.approx(16 * 0.64**10)


def test_infer_writes_what_was_asked_for(tmp_path: Path) -> None:
    unlabelled, out = tmp_path / "x.npz", tmp_path / "logits.npy"
    numpy.savez(unlabelled, x=numpy.zeros((3, 2), numpy.float32))
    result = run_bundle(written(tmp_path), RunSettings("infer"), data=unlabelled, out=out)
    assert result.report.outcome.state == "succeeded"
    assert out.exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target": "jetson-orin-nano"}, "bundle.target"),
        ({"required_features": ["sve2", "no-such-feature"]}, "bundle.features"),
        ({"schema": "other"}, "bundle.invalid"),
    ],
)
def test_bundles_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    result = run_bundle(written(tmp_path, **changes), RunSettings("profile", steps=1))
    assert result.report.outcome.code == code
    assert result.error is not None


def test_missing_data_and_steps(tmp_path: Path, data: Path) -> None:
    assert run_bundle(written(tmp_path), RunSettings("train", steps=1)).report.outcome.code == "data.missing"
    assert (
        run_bundle(written(tmp_path), RunSettings("train", steps=0), data=data).report.outcome.code == "steps.missing"
    )
    missing = run_bundle(written(tmp_path), RunSettings("profile"), weights=tmp_path / "none")
    assert missing.report.outcome.code == "weights.missing"


def test_warm_up_is_found_in_the_times_unless_its_steps_are_said(tmp_path: Path) -> None:
    told: list[int] = []

    def notify(kind: str, **fields: Any) -> None:
        if kind == "step":
            told.append(fields["step"])

    path = written(tmp_path, "warms-up")
    by_rule = run_bundle(path, RunSettings("profile", steps=40), notify=notify).report
    said = run_bundle(path, RunSettings("profile", steps=40, warmup=0)).report
    assert by_rule.measurement is not None
    assert said.measurement is not None
    for report in (by_rule, said):
        assert report.measurement is not None
        assert [len(block.step_us) for block in report.measurement.blocks] == [8] * 5
        assert len(report.losses) == 8
        assert report.measurement.protocol == BENCH_PROTOCOL
    assert told == list(range(1, 41)), "steps beyond those that count are not told of"
    assert (by_rule.measurement.warmup_steps, max(by_rule.measurement.step_us)) == (2, 1010.0)
    assert (said.measurement.warmup_steps, max(said.measurement.step_us)) == (0, 3000.0)
    check_consistent(loads(Report, dumps(by_rule)))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"interval_low_us": 1.0, "interval_high_us": 1e6}, "measurement.interval_low_us"),
        ({"interval_low_us": None, "interval_high_us": None}, "measurement.interval_low_us"),
    ],
)
def test_an_interval_that_its_blocks_do_not_come_to_is_refused(
    tmp_path: Path, changes: dict[str, Any], where: str
) -> None:
    report = run_bundle(written(tmp_path), RunSettings("profile", steps=20)).report
    assert report.measurement is not None
    forged = dataclasses.replace(report, measurement=dataclasses.replace(report.measurement, **changes))
    with pytest.raises(ProtocolError) as refused:
        check_consistent(forged)
    assert refused.value.where == where
    older = dataclasses.replace(
        report.measurement, protocol="bench-protocol/1", interval_low_us=1001.0, interval_high_us=1004.0
    )
    check_consistent(dataclasses.replace(report, measurement=older))


def test_few_blocks_have_no_interval(tmp_path: Path) -> None:
    report = run_bundle(written(tmp_path), RunSettings("profile", steps=9)).report
    assert report.measurement is not None
    assert report.measurement.interval_low_us is None
    check_consistent(report)
    told = dataclasses.replace(report.measurement, interval_low_us=1001.0, interval_high_us=1004.0)
    with pytest.raises(ProtocolError, match="an interval of 2 blocks"):
        check_consistent(dataclasses.replace(report, measurement=told))


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    run_bundle(written(tmp_path), RunSettings("profile", steps=1))
    run_bundle(written(tmp_path, "crash"), RunSettings("profile", steps=1))
    assert not list(scratch.iterdir())


def test_unknown_runner(tmp_path: Path) -> None:
    with pytest.raises(EnrolmentError):
        run_bundle(written(tmp_path), RunSettings("profile"), runner="no-such-emulator")


@pytest.mark.parametrize(
    ("steps", "emulated", "blocks"),
    [
        (20, False, (4, 4, 4, 4, 4)),
        (22, False, (5, 5, 4, 4, 4)),
        (9, False, (5, 4)),
        (3, False, (3,)),
        (50, True, (50,)),
    ],
)
def test_blocks(steps: int, emulated: bool, blocks: tuple[int, ...]) -> None:
    assert block_steps(steps, emulated=emulated) == blocks

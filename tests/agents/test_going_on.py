"""Training that goes on where another attempt stood, with the real binary: the report and the weights are those of one
that nobody has interrupted."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_agents.errors import Stopped
from device_agents.execute import LocalResult, run_bundle
from device_agents.job.checkpoints import take_apart
from device_agents.wire import (
    Envelope,
    Past,
    ProtocolError,
    Report,
    RunSettings,
    Training,
    append_past,
    check_state,
    checkpoint_key,
    dumps,
    from_json,
    loads,
    read_past,
    to_json,
)
from tests.agents.fake_step import bundle as fake_bundle
from tests.agents.fake_step import script
from tests.agents.real_step import DATA_SAMPLES, real_bundle, real_data
from tests.sample import thinned

SETTINGS = RunSettings(
    "train",
    steps=500,
    seed=5,
    validation=0.3,
    eval_every=7,
    save_best=True,
    checkpoint_s=1e-4,
    schedule="cosine",
    warmup_steps=20,
)
KEY = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its runs take half a second at least, however fast this machine is: there is time to end them."""
    return real_bundle(tmp_path_factory.mktemp("real"), slow=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return real_data(tmp_path / "data.npz")


def stop_after(steps: int) -> tuple[Callable[..., None], Callable[[], Stopped | None]]:
    """What ends a run hard when so many steps have been told."""
    seen: list[int] = []

    def notify(kind: str, **fields: Any) -> None:
        if kind == "step":
            seen.append(fields["step"])

    def should_stop() -> Stopped | None:
        return Stopped("test", "killed", cause="infra") if len(seen) >= steps else None

    return notify, should_stop


def same(one: LocalResult, other: LocalResult) -> None:
    """What does not depend on the clock."""
    a, b = one.report, other.report
    assert (a.outcome, a.losses, a.evaluation_before, a.evaluation_after) == (
        b.outcome,
        b.losses,
        b.evaluation_before,
        b.evaluation_after,
    )
    assert a.training is not None
    assert b.training is not None
    assert replace(a.training, resumed_step=None) == replace(b.training, resumed_step=None)


@pytest.mark.parametrize("seed", thinned(range(4), 2))
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(path: Path, data: Path, tmp_path: Path, seed: int) -> None:
    whole, parts, left = tmp_path / "whole", tmp_path / "parts", tmp_path / "left"
    alone = run_bundle(path, SETTINGS, data=data, save=whole)
    assert alone.error is None
    source, resume = random.Random(seed), None
    for _ in range(1 + seed % 2):
        notify, should_stop = stop_after(source.randint(10, 60))
        cut = run_bundle(
            path, SETTINGS, data=data, checkpoint=left, resume=resume, notify=notify, should_stop=should_stop
        )
        assert cut.report.outcome.code == "test"
        resume = left
    last = run_bundle(path, SETTINGS, data=data, resume=left, save=parts)
    same(last, alone)
    assert last.report.training is not None
    assert last.report.training.resumed_step
    assert last.report.measurement is not None
    assert len(last.report.measurement.step_us) == SETTINGS.steps - last.report.training.resumed_step
    assert parts.read_bytes() == whole.read_bytes()
    assert loads(Report, dumps(last.report)) == last.report, "it travels"


@pytest.fixture
def left(path: Path, data: Path, tmp_path: Path) -> Path:
    """A checkpoint in the middle of a run."""
    file = tmp_path / "left"
    notify, should_stop = stop_after(40)
    run_bundle(path, SETTINGS, data=data, checkpoint=file, notify=notify, should_stop=should_stop)
    return file


def test_a_checkpoint_is_of_one_bundle_its_data_and_its_settings(path: Path, data: Path, left: Path) -> None:
    for change in (
        {"seed": 6},
        {"steps": SETTINGS.steps + 1},
        {"patience": 90},
        {"learning_rate": 0.01},
        {"schedule": "linear"},
    ):
        refused = run_bundle(path, replace(SETTINGS, **change), data=data, resume=left)
        assert refused.report.outcome.code == "checkpoint.key", change
    other = real_data(data.parent / "other.npz", seed=9)
    assert run_bundle(path, SETTINGS, data=other, resume=left).report.outcome.code == "checkpoint.key"
    again = real_bundle(data.parent, slow=True, threads=1)
    assert run_bundle(again, SETTINGS, data=data, resume=left).report.outcome.code == "checkpoint.key"
    elsewhere = replace(SETTINGS, checkpoint_s=9.0, threads=1)
    assert run_bundle(path, elsewhere, data=data, resume=left).error is None, "what changes no number may be another"


def test_what_is_no_checkpoint_is_refused(path: Path, data: Path, left: Path, tmp_path: Path) -> None:
    good, source = left.read_bytes(), random.Random(3)
    for name, content in {"empty": b"", "short": b"x", "all past": b"\0" * 100, "no past": good[:-20]}.items():
        (tmp_path / "bad").write_bytes(content)
        assert run_bundle(path, SETTINGS, data=data, resume=tmp_path / "bad").report.outcome.code == (
            "checkpoint.format"
        ), name
    codes = set()
    for _ in range(25):
        damaged = bytearray(good)
        for _ in range(3):
            damaged[source.randrange(400 if source.random() < 0.6 else len(good))] ^= 1 << source.randrange(8)
        (tmp_path / "bad").write_bytes(damaged)
        codes.add(run_bundle(path, SETTINGS, data=data, resume=tmp_path / "bad").report.outcome.code)
    codes.discard(None)
    assert codes
    assert all(code and code.split(".")[0] in ("checkpoint", "weights") for code in codes), codes


def test_an_older_bundle_says_that_it_has_to_be_built_again(data: Path, tmp_path: Path) -> None:
    older = real_bundle(tmp_path, checkpoints=None)
    asked = replace(SETTINGS, checkpoint_s=None)
    assert run_bundle(older, asked, data=data, checkpoint=tmp_path / "x").report.outcome.code == "bundle.checkpoints"
    outcome = run_bundle(older, SETTINGS, data=data).report.outcome
    assert (outcome.cause, outcome.code, outcome.hint) == ("user", "bundle.checkpoints", "build it again")
    assert run_bundle(older, asked, data=data).error is None


def test_other_modes_have_no_checkpoints(path: Path, data: Path, tmp_path: Path) -> None:
    outcome = run_bundle(path, RunSettings("eval"), data=data, checkpoint=tmp_path / "x").report.outcome
    assert outcome.code == "checkpoint.mode"


@pytest.mark.usefixtures("scripts_for_binaries")
def test_a_binary_that_speaks_of_checkpoints_unasked_is_ended(tmp_path: Path, data: Path) -> None:
    told = {"checkpoint": '{"event": "checkpoint", "step": 3, "us": 1.0}', "resume": '{"event": "resume", "step": 3}'}
    for name, line in told.items():
        file = tmp_path / f"{name}.pfb"
        file.write_bytes(fake_bundle(step=script(then=f"print('{line}', flush=True)")))
        assert run_bundle(file, RunSettings("train", steps=3), data=data).report.outcome.code == "step.output"


GOOD = Past(KEY, "run_1", 2, "dev_1", 3, (1.0, 0.5, 0.25), (0.1, 0.1, 0.1))


def test_a_past_travels_and_holds_nothing_impossible() -> None:
    stream = io.BytesIO(b"state")
    stream.seek(0, io.SEEK_END)
    append_past(stream, GOOD)
    assert read_past(stream) == (GOOD, 5)
    with pytest.raises(ProtocolError):
        check_state(stream, 5, GOOD)
    changes: tuple[dict[str, Any], ...] = (
        {"step": 4},
        {"step": 0},
        {"losses": [1.0, None, 1.0]},
        {"learning_rates": [0.1]},
        {"attempt": 0},
        {"key": "mine"},
        {"schema": "pockfarm.checkpoint/2"},
        {"learning_rates": [0.1, 0.1, -1]},
    )
    for change in changes:
        with pytest.raises(ProtocolError):
            from_json(Past, {**to_json(GOOD), **change})


def test_the_key_is_of_what_changes_a_number() -> None:
    files: dict[str, Any] = {"bundle": KEY, "dataset": None, "validation_dataset": None, "weights": None}
    own = checkpoint_key(SETTINGS, **files)
    assert own == checkpoint_key(replace(SETTINGS, threads=2, checkpoint_s=None), **files)
    others = {checkpoint_key(SETTINGS, **{**files, name: "sha256:" + "b" * 64}) for name in files}
    on_board = {checkpoint_key(SETTINGS, **files, own_data="sha256:" + letter * 64) for letter in "bc"}
    assert len({own, *others, *on_board, checkpoint_key(replace(SETTINGS, seed=1), **files)}) == 8


def test_a_checkpoint_is_taken_apart_in_place(left: Path) -> None:
    with left.open("rb") as file:
        past, state_bytes = read_past(file)
    earlier = take_apart(left, past.key)
    assert earlier.past == past
    assert left.stat().st_size == state_bytes
    assert past.evaluation_before is not None
    assert past.evaluation_before.samples == DATA_SAMPLES
    assert Training("completed", 3, resumed_step=3).resumed_step == 3
    with pytest.raises(ProtocolError):
        Training("completed", 3, resumed_step=4)


def test_a_report_of_many_steps_travels() -> None:
    """In its envelope: base64 of some megabytes is one text."""
    envelope = Envelope("type", base64.b64encode(bytes(2 << 20)).decode(), ())
    assert loads(Envelope, dumps(envelope)) == envelope
    with pytest.raises(ProtocolError, match="payloadType"):
        from_json(Envelope, {**to_json(envelope), "payloadType": "x" * (2 << 20)})
    with pytest.raises(ProtocolError, match="the limit is 33554432"):
        from_json(Envelope, {**to_json(envelope), "payload": "x" * (33 << 20)})

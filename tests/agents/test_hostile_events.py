"""A binary that talks nonsense, or reports what cannot be: its run fails with a cause, the agent lives and works on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.execute import run_bundle
from device_agents.job.sandbox import Sandbox
from device_agents.job.step_events import Done, Failed, StepDone, Validated, read_event
from device_agents.job.training import TrainingFindings
from device_agents.wire import RunSettings
from tests.agents.conftest import AgentProcess, npz
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script
from tests.sample import thinned

Start = Callable[..., AgentProcess]
STEP = '{"event": "step", "step": 1, "loss": 0.5, "us": 1.0}'
KERNEL = (
    '{"event": "kernel", "index": 0, "name": "k", "phase": "forward", "us": 1.0, "flops": 1, "bytes_read": 1, '
    '"bytes_written": 1}'
)
START = '{"event": "start", "arena_bytes": 1, "weights_bytes": 1, "optimizer_bytes": 1, "threads": 1}'


def changed(line: str, **fields: object) -> str:
    return json.dumps({**json.loads(line), **fields})


GARBAGE: dict[str, str | bytes] = {
    "no JSON": "this is not JSON",
    "no object": "[]",
    "no event": "{}",
    "unknown event": '{"event": "surprise"}',
    "event of another type": '{"event": ["step"]}',
    "launch is not the binary's": '{"event": "launch", "monotonic_s": 1.0}',
    "launch without a time": '{"event": "launch"}',
    "us is NaN": STEP.replace("1.0", "NaN"),
    "us is infinite": STEP.replace("1.0", "Infinity"),
    "us is too large for a float": STEP.replace("1.0", "1e999"),
    "us is a huge integer": STEP.replace("1.0", "1" + "0" * 390),
    "us has a million digits": STEP.replace("1.0", "9" * 60_000),
    "us is zero": changed(STEP, us=0),
    "us is negative": changed(STEP, us=-1.5),
    "us is text": changed(STEP, us="fast"),
    "us is null": changed(STEP, us=None),
    "us is a list": changed(STEP, us=[1.0]),
    "us is true": changed(STEP, us=True),
    "us is absent": '{"event": "step", "step": 1, "loss": 0.5}',
    "us is longer than the process": changed(STEP, us=1e10),
    "loss is NaN": STEP.replace("0.5", "NaN"),
    "loss is text": changed(STEP, loss="low"),
    "step is a fraction": changed(STEP, step=1.5),
    "step is negative": changed(STEP, step=-1),
    "kernel time is zero": changed(KERNEL, us=0.0),
    "kernel time is NaN": KERNEL.replace('"us": 1.0', '"us": NaN'),
    "kernel above the device's peak": changed(KERNEL, us=1.0, flops=10**12),
    "kernel index is negative": changed(KERNEL, index=-1),
    "kernel index is huge": changed(KERNEL, index=10**30),
    "kernel index is text": changed(KERNEL, index="0"),
    "kernel twice": f"{KERNEL}\n{KERNEL}",
    "kernel flops beyond a database": changed(KERNEL, flops=1 << 63),
    "kernel bytes negative": changed(KERNEL, bytes_read=-1),
    "kernel name is half a surrogate": KERNEL.replace('"k"', '"\\ud800"'),
    "kernel name is a number": changed(KERNEL, name=7),
    "arena larger than any memory": changed(START, arena_bytes=1 << 60),
    "arena negative": changed(START, arena_bytes=-1),
    "arena is text": changed(START, arena_bytes="1"),
    "threads none": changed(START, threads=0),
    "threads absent": '{"event": "start"}',
    "peak larger than the memory": '{"event": "done", "peak_rss_bytes": 1152921504606846976}',
    "peak is text": '{"event": "done", "peak_rss_bytes": "1"}',
    "variant of no trial": '{"event": "variant", "trial": -1, "variant": -1, "rounds": 9, "us": [1], "ratio": [1]}',
    "error of no type": '{"event": "error", "cause": 1, "code": [], "message": {}}',
    "deep JSON": "[" * 50_000,
    "deep object": '{"event":' * 20_000,
    "a line of a megabyte": '{"event": "' + "x" * (1 << 20) + '"}',
    "a line without end": b"x" * (3 << 20),
    "not UTF-8": b'{"event": "step", "step": 1, "loss": 0.5, "us": 1.0, "x": "\xff\xfe"}',
    "UTF-16": STEP.encode("utf-16"),
    "NUL bytes": b"\0" * 1000,
    "more steps than asked for": "\n".join([STEP] * 5000),
}


def saying(garbage: str | bytes, folder: Path) -> bytes:
    """A bundle whose binary says this on its standard output after its steps, and then goes on as if nothing were."""
    data = garbage.encode() if isinstance(garbage, str) else garbage
    code = f"sys.stdout.buffer.write(open({str(folder / 'garbage')!r}, 'rb').read() + b'\\n'); sys.stdout.flush()"
    (folder / "garbage").write_bytes(data)
    return bundle(step=script(then=code))


@pytest.mark.parametrize("kind", thinned(sorted(GARBAGE), 10))
def test_garbage_ends_the_run_with_its_cause(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b.pfb"
    path.write_bytes(saying(GARBAGE[kind], tmp_path))
    outcome = run_bundle(path, RunSettings("profile", steps=2)).report.outcome
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "compiler", "step.output"), outcome
    assert len(outcome.message) < 1000


def test_an_evaluation_of_another_data_set_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "b.pfb", tmp_path / "d.npz"
    data.write_bytes(npz())
    for fields in ({"samples": 9}, {"accuracy": 1.5}, {"accuracy": -0.1}, {"loss": "x"}, {"samples": 0}):
        event = {"event": "eval", "samples": 8, "loss": 0.5, "accuracy": 0.5, **fields}
        path.write_bytes(saying(json.dumps(event), tmp_path))
        outcome = run_bundle(path, RunSettings("eval"), data=data).report.outcome
        assert (outcome.state, outcome.cause, outcome.code) == ("failed", "compiler", "step.output"), fields


VALIDATION = {"event": "validation", "step": 4, "samples": 2, "loss": 0.5, "accuracy": 0.5}
DONE = {"event": "done", "outcome": "completed", "best_step": 2, "saved_step": 4}
ERROR = {"event": "error", "cause": "user", "code": "train.diverged", "message": "NaN", "step": 4}
LIES: dict[str, list[dict[str, object]]] = {
    "a validation of other samples": [{**VALIDATION, "samples": 3}],
    "a validation of another step": [{**VALIDATION, "step": 5}],
    "a validation of an earlier step": [{**VALIDATION, "step": 2}],
    "a validation twice": [VALIDATION, VALIDATION],
    "a validation without a loss": [{**VALIDATION, "loss": None}],
    "a validation that is all too accurate": [{**VALIDATION, "accuracy": 1.5}],
    "another best": [{**DONE, "best_step": 4}],
    "a best that was never scored": [{**DONE, "best_step": 3}],
    "weights of another step": [{**DONE, "saved_step": 2}],
    "an early stop without patience": [{**DONE, "outcome": "stopped_early"}],
    "done and diverged": [{**DONE, "outcome": "diverged"}],
    "an outcome that is not known": [{**DONE, "outcome": "perfect"}],
    "done, and then steps": [DONE, {"event": "step", "step": 5, "loss": 0.5, "us": 1.0, "learning_rate": 0.1}],
    "done, and then a validation": [DONE, VALIDATION],
    "done twice": [DONE, DONE],
    "diverged at a step to come": [{**ERROR, "step": 9}],
    "diverged at a step before": [{**ERROR, "step": 1}],
    "diverged when it was done": [DONE, ERROR],
    "a step without its learning rate": [{"event": "step", "step": 5, "loss": 0.5, "us": 1.0}],
    "a learning rate below 0": [{"event": "step", "step": 5, "loss": 0.5, "us": 1.0, "learning_rate": -1}],
    "a learning rate above the one asked for": [{"event": "step", "step": 5, "loss": 1, "us": 1, "learning_rate": 0.2}],
}


def findings() -> TrainingFindings:
    """Of a run of mode train after four steps with a validation; what comes next is the binary's to say."""
    settings = RunSettings("train", steps=5, learning_rate=0.1, validation=0.25, eval_every=2)
    found = TrainingFindings(settings, validated=2, batch=4)
    for step in range(1, 5):
        found.take_step(StepDone(step, 0.5, 1.0, 0.1))
        if step == 2:
            found.take_validation(Validated(2, 2, 0.25))
    return found


def hear(found: TrainingFindings, event: object) -> None:
    {StepDone: found.take_step, Validated: found.take_validation, Done: found.take_end, Failed: found.take_error}[
        type(event)
    ](event)  # type: ignore[operator]


@pytest.mark.parametrize("kind", sorted(LIES))
def test_training_that_cannot_be_is_refused_and_leaves_a_report_that_can(kind: str) -> None:
    found = findings()
    *before, last = [json.dumps(line).encode() for line in LIES[kind]]
    for line in before:
        hear(found, read_event(line))
    with pytest.raises(p.ProtocolError):
        hear(found, read_event(last))
    said = found.report(has_weights=False)
    assert p.from_json(p.Training, p.to_json(said)) == said
    assert said.steps == 4
    assert said.outcome != "diverged"


def test_training_that_cannot_be_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    path, data = tmp_path / "b.pfb", tmp_path / "d.npz"
    data.write_bytes(npz())
    lie = json.dumps({**VALIDATION, "samples": 3})
    path.write_bytes(bundle(step=script(then=f"command == 'train' and print({lie!r}, flush=True)")))
    report = run_bundle(path, RunSettings("train", steps=4, validation=0.25, eval_every=3), data=data).report
    assert (report.outcome.cause, report.outcome.code) == ("compiler", "step.output")
    assert report.training is not None
    assert (report.training.outcome, report.training.steps) == ("stopped", 4)
    assert report.training.weights_step is None


def test_a_validation_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "b.pfb", tmp_path / "d.npz"
    data.write_bytes(npz())
    path.write_bytes(bundle(step=script(then=f"command == 'train' and print({json.dumps(VALIDATION)!r}, flush=True)")))
    outcome = run_bundle(path, RunSettings("train", steps=4), data=data).report.outcome
    assert (outcome.state, outcome.code) == ("failed", "step.output")


AGENT = (
    "us is NaN",
    "us is negative",
    "kernel time is NaN",
    "arena larger than any memory",
    "deep JSON",
    "not UTF-8",
    "kernel name is half a surrogate",
    "us is a huge integer",
)


def test_the_agent_outlives_one_bad_run_after_another(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    start_agent()
    for number, kind in enumerate(AGENT):
        farm.assign(saying(GARBAGE[kind], tmp_path), lease=f"lease-000{number}", steps=2)
        outcome = farm.report(f"lease-000{number}").outcome
        assert (outcome.state, outcome.cause, outcome.code) == ("failed", "compiler", "step.output"), kind
    farm.assign(bundle(), lease="lease-last", steps=2)
    assert farm.report("lease-last").outcome.state == "succeeded"
    assert sum(path == p.ENROL_PATH or path == p.RENEW_PATH for _, path in farm.requests) == 1, "it never restarted"


@pytest.mark.parametrize(
    "code", ["launch.sandbox", "launch.exec", "device.disk", "agent.internal", "", "A b", "x" * 500]
)
def test_a_binary_cannot_blame_the_device(tmp_path: Path, code: str) -> None:
    path = tmp_path / "b.pfb"
    error = {"event": "error", "cause": "internal", "code": code, "message": "the board is broken, really"}
    path.write_bytes(saying(json.dumps(error), tmp_path))
    outcome = run_bundle(path, RunSettings("profile", steps=2)).report.outcome
    assert (outcome.cause, outcome.code) == ("compiler", "step.error")


def test_the_binary_does_not_get_the_launchers_descriptor(tmp_path: Path) -> None:
    hear, say = os.pipe()
    try:
        command = Sandbox(1).command(["/bin/sh", "-c", f"echo forged >&{say}"], rlimits={}, group=None, say=say)
        done = subprocess.run(command, cwd=tmp_path, pass_fds=(say,), capture_output=True, check=False)
        os.close(say)
        said = os.read(hear, 1 << 16)
    finally:
        os.close(hear)
    assert done.returncode != 0
    assert json.loads(said)["event"] == "launch", "and nothing after it"


@pytest.mark.parametrize("mode", ["profile", "train"])
def test_fewer_steps_than_asked_for_are_no_success(tmp_path: Path, mode: p.Mode) -> None:
    step = script().replace(b"while done < steps and", b"while done < steps - 1 and")
    path, data = tmp_path / "b.pfb", tmp_path / "d.npz"
    path.write_bytes(bundle(step=step))
    data.write_bytes(npz())
    outcome = run_bundle(path, RunSettings(mode, steps=3), data=data).report.outcome
    assert (outcome.cause, outcome.code) == ("compiler", "step.incomplete")


@pytest.mark.parametrize("batch", [0, -1, 10**400, 1 << 40, "8e9"])
def test_a_manifest_with_an_impossible_batch_is_refused(tmp_path: Path, batch: object) -> None:
    path = tmp_path / "b.pfb"
    path.write_bytes(bundle(batch=batch))
    assert run_bundle(path, RunSettings("profile", steps=1)).report.outcome.code == "bundle.invalid"


def test_a_stream_of_words_on_standard_error_does_not_hold_up_the_events(
    farm: FakeFarm, start_agent: Start, gate: Path
) -> None:
    """500 long lines in another script are more than the farm takes at once."""
    farm.max_body_bytes = 1 << 20
    code = (
        "[print('語' * 2000, file=sys.stderr, flush=True) for _ in range(500)]\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    farm.assign(bundle(step=script(then=code)), steps=2)
    agent = start_agent("--once")
    farm.wait_for(lambda: sum(one.kind == "log" for one in farm.events["lease-0001"].values()) >= 500)
    gate.touch()
    agent.wait()
    assert farm.report().outcome.state == "succeeded"
    events = farm.events["lease-0001"]
    assert sorted(events) == list(range(1, len(events) + 1))
    assert [event.message for event in events.values() if event.kind == "phase"][-1] == "upload"

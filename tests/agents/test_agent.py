"""The agent as a process against a farm on a socket: the whole way, and the ways it can go wrong."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_agents import wire as p
from tests.agents.conftest import SOON, AgentProcess, npz
from tests.agents.fake_farm import FakeFarm, Fault
from tests.agents.fake_step import bundle, script
from tests.agents.processes import command_of, heartbeat_process, processes_of
from tests.service.lone_processes import wait_for_state
from tests.waiting import until

Start = Callable[..., AgentProcess]


def test_profile_run_end_to_end(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), steps=20, warmup=2)
    agent = start_agent("--once", "--name", "test-bench")
    report = farm.report()
    assert agent.wait() == 0
    assert report.outcome == p.Outcome("succeeded")
    assert report.measurement is not None
    assert [len(block.step_us) for block in report.measurement.blocks] == [4] * 5
    samples = numpy.array(report.measurement.step_us)
    assert report.measurement.median_us == numpy.median(samples.reshape(5, 4), axis=1).mean()
    assert report.measurement.p90_us == pytest.approx(numpy.percentile(samples, 90))
    assert report.measurement.samples_per_second == pytest.approx(4 / (report.measurement.mean_us * 1e-6))
    assert len(report.losses) == 4
    assert [row.us for row in report.kernels] == [10.0, 20.0, 30.0]
    assert report.memory.arena_bytes == 1000
    assert report.memory.peak_rss_bytes == 4096
    assert report.energy is None or report.energy.total_mj > 0
    assert report.measurement_class == farm.descriptions["device-1"].measurement_class == "host"
    assert report.isolation_level == farm.descriptions["device-1"].isolation_level >= 1
    assert farm.descriptions["device-1"].name == "test-bench"
    events = farm.events["lease-0001"]
    assert sorted(events) == list(range(1, len(events) + 1))
    assert [event for event in events.values() if event.kind == "step"][-1].step == 20
    assert not list((agent.state / "scratch").iterdir())
    assert oct((agent.state / "device-key").stat().st_mode)[-3:] == "600"


def test_train_run_uploads_weights(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), mode="train", steps=30, dataset=npz(label=1), weights=b"3.0")
    start_agent("--once").wait()
    report = farm.report()
    losses = [(3.0 - 1.0) ** 2 * 0.8 ** (2 * k) for k in range(30)]
    numpy.testing.assert_allclose([loss or 0 for loss in report.losses], losses, rtol=1e-9)
    assert report.evaluation_before == p.Evaluation(8, 4.0, 0.5)
    assert report.evaluation_after is not None
    assert report.evaluation_after.loss == pytest.approx(4.0 * 0.8**60)
    assert float(farm.weights["lease-0001"]) == pytest.approx(1 + 2 * 0.8**30)
    assert report.weights is not None
    assert report.weights.size_bytes == len(farm.weights["lease-0001"])
    upload = next(i for i, (_, path) in enumerate(farm.requests) if path.endswith("/weights") and _ == "PUT")
    record = next(i for i, (_, path) in enumerate(farm.requests) if path.endswith("/report"))
    assert upload < record


def test_eval_run(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), mode="eval", steps=0, dataset=npz(label=2))
    start_agent("--once").wait()
    report = farm.report()
    assert report.evaluation_before == p.Evaluation(8, 9.0, 0.5)
    assert report.measurement is None
    assert report.verdict is None


@pytest.mark.parametrize(
    ("signed", "code"),
    [
        ({"expires_at": 1000.0}, "envelope.expired"),
        ({"not_before": time.time() + 9000}, "envelope.not_before"),
        ({"device_class": "raspberry-pi-4"}, "envelope.device_class"),
        ({"device_id": "device-2"}, "envelope.device"),
        ({"target": "jetson-orin-nano"}, "envelope.target"),
    ],
)
def test_untrusted_assignment_is_not_even_downloaded(
    farm: FakeFarm, start_agent: Start, signed: dict[str, object], code: str
) -> None:
    farm.assign(bundle(), signed=signed)
    start_agent("--once").wait()
    outcome = farm.refusal()
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "policy", code)
    assert not [path for _, path in farm.requests if path.startswith("/agent/attempts/")]


def test_forged_signature_is_refused(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), signer=Ed25519PrivateKey.generate())
    start_agent("--once").wait()
    assert farm.refusal().code == "envelope.signature"
    assert not [path for _, path in farm.requests if path.startswith("/agent/attempts/")]


def test_older_release_is_refused_after_a_restart(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), steps=2)
    start_agent("--once").wait()
    farm.assign(bundle(), lease="lease-0002", signed={"release_number": 6})
    start_agent("--once").wait()
    assert farm.report("lease-0001").outcome.state == "succeeded"
    assert farm.refusal().code == "envelope.rollback"


@pytest.mark.parametrize("change", [b"same size, other bytes", b"longer"])
def test_changed_bundle_never_becomes_executable(farm: FakeFarm, start_agent: Start, change: bytes) -> None:
    good = bundle()
    farm.assign(good)
    farm.blobs["/agent/attempts/lease-0001/bundle"] = good + b"!" if change == b"longer" else good[:-1] + b"!"
    start_agent("--once").wait()
    outcome = farm.report().outcome
    assert outcome.cause == "policy"
    assert outcome.code == ("download.size" if change == b"longer" else "download.digest")


def test_data_with_nan_is_a_typed_failure_of_the_user(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle(), mode="train", dataset=npz(value=float("nan")))
    start_agent("--once").wait()
    outcome = farm.report().outcome
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "user", "data.nan")
    assert "NaN" in outcome.message


@pytest.mark.parametrize(
    ("behaviour", "cause", "code"),
    [
        ("garbage", "compiler", "step.output"),
        ("memory", "compiler", "step.exit"),
    ],
)
def test_misbehaving_binary(farm: FakeFarm, start_agent: Start, behaviour: str, cause: str, code: str) -> None:
    limits = p.Limits(memory_bytes=1 << 28)
    farm.assign(bundle(behaviour), mode="train", steps=3, dataset=npz(), limits=limits)
    start_agent("--once").wait()
    outcome = farm.report().outcome
    assert (outcome.cause, outcome.code) == (cause, code)


STEPS_OF_400_S = """
import time, types
from device_agents.job import step, stopwatch
passed_s, real, take = [0.0], time.monotonic, stopwatch.StepTimes.take
def later(self, us):
    take(self, us)
    passed_s[0] += 400.0
stopwatch.StepTimes.take = later
step.time = types.SimpleNamespace(monotonic=lambda: real() + passed_s[0])
"""
"""The clock by which a job's time is up goes on by so much with each step."""


@pytest.mark.parametrize(("signed_s", "asked_s"), [(1000.0, None), (1000.0, 3000.0), (3000.0, 1000.0)])
def test_the_least_time_limit_counts(
    farm: FakeFarm, start_agent: Start, signed_s: float, asked_s: float | None
) -> None:
    """The job makes three steps and no more: the longer limit would not be reached."""
    held = bundle(step=script("held", held_at=3))
    farm.assign(held, warmup=0, steps=1000, limits=p.Limits(run_s=signed_s), time_limit_s=asked_s)
    start_agent("--once", before=STEPS_OF_400_S).wait()
    report = farm.report()
    assert (report.outcome.cause, report.outcome.code) == ("limits", "limits.time")
    assert report.measurement is not None, "what was measured until then is kept"


def test_cancellation_reaches_the_binary(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), warmup=0, steps=10_000)
    agent = start_agent("--once")
    farm.wait_for_steps()
    farm.cancelled.add("lease-0001")
    outcome = farm.report().outcome
    assert (outcome.state, outcome.code) == ("cancelled", "run.cancelled")
    agent.wait()
    assert not processes_of(agent.state)


def test_binary_that_ignores_sigterm_is_killed(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("ignore-term"), warmup=0, steps=10_000)
    agent = start_agent("--once", before="import device_agents.job.step as step; step.GRACE_S = 1.0")
    farm.wait_for(lambda: bool(farm.events["lease-0001"]))
    until(lambda: bool(processes_of(agent.state)))
    farm.cancelled.add("lease-0001")
    assert farm.report().outcome.state == "cancelled"
    assert not processes_of(agent.state)


def test_stale_lease_stops_the_run_and_keeps_the_result(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), warmup=0, steps=10_000)
    agent = start_agent("--once")
    farm.wait_for_steps()
    farm.stale.add("lease-0001")
    assert agent.wait() == 0
    assert not farm.reports
    kept = agent.state / "spool" / "kept" / "lease-0001"
    envelope = p.loads(p.Envelope, (kept / "report.json").read_bytes())
    assert p.loads(p.Report, envelope.payload_bytes()).outcome.code == "lease.lost"
    assert "409" in (kept / "why.txt").read_text()


def test_killed_agent_leaves_nothing_running_and_goes_on(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), warmup=0, steps=10_000)
    agent = start_agent()
    farm.wait_for_steps()
    assert processes_of(agent.state)
    beating = heartbeat_process(agent)
    agent.process.kill()
    agent.wait()
    until(lambda: not processes_of(agent.state))
    until(lambda: not command_of(beating), "the lease must be able to run out")
    farm.assign(bundle(), lease="lease-0002", steps=2)
    again = start_agent("--once")
    assert farm.report("lease-0002").outcome.state == "succeeded"
    assert again.wait() == 0
    assert farm.renewals >= 1


def test_double_fork_does_not_outlive_the_job(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("escape"), warmup=0, steps=3)
    agent = start_agent("--once")
    assert farm.report().outcome.state == "succeeded"
    agent.wait()
    assert not processes_of(agent.state)


def test_sigterm_stops_the_job_and_reports_it(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), warmup=0, steps=10_000)
    agent = start_agent()
    farm.wait_for_steps()
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    outcome = farm.report().outcome
    assert (outcome.state, outcome.cause, outcome.code) == ("failed", "infra", "agent.stopped")
    assert not processes_of(agent.state)


def test_sigterm_while_idle_ends_at_once(farm: FakeFarm, start_agent: Start) -> None:
    agent = start_agent("--long-poll", "60")
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait() == 0
    farm.wait_for(lambda: farm.given_up == 1)


def test_result_survives_a_farm_that_goes_away(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), mode="train", steps=8, dataset=npz())
    agent = start_agent(before=SOON)
    farm.wait_for_steps()
    farm.stop()
    gate.touch()
    pending = agent.state / "spool" / "pending" / "lease-0001"
    until(pending.exists)
    farm.start_again()
    assert farm.report().outcome.state == "succeeded"
    assert "lease-0001" in farm.weights
    until(lambda: not pending.exists())


def test_busy_farm_and_expired_credential_are_got_over(farm: FakeFarm, start_agent: Start) -> None:
    farm.faults += [
        Fault("/bundle", 503, 2),
        Fault("/report", 500, 1),
        Fault("/lease", 401, 1),
        Fault("/events", 429, 1),
    ]
    farm.assign(bundle(), steps=4)
    assert start_agent("--once").wait() == 0
    assert farm.report().outcome.state == "succeeded"
    assert farm.renewals >= 1


def test_heartbeats_come_from_a_process_of_their_own(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), warmup=0, steps=12)
    agent = start_agent("--once", before="from device_agents.farm import heartbeat; heartbeat.STOPPED_INTERVALS = 1e6")
    farm.wait_for(lambda: len(farm.heartbeats) >= 2)
    os.kill(agent.process.pid, signal.SIGSTOP)
    try:
        wait_for_state(agent.process.pid, "T")
        count = len(farm.heartbeats)
        farm.wait_for(lambda: len(farm.heartbeats) >= count + 3)
    finally:
        os.kill(agent.process.pid, signal.SIGCONT)
    gate.touch()
    assert farm.report().outcome.state == "succeeded"


def test_two_agents_on_one_state_folder(farm: FakeFarm, start_agent: Start) -> None:
    start_agent()
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)
    second = start_agent()
    assert second.wait() == 2
    assert "another agent runs" in second.log.read_text()


def test_emulated_class_on_every_number(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    signed = {"target": "raspberry-pi-4"}
    farm.assign(
        bundle(target="raspberry-pi-4", required_features=["asimd"]),
        device_class="raspberry-pi-4",
        signed=signed,
        steps=2,
    )
    # The stand-in for the step is a script of this machine, which no emulator runs.
    runner = tmp_path / "runner"
    runner.write_text("#!/bin/sh\nhead -c 4 $1 | grep -q ELF && exec qemu-aarch64-static $1\nexec $@\n")
    runner.chmod(0o755)
    start_agent("--once", "--runner", str(runner), "--class", "raspberry-pi-4").wait()
    report = farm.report()
    assert report.outcome.state == "succeeded"
    assert report.measurement_class == "emulated"
    assert report.energy is None
    assert report.measurement is not None
    assert len(report.measurement.blocks) == 1
    assert report.verdict is not None
    assert report.verdict.kind == "function"


def test_agents_of_one_machine_take_turns(farm: FakeFarm, start_agent: Start, tmp_path: Path) -> None:
    lock = tmp_path / "machine.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        farm.assign(bundle(), steps=4)
        start_agent("--once", "--exclusive", str(lock))
        farm.wait_for(lambda: any(event.message == "wait" for event in farm.events["lease-0001"].values()))
        count = len(farm.heartbeats)
        farm.wait_for(lambda: len(farm.heartbeats) > count + 1)
        assert not farm.reports
    assert farm.report().outcome.state == "succeeded"


def test_an_agent_learns_the_farms_new_key_by_a_new_token_only(farm: FakeFarm, start_agent: Start) -> None:
    first = start_agent()
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)
    first.end()
    farm.key, farm.key_id, farm.token = Ed25519PrivateKey.generate(), "farm-2", ""
    second = start_agent()
    until(lambda: "does not know" in second.log.read_text())
    second.end()
    farm.token = "another"
    start_agent("--once")
    farm.wait_for(lambda: farm.requests.count(("POST", p.ENROL_PATH)) == 2)
    farm.assign(bundle(), steps=4)
    assert farm.report().outcome.state == "succeeded"


def test_a_device_that_lost_its_key_says_so_and_makes_no_other(farm: FakeFarm, start_agent: Start) -> None:
    first = start_agent()
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)
    first.end()
    (first.state / "device-key").unlink()
    second = start_agent()
    assert second.wait() == 2
    assert "device-key is missing" in second.log.read_text()
    assert not (first.state / "device-key").exists()


def test_an_agent_gives_signs_of_life_while_it_waits(farm: FakeFarm, start_agent: Start) -> None:
    agent = start_agent(before="from device_agents import agent; agent.BEAT_S = 0.05")
    farm.wait_for(lambda: ("POST", p.LEASE_PATH) in farm.requests)
    alive = agent.state / "alive"
    touched = {alive.stat().st_mtime_ns}

    def has_beaten_often() -> bool:
        touched.add(alive.stat().st_mtime_ns)
        return len(touched) > 3

    until(has_beaten_often)

"""Results outlive an outage: they go before new work, and one that is stuck does not stop the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device_agents import wire as p
from device_agents.agent import Agent
from device_agents.attempt import Station
from device_agents.devices.describe import describe_device
from device_agents.farm import retry
from device_agents.farm.client import FarmClient
from device_agents.farm.spool import MAX_PENDING, Spool
from device_agents.farm.state import StateFolder, seal
from device_agents.job.sandbox import probe
from device_agents.updating import Updater, Wishes
from tests.agents.conftest import SOON, AgentProcess, npz
from tests.agents.fake_farm import FakeFarm, Fault
from tests.agents.fake_step import bundle, script
from tests.agents.test_protocol import REPORT
from tests.sample import crossed, sample, thinned
from tests.waiting import HANG_S, until

Start = Callable[..., AgentProcess]
LONG = 1_000_000


def order(farm: FakeFarm, since: int, what: str) -> int:
    """Position of the first request for this after the first `since` requests."""
    return next(index for index, (_, path) in enumerate(farm.requests) if index >= since and path.endswith(what))


def test_the_spool_goes_before_new_work(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), mode="train", steps=6, dataset=npz())
    agent = start_agent(before=SOON)
    farm.wait_for_steps()
    farm.stop()
    gate.touch()
    until(lambda: agent.log.read_text().count("stays in the spool") >= 2)
    farm.assign(bundle(), lease="lease-0002", steps=2)
    seen = len(farm.requests)
    farm.start_again()
    assert farm.report().outcome.state == "succeeded"
    assert "lease-0001" in farm.weights
    assert farm.report("lease-0002").outcome.state == "succeeded"
    assert order(farm, seen, "lease-0001/report") < order(farm, seen, p.LEASE_PATH)


def test_so_it_does_after_the_agent_was_killed_too(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), warmup=0, steps=4)
    agent = start_agent(before=SOON)
    farm.wait_for_steps()
    farm.stop()
    gate.touch()
    until(lambda: (agent.state / "spool" / "pending" / "lease-0001").exists())
    agent.process.kill()
    agent.wait()
    farm.assign(bundle(), lease="lease-0002", steps=2)
    seen = len(farm.requests)
    farm.start_again()
    start_agent("--once")
    assert farm.report().outcome.state == "succeeded"
    assert farm.report("lease-0002").outcome.state == "succeeded"
    assert order(farm, seen, "lease-0001/report") < order(farm, seen, p.LEASE_PATH)


def test_a_farm_that_answers_503_to_everything_is_waited_for(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), warmup=0, steps=4)
    agent = start_agent(before=SOON)
    farm.wait_for_steps()
    fault = Fault("/agent/", 503, LONG)
    farm.faults.append(fault)
    gate.touch()
    until(lambda: agent.log.read_text().count("stays in the spool") >= 2)
    seen = len(farm.requests)
    fault.times = 0
    assert farm.report().outcome.state == "succeeded"
    farm.wait_for(lambda: any(path == p.LEASE_PATH for _, path in farm.requests[seen:]))
    assert order(farm, seen, "lease-0001/report") < order(farm, seen, p.LEASE_PATH)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at once, in this process."""
    monkeypatch.setattr(retry, "UPLOAD", retry.Policy(5, 0.01, 0.01))
    monkeypatch.setattr(retry, "LEASE", retry.Policy(None, 0.01, 0.01))


@contextmanager
def working(farm: FakeFarm, tmp_path: Path, patience_s: float) -> Iterator[Spool]:
    """An agent in a thread of this process."""
    state, device, stop = StateFolder(tmp_path / "state"), describe_device(), threading.Event()
    client = FarmClient(farm.url, state, session="s" * 16, description=device.description)
    client.enrol("one-time")
    station = Station(client, device, probe(hide=state.path, most=1), Spool(state.spool), stop, 0.2)
    updater = Updater(station.client, tmp_path / "state", Wishes())
    agent = Agent(station, updater, long_poll_s=0.5, patience_s=patience_s)
    thread = threading.Thread(target=agent.run, kwargs={"once": False})
    thread.start()
    try:
        yield station.spool
    finally:
        stop.set()
        thread.join(timeout=HANG_S)
        assert not thread.is_alive()


@pytest.mark.usefixtures("soon")
def test_a_result_that_the_farm_cannot_take_does_not_block_new_work_for_ever(farm: FakeFarm, tmp_path: Path) -> None:
    fault = Fault("lease-0001/report", 500, LONG)
    farm.faults.append(fault)
    farm.assign(bundle(), steps=2)
    with working(farm, tmp_path, patience_s=0.2) as spool:
        farm.wait_for(lambda: len(spool.pending()) == 1)
        farm.assign(bundle(), lease="lease-0002", steps=2)
        assert farm.report("lease-0002").outcome.state == "succeeded"
        until(lambda: [one.lease_token for one in spool.pending()] == ["lease-0001"])  # it is not thrown away
        farm.given.clear()  # so that no later request for work makes it stale again
        farm.stale.clear()
        fault.times = 0
        assert farm.report().outcome.state == "succeeded", "and still tried between"


@pytest.mark.usefixtures("soon")
def test_the_farm_is_well_but_does_not_take_the_result_yet(farm: FakeFarm, tmp_path: Path) -> None:
    """Within its patience the agent asks for nothing else."""
    fault = Fault("lease-0001/report", 500, 8)
    farm.faults.append(fault)
    farm.assign(bundle(), steps=2)
    farm.assign(bundle(), lease="lease-0002", steps=2)
    with working(farm, tmp_path, patience_s=600.0):
        assert farm.report("lease-0002").outcome.state == "succeeded"
    assert farm.reports["lease-0001"].outcome.state == "succeeded"
    assert "lease-0001" not in farm.stale


@pytest.mark.parametrize(
    ("path", "status"), sample(crossed(["/report", "/weights"], [422, 413]), {"/report-413", "/weights-422"})
)
def test_a_refused_result_ends_the_attempt_as_failed(
    farm: FakeFarm, start_agent: Start, path: str, status: int
) -> None:
    farm.faults.append(Fault(path, status, 1))
    farm.assign(bundle(), mode="train", steps=2, dataset=npz())
    agent = start_agent("--once")
    report = farm.report()
    assert agent.wait() == 0
    assert (report.outcome.state, report.outcome.cause, report.outcome.code) == ("failed", "infra", "report.refused")
    assert str(status) in report.outcome.message
    assert report.measurement is None
    kept = agent.state / "spool" / "kept" / "lease-0001"
    assert str(status) in (kept / "why.txt").read_text()
    assert (kept / "weights.safetensors").exists(), "nothing is lost"
    assert not list((agent.state / "spool" / "pending").iterdir())


def test_a_failed_run_whose_report_is_refused_keeps_its_cause(farm: FakeFarm, start_agent: Start) -> None:
    farm.faults.append(Fault("/report", 422, 1))
    farm.assign(bundle(), mode="train", steps=2, dataset=npz(value=float("nan")))
    start_agent("--once").wait()
    outcome = farm.report().outcome
    assert (outcome.cause, outcome.code) == ("user", "data.nan")


@pytest.mark.parametrize(
    "damage", thinned(["empty meta.json", "no report.json", "meta.json of another shape", "no files"], 2)
)
def test_a_damaged_result_is_put_aside(farm: FakeFarm, start_agent: Start, tmp_path: Path, damage: str) -> None:
    item = tmp_path / "state" / "spool" / "pending" / "lease-dead"
    item.mkdir(parents=True)
    if damage != "no files":
        meta = {"empty meta.json": "", "meta.json of another shape": "[1]"}.get(damage, '{"weights_digest": null}')
        (item / "meta.json").write_text(meta)
    if damage in ("empty meta.json", "meta.json of another shape"):
        (item / "report.json").write_text("{}")
    farm.assign(bundle(), steps=2)
    agent = start_agent("--once")
    assert farm.report().outcome.state == "succeeded"
    assert agent.wait() == 0
    assert "damaged" in (agent.state / "spool" / "kept" / "lease-dead" / "why.txt").read_text()


def test_too_many_results_are_put_aside_and_not_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(MAX_PENDING + 2):
        spool.put(f"lease-{number:04}", b"{}", weights=None, weights_digest=None)
    assert len(spool.pending()) == MAX_PENDING
    assert [refused.lease_token for refused in spool.refused()] == ["lease-0000", "lease-0001"]


def test_a_report_survives_as_it_was_sealed(tmp_path: Path) -> None:
    key = StateFolder(tmp_path / "state").device_key()
    envelope = p.dumps(seal(key, "device", p.REPORT_TYPE, p.dumps(REPORT)))
    assert Spool(tmp_path / "spool").put("lease-0001", envelope, weights=None, weights_digest=None).report() == REPORT

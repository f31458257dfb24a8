"""Real agents at a real farm: one on a board with a fault of its own, one on a good board."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_agents import wire
from tests.agents.conftest import ROOT
from tests.agents.live_farm import LiveFarm, live_farm
from tests.waiting import HANG_S, until

AN_HOUR_AHEAD = "import time; now = time.time; time.time = lambda: now() + 3600.0"
OLD_AND_AN_HOUR_BEHIND = """
import time; now = time.time; time.time = lambda: now() - 3600.0
from device_agents.farm.client import FarmClient
headers = FarmClient._headers
FarmClient._headers = lambda *a: {k: v for k, v in headers(*a).items() if k != "X-Pockfarm-Clock"}
FarmClient.clock_is_wrong = lambda _: False
"""
NO_SANDBOX = """
import json, device_agents.options
from device_agents.job.sandbox import Sandbox, probe
class Broken(Sandbox):
    def command(self, *arguments, **options):
        *words, plan = super().command(*arguments, **options)
        return [*words, json.dumps({**json.loads(plan), "cgroups": ["/nowhere/cgroup.procs"]})]
device_agents.options.probe = lambda **options: Broken(**vars(probe(**options)))
"""
MAIN = "\nimport sys; from device_agents.agent import main; sys.exit(main())"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def farm(loopback: None, tmp_path: Path) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


@pytest.fixture
def start(farm: LiveFarm, tmp_path: Path) -> Iterator[Start]:
    """Start an agent, in the same Python as lines that spoil its board."""
    agents: list[subprocess.Popen[bytes]] = []

    def act(name: str, fault: str = "") -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", fault + MAIN, "--server", farm.url, "--state", str(tmp_path / name)]
        words += ["--name", name, "--run-as", "0", "--isolation", "1", "--long-poll", "1", "--class", "x86-64"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "POCKFARM_ENROL_TOKEN": farm.token()}
        with (tmp_path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=ROOT, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        agents.append(process)
        return process

    yield act
    for agent in agents:
        agent.terminate()
        agent.wait(timeout=HANG_S)


@pytest.mark.parametrize(
    ("fault", "runs", "message"),
    [
        (AN_HOUR_AHEAD, 10, "clock is 3,600 s ahead of the farm's"),
        (OLD_AND_AN_HOUR_BEHIND, 10, "envelope.not_before 3 times"),
        (NO_SANDBOX, 12, "launch.sandbox 3 times"),
    ],
    ids=["clock", "clock-of-an-older-agent", "sandbox"],
)
def test_a_bad_board_is_quarantined_and_the_good_one_does_all(
    farm: LiveFarm, start: Start, fault: str, runs: int, message: str
) -> None:
    digest = farm.keep_bundle()
    start("bad", fault)
    until(lambda: bool(farm.device("bad")))
    for _ in range(runs):
        farm.run(digest)
    until(lambda: farm.device("bad")["state"] == "quarantined")
    assert {run["state"] for run in farm.runs()} == {"queued"}, "with the bad one alone they wait"
    assert message in farm.device("bad")["state_reason"]
    start("good")
    until(lambda: {run["state"] for run in farm.runs()} == {"succeeded"})
    tries = [farm.http.get(f"/runs/{run['id']}").json()["tries"] for run in farm.runs()]
    bad = farm.device("bad")["id"]
    assert sum(one["device_id"] == bad for tried in tries for one in tried) <= 3
    assert farm.device("good")["state"] == "active"


def renewals(farm: LiveFarm) -> float:
    """How many of its agents' requests for a fresh credential the farm has answered."""
    lines = farm.http.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("pockfarm_requests_total") and wire.RENEW_PATH in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted)


def test_an_agent_says_that_its_clock_is_off(farm: LiveFarm, start: Start, tmp_path: Path) -> None:
    start("bad", AN_HOUR_AHEAD)
    until(lambda: bool(farm.device("bad")) and "ahead of the farm's" in (tmp_path / "bad.log").read_text())
    before = renewals(farm)
    until(lambda: renewals(farm) >= before + 2)
    assert (tmp_path / "bad.log").read_text().count("ahead of the farm's") == 1, "once, not with each request"
    until(lambda: farm.device("bad")["state"] == "quarantined")
    assert "/agent/lease" not in farm.http.get("/metrics").text, "it asks for no work; the farm knows by its renewals"

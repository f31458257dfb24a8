"""The process that renews a lease is watched: dead or stopped, another takes its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from device_agents.devices.describe import describe_device
from device_agents.farm import heartbeat
from device_agents.farm.client import FarmClient
from device_agents.farm.heartbeat import Heartbeat
from device_agents.farm.state import StateFolder
from tests.agents.conftest import AgentProcess
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle
from tests.agents.test_agent import until

Start = Callable[..., AgentProcess]


def heartbeat_process(agent: AgentProcess) -> int:
    """The agent's heartbeat process of the moment; 0 if there is none."""
    children = Path(f"/proc/{agent.process.pid}/task").glob("*/children")
    pids = [int(word) for path in children for word in path.read_text().split()]
    return next((pid for pid in pids if b"device_agents.farm.heartbeat" in command_of(pid)), 0)


def command_of(pid: int) -> bytes:
    """Nothing of a process that has ended since it was seen."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_heartbeat_process_that_is_killed_is_started_again(farm: FakeFarm, start_agent: Start) -> None:
    farm.assign(bundle("slow"), steps=30)
    agent = start_agent("--once")
    farm.wait_for(lambda: len(farm.heartbeats) >= 2)
    killed = heartbeat_process(agent)
    os.kill(killed, signal.SIGKILL)
    until(lambda: heartbeat_process(agent) not in (0, killed))
    count = len(farm.heartbeats)
    farm.wait_for(lambda: len(farm.heartbeats) >= count + 2)
    assert farm.heartbeats[-1][1].phase == "run", "it knows what the one before was told"
    assert farm.report(timeout_s=60).outcome.state == "succeeded"
    assert agent.wait() == 0
    assert "the heartbeat process ended with code -9; starting another" in agent.log.read_text()


def test_one_that_is_stopped_is_killed_and_started_again(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "HUNG_S", 3.0)
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.3)
    client = FarmClient(farm.url, StateFolder(tmp_path), session="s" * 16, description=describe_device().description)
    client.enrol("one-time")
    farm.assign(bundle("slow"), steps=1000)
    with Heartbeat(client, "lease-0001", interval_s=0.2) as beating:
        farm.wait_for(lambda: len(farm.heartbeats) >= 2)
        first = beating._process
        assert first is not None
        first.send_signal(signal.SIGSTOP)
        until(lambda: beating._process is not first and beating._process is not None)
        assert first.poll() == -signal.SIGKILL
        count = len(farm.heartbeats)
        farm.wait_for(lambda: len(farm.heartbeats) >= count + 2)
        assert beating.lost is None
    assert beating._process is not None
    assert beating._process.poll() is not None, "at its end none is left"


def test_what_is_told_while_the_process_starts_is_in_its_first_beat(farm: FakeFarm, tmp_path: Path) -> None:
    client = FarmClient(farm.url, StateFolder(tmp_path), session="s" * 16, description=describe_device().description)
    client.enrol("one-time")
    farm.assign(bundle("slow"), steps=1000)
    with Heartbeat(client, "lease-0001", interval_s=600) as beating:
        beating.tell("unpack", 0)
        beating.tell("run", 0)
        farm.wait_for(lambda: len(farm.heartbeats) >= 1)
    assert [request.phase for _, request in farm.heartbeats] == ["run"]

"""The process that renews a lease is watched: dead or stopped, another takes its place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from device_agents.devices.describe import describe_device
from device_agents.farm import heartbeat
from device_agents.farm.client import FarmClient
from device_agents.farm.heartbeat import Heartbeat, Rhythm
from device_agents.farm.state import StateFolder
from tests.agents.conftest import AgentProcess
from tests.agents.fake_farm import FakeFarm
from tests.agents.fake_step import bundle, script
from tests.agents.processes import heartbeat_process
from tests.service.lone_processes import wait_for_state
from tests.waiting import until

Start = Callable[..., AgentProcess]


def test_a_heartbeat_process_that_is_killed_is_started_again(farm: FakeFarm, start_agent: Start, gate: Path) -> None:
    farm.assign(bundle(step=script("held", gate=gate)), warmup=0, steps=30)
    agent = start_agent("--once")
    farm.wait_for_steps()
    killed = heartbeat_process(agent)
    os.kill(killed, signal.SIGKILL)
    until(lambda: heartbeat_process(agent) not in (0, killed))
    count = len(farm.heartbeats)
    farm.wait_for(lambda: len(farm.heartbeats) >= count + 2)
    assert farm.heartbeats[-1][1].phase == "run", "it knows what the one before was told"
    gate.touch()
    assert farm.report().outcome.state == "succeeded"
    assert agent.wait() == 0
    assert "heartbeat process ended with code -9" in agent.log.read_text()


class LookingClock:
    """Goes on by `step_s` with each look at it, and not otherwise."""

    def __init__(self) -> None:
        self.now_s, self.step_s = time.monotonic(), 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_one_that_is_stopped_is_killed_and_started_again(
    farm: FakeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LookingClock()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.01)
    monkeypatch.setattr(heartbeat, "RESTART_S", 0.01)
    client = FarmClient(farm.url, StateFolder(tmp_path), session="s" * 16, description=describe_device().description)
    client.enrol("one-time")
    with Heartbeat(client, "lease-0001", interval_s=0.2) as beating:
        farm.wait_for(lambda: len(farm.heartbeats) >= 2)
        first = beating._process
        assert first is not None
        first.send_signal(signal.SIGSTOP)
        wait_for_state(first.pid, "T")
        clock.step_s = 2.0
        until(lambda: beating._process is not first)
        clock.step_s = 0.0
        assert first.poll() == -signal.SIGKILL
        count = len(farm.heartbeats)
        farm.wait_for(lambda: len(farm.heartbeats) >= count + 2)
        assert beating.lost is None
    assert beating._process is not None
    assert beating._process.poll() is not None, "at its end none is left"


def test_what_is_told_while_the_process_starts_is_in_its_first_beat(farm: FakeFarm, tmp_path: Path) -> None:
    client = FarmClient(farm.url, StateFolder(tmp_path), session="s" * 16, description=describe_device().description)
    client.enrol("one-time")
    with Heartbeat(client, "lease-0001", interval_s=600) as beating:
        beating.tell("unpack", 0)
        beating.tell("run", 0)
        farm.wait_for(lambda: len(farm.heartbeats) >= 1)
    assert [request.phase for _, request in farm.heartbeats] == ["run"]


def test_a_stopped_agents_lease_runs_out_and_one_that_goes_on_is_heard_of_again() -> None:
    rhythm = Rhythm(interval_s=2.0, stopped_s=20.0, now_s=100.0)

    def beats(start_s: int, end_s: int, *, is_agent_stopped: bool) -> list[int]:
        beaten = []
        for now_s in range(start_s, end_s):
            if rhythm.is_due(now_s, is_agent_stopped=is_agent_stopped):
                beaten.append(now_s)
                rhythm.next_s = now_s + 2.0
        return beaten

    assert beats(100, 105, is_agent_stopped=False) == [100, 102, 104]
    assert beats(105, 300, is_agent_stopped=True) == list(range(106, 126, 2)), "a pause is no end"
    assert beats(300, 305, is_agent_stopped=False) == [301, 303]

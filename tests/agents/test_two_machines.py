"""Two real agents with copies of one state folder on a real farm: one works, the other stops and says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from service.devices import machines
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import live_farm
from tests.waiting import until


def test_one_of_two_agents_works_and_the_other_stops(
    tmp_path: Path, loopback: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "UNDER_WAY_S", 0.1)
    monkeypatch.setattr(machines, "ASK_AGAIN_S", 1)
    agents: list[AgentProcess] = []
    with live_farm(tmp_path / "farm") as farm:
        try:
            agents.append(AgentProcess(farm.url, farm.token(), tmp_path / "first", "--name", "pi", "--long-poll", "1"))
            until(lambda: bool(farm.device("pi")))
            shutil.copytree(tmp_path / "first", tmp_path / "second", ignore=shutil.ignore_patterns("*.lock"))
            agents.append(AgentProcess(farm.url, "", tmp_path / "second", "--name", "pi-copy", "--long-poll", "1"))
            runs = [farm.run(farm.keep_bundle()) for _ in range(3)]
            assert agents[1].wait() == 3
            until(lambda: all(farm.http.get(f"/runs/{run}").json()["state"] == "succeeded" for run in runs))
            assert agents[0].process.poll() is None
            shown = farm.http.get(f"/devices/{farm.device('pi')['id']}").json()
        finally:
            for agent in agents:
                agent.end()
        tries = [attempt for run in runs for attempt in farm.http.get(f"/runs/{run}/why").json()["tries"]]
    log = agents[1].log.read_text()
    assert "asks to wait" in log
    assert "another agent works as this device, so this one ends" in log
    assert str(tmp_path / "first") in log, "the log names the machine that works"
    assert [attempt["strike"] for attempt in tries] == [None] * 3
    assert shown["name"] == "pi"
    message = next(mark["message"] for mark in shown["marks"] if mark["code"] == "two-machines")
    assert str(tmp_path / "first") in message
    assert str(tmp_path / "second") in message
    assert not any(line["kind"] == "restarted" for line in shown["history"]), "nobody took it from the other"

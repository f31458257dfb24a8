"""A run of a real farm whose agent is killed in the middle: another agent goes on, and the result is the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from service.store.database.models import Attempt, Checkpoint
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import LiveFarm, live_farm
from tests.agents.real_step import real_bundle, real_data
from tests.waiting import until

BODY = {
    "mode": "train",
    "steps": 2_000,
    "seed": 3,
    "validation": 0.3,
    "eval_every": 250,
    "save_best": True,
    "checkpoint_s": 0.1,
    "schedule": "linear",
    "learning_rate": 0.003,
}


HELD_AT, WITHOUT_END = "700", "1000000000"
"""Calls of its model in each process of a training; a millisecond each, so that there are checkpoints."""


@pytest.fixture
def live(tmp_path: Path, loopback: None) -> Iterator[LiveFarm]:
    with live_farm(tmp_path / "farm") as running:
        yield running


@pytest.fixture
def leave(tmp_path: Path) -> Path:
    """The file that says how far each process of a training goes."""
    path = tmp_path / "leave"
    path.write_text(HELD_AT)
    return path


def lose(live: LiveFarm, run_id: str, agent: AgentProcess) -> None:
    """Kill the agent, and let its lease run out, though its last heartbeat may be on its way."""
    agent.process.kill()
    agent.wait()

    def is_queued() -> bool:
        with live.farm.database.transaction() as session:
            session.execute(update(Attempt).where(Attempt.run_id == run_id).values(lease_expires_at=0.0))
        return bool(live.http.get(f"/runs/{run_id}").json()["state"] == "queued")

    until(is_queued)


@pytest.fixture
def start(live: LiveFarm, tmp_path: Path) -> Iterator[Callable[[str], AgentProcess]]:
    agents: list[AgentProcess] = []

    def begin(name: str) -> AgentProcess:
        agents.append(AgentProcess(live.url, live.token(), tmp_path / name, "--name", name))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.end()


def sent(live: LiveFarm, tmp_path: Path, leave: Path) -> dict[str, Any]:
    """A run's body: the bundle and the data are at the farm."""
    file = real_data(tmp_path / "data.npz")
    data = live.http.post("/datasets", files={"file": ("data.npz", file.read_bytes())}).json()["digest"]
    return {**BODY, "bundle": live.keep_bundle(real_bundle(tmp_path, leave=leave)), "dataset": data}


def begun(live: LiveFarm, body: dict[str, Any]) -> str:
    answer = live.http.post("/runs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def stands_at(live: LiveFarm, run_id: str) -> int:
    with live.farm.database.read() as session:
        return session.scalar(select(Checkpoint.step).where(Checkpoint.run_id == run_id)) or 0


def attempts(live: LiveFarm, run_id: str) -> int:
    return int(live.http.get(f"/runs/{run_id}").json()["attempts"])


def ended(live: LiveFarm, run_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}

    def has_ended() -> bool:
        shown.update(live.http.get(f"/runs/{run_id}").json())
        return shown["state"] not in ("queued", "leased", "running")

    until(has_ended, lambda: str(shown))
    return shown


def report_of(live: LiveFarm, run_id: str) -> dict[str, Any]:
    return dict(live.http.get(f"/runs/{run_id}/report").json()["report"])


def test_killed_agents_lose_nothing_of_what_was_learned(
    live: LiveFarm, start: Callable[[str], AgentProcess], tmp_path: Path, leave: Path
) -> None:
    body = sent(live, tmp_path, leave)
    run_id, before = begun(live, body), 0
    for number, name in enumerate(("first", "second"), 1):
        agent = start(name)
        # What the first one sent last may be kept after it was killed: that is no work of the second.
        until(lambda number=number: attempts(live, run_id) == number)  # type: ignore[misc]
        until(lambda before=before: stands_at(live, run_id) > before)  # type: ignore[misc]
        lose(live, run_id, agent)
        before = stands_at(live, run_id)
    leave.write_text(WITHOUT_END)
    start("third")
    shown, report = ended(live, run_id), report_of(live, run_id)
    assert shown["state"] == "succeeded", shown
    assert shown["attempts"] == 3
    assert report["training"]["resumed_step"] >= before > 0
    other = begun(live, body)
    assert ended(live, other)["state"] == "succeeded"
    alone = report_of(live, other)
    assert "resumed_step" not in alone["training"]
    report["training"].pop("resumed_step")
    for name in ("losses", "training", "evaluation_before", "evaluation_after", "weights"):
        assert report[name] == alone[name], name


def test_an_agent_that_is_told_to_go_leaves_where_it_stands(
    live: LiveFarm, start: Callable[[str], AgentProcess], tmp_path: Path, leave: Path
) -> None:
    """Without a checkpoint in time: the last one is taken when it is told to stop (but not while it validates)."""
    steps = 1_500
    run_id = begun(live, {**sent(live, tmp_path, leave), "checkpoint_s": 3000.0, "steps": steps, "eval_every": steps})
    agent = start("first")
    until(lambda: int(live.http.get(f"/runs/{run_id}").json()["steps_done"]) > 500)
    agent.process.terminate()
    more = itertools.count(int(HELD_AT) + 1)

    def has_gone() -> bool:
        leave.write_text(str(next(more)))  # it hears of it between two steps
        return agent.process.poll() is not None

    until(has_gone)
    left = stands_at(live, run_id)
    assert 500 < left < steps
    leave.write_text(WITHOUT_END)
    start("second")
    assert ended(live, run_id)["state"] == "succeeded"
    assert report_of(live, run_id)["training"]["resumed_step"] == left

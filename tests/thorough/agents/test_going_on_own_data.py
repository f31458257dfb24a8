"""Training on a board's own data that goes on where it stood: on another board with the same data, and where what was
learned has to stay, on the same board after its power has gone. The result is that of a run that nobody has stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from device_agents.farm.unfinished import MOST_RUNS, Unfinished
from service.store.database.models import Attempt, Checkpoint
from tests.agents.conftest import AgentProcess
from tests.agents.live_farm import LiveFarm
from tests.agents.real_step import real_bundle, real_data
from tests.thorough.agents.test_going_on_elsewhere import (
    BODY,
    WITHOUT_END,
    begun,
    ended,
    leave,
    live,
    lose,
    report_of,
    stands_at,
)
from tests.waiting import until

__all__ = ["leave", "live"]
Start = Callable[..., AgentProcess]


@pytest.fixture
def start(live: LiveFarm, tmp_path: Path) -> Iterator[Start]:
    """`start(name, data, stay=...)`: an agent with that data set as `digits`; the same name again, the same board."""
    agents: list[AgentProcess] = []

    def begin(name: str, data: Path, *, stay: bool = False) -> AgentProcess:
        known = live.device(name)
        allowed = f"digits={data}{',weights-stay' if stay else ''}"
        agents.append(AgentProcess(live.url, live.token(), tmp_path / name, "--name", name, "--data", allowed))
        until(lambda: bool(known or live.device(name)))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.end()


@pytest.fixture
def body(live: LiveFarm, tmp_path: Path, leave: Path) -> dict[str, Any]:
    bundle = live.keep_bundle(real_bundle(tmp_path, leave=leave))
    return {**BODY, "bundle": bundle, "dataset": "device:digits"}


def kept_step(live: LiveFarm, run_id: str, attempt: int = 1) -> int:
    """The farthest checkpoint of an attempt at the run that a board has told of."""
    of_attempt = select(Attempt.checkpoint_step).where(Attempt.run_id == run_id, Attempt.n == attempt)
    with live.farm.database.read() as session:
        return session.scalar(of_attempt) or 0


def kept_by(state: Path) -> list[Path]:
    return sorted((state / "unfinished").iterdir())


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """What does not depend on the clock, nor on how often a board died."""
    one, other = ({**told, "training": {**told["training"], "resumed_step": None}} for told in (one, other))
    for name in ("losses", "training", "evaluation_before", "evaluation_after", "weights"):
        assert one[name] == other[name], name


def test_another_board_with_the_same_data_goes_on(
    live: LiveFarm, start: Start, body: dict[str, Any], tmp_path: Path, leave: Path
) -> None:
    data = real_data(tmp_path / "data.npz")
    first = start("first", data)
    run_id = begun(live, body)
    until(lambda: stands_at(live, run_id) > 0)
    lose(live, run_id, first)
    stood = stands_at(live, run_id)
    leave.write_text(WITHOUT_END)
    start("second", data)
    assert ended(live, run_id)["state"] == "succeeded"
    report = report_of(live, run_id)
    assert report["training"]["resumed_step"] >= stood > 0
    alone = begun(live, body)
    assert ended(live, alone)["state"] == "succeeded"
    same(report, report_of(live, alone))
    assert report["weights"]["digest"]


def test_where_weights_stay_the_board_goes_on_by_itself(
    live: LiveFarm, start: Start, body: dict[str, Any], tmp_path: Path, leave: Path
) -> None:
    data = real_data(tmp_path / "data.npz")
    board = start("board", data, stay=True)
    run_id, before = begun(live, body), 0
    for attempt in (1, 2):  # not what the board tells of the first one when it is back
        until(lambda n=attempt, before=before: kept_step(live, run_id, n) > before)  # type: ignore[misc]
        lose(live, run_id, board)
        before = kept_step(live, run_id, attempt)
        kept = tmp_path / "board" / "unfinished" / run_id
        assert (kept.name, kept.stat().st_mode & 0o777) == (run_id, 0o600)
        if attempt == 2:
            leave.write_text(WITHOUT_END)
        board = start("board", data, stay=True)
    shown, report = ended(live, run_id), report_of(live, run_id)
    assert (shown["state"], shown["attempts"]) == ("succeeded", 3)
    assert report["training"]["resumed_step"] >= before > 0
    until(lambda: kept_by(tmp_path / "board") == [])
    alone = begun(live, body)
    assert ended(live, alone)["state"] == "succeeded"
    same(report, report_of(live, alone))
    with live.farm.database.read() as session:
        assert session.scalars(select(Checkpoint)).all() == []
    assert report["weights"] is None, "nothing of what was learned has left the board"


def test_what_is_kept_goes_with_the_end_of_its_run(
    live: LiveFarm, start: Start, body: dict[str, Any], tmp_path: Path
) -> None:
    """Here it ends while the board is away, and another is of a run that the farm does not know."""
    data = real_data(tmp_path / "data.npz")
    board = start("board", data, stay=True)
    run_id = begun(live, body)
    until(lambda: kept_step(live, run_id) > 0)
    lose(live, run_id, board)
    assert live.http.post(f"/runs/{run_id}/cancel").status_code == 202
    (tmp_path / "board" / "unfinished" / "run_nobody").write_bytes(b"left by a run of another time")
    (tmp_path / "board" / "unfinished" / f".{run_id}").write_bytes(b"half of a checkpoint")
    assert len(kept_by(tmp_path / "board")) == 3
    start("board", data, stay=True)
    until(lambda: kept_by(tmp_path / "board") == [])


def test_a_kept_checkpoint_of_other_data_is_no_beginning(
    live: LiveFarm, start: Start, body: dict[str, Any], tmp_path: Path, leave: Path
) -> None:
    data = real_data(tmp_path / "data.npz")
    board = start("board", data, stay=True)
    run_id = begun(live, body)
    until(lambda: kept_step(live, run_id) > 0)
    lose(live, run_id, board)
    leave.write_text(WITHOUT_END)
    real_data(data, seed=9)
    start("board", data, stay=True)
    assert ended(live, run_id)["state"] == "succeeded"
    assert "resumed_step" not in report_of(live, run_id)["training"]
    events = live.http.get(f"/runs/{run_id}/events", headers={"Accept": "application/json"}).text
    assert "training starts from its first step: checkpoint.key" in events


def test_few_are_kept_and_under_names_of_runs_only(tmp_path: Path) -> None:
    folder, file = tmp_path / "unfinished", tmp_path / "checkpoint"
    folder.mkdir()
    unfinished = Unfinished(folder)
    for number in range(MOST_RUNS + 2):
        file.write_bytes(b"%d" % number)
        unfinished.keep(f"run_{number}", file)
    assert unfinished.runs() == tuple(f"run_{number}" for number in range(2, MOST_RUNS + 2))
    assert unfinished.copy("run_3", tmp_path / "copy") == tmp_path / "copy"
    assert (tmp_path / "copy").read_bytes() == b"3"
    assert unfinished.copy("run_0", tmp_path / "none") is None
    for name in ("../checkpoint", "", ".", "a/b", "x" * 101):
        with pytest.raises(OSError, match="no checkpoint of its own"):
            unfinished.keep(name, file)
        unfinished.forget(name)
        assert unfinished.copy(name, tmp_path / "none") is None
    assert file.exists()

"""A device's isolation level is believed as far as its own facts bear it out, wherever it says one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from device_agents import wire as p
from tests.service.board import Board, description, leased
from tests.service.farms import TestFarm, open_test_farm

WHOLE = (
    "no privileges",
    "no new privileges",
    "system calls",
    "one process",
    "own processes",
    "no network",
    "empty root",
    "read-only folder",
    "memory and processes",
    "limited out/",
)


def facts(*, without: tuple[str, ...] = (), lacks: str = "") -> dict[str, str]:
    told = {"kernel": "6.1", "isolation": ", ".join(part for part in WHOLE if part not in without)}
    return told | ({"isolation_lacks": lacks} if lacks else {})


@pytest.mark.parametrize(
    ("part", "most"),
    [
        ("no new privileges", 0),
        ("system calls", 1),
        ("one process", 1),
        ("own processes", 2),
        ("no network", 2),
        ("empty root", 2),
        ("read-only folder", 2),
        ("memory and processes", 3),
        ("limited out/", 4),
    ],
)
def test_a_level_needs_its_parts_and_those_below(part: str, most: int) -> None:
    for told in (facts(without=(part,)), facts(lacks=f"own user: shared; {part}: refused by the kernel: EPERM")):
        assert [p.borne_out(level, told) for level in range(5)] == [min(level, most) for level in range(5)]


def test_who_tells_no_parts_is_believed_and_who_tells_of_none_is_not() -> None:
    assert p.borne_out(4, {"kernel": "4.9"}) == 4
    assert p.borne_out(4, {"isolation": ""}) == 0
    assert p.missing_parts(2, {"isolation": "system calls, no privileges"}) == {
        "no new privileges": 1,
        "one process": 2,
    }


def shown(farm: TestFarm, board: Board) -> dict[str, Any]:
    return dict(farm.http.get(f"/devices/{board.device_id}").json())


def lines(farm: TestFarm, board: Board) -> list[str]:
    """Of its history, on this."""
    return [one["message"] for one in shown(farm, board)["history"] if one["kind"] == "isolation-contradicted"]


def marked(farm: TestFarm, board: Board) -> str:
    return str({mark["code"]: mark["message"] for mark in shown(farm, board)["marks"]}.get("isolation", ""))


def test_what_its_facts_contradict_as_it_enrols_is_told_and_gets_no_work(tmp_path: Path, sqlite_url: str) -> None:
    with open_test_farm(tmp_path / "s", sqlite_url, isolation_level=2) as farm:
        farm.run(bundle=farm.bundle())
        board = farm.board(isolation_level=3, environment=facts(without=("one process",)))
        assert shown(farm, board)["isolation_level"] == 1
        assert [board.lease(), board.lease()] == [None, None]
        assert board.try_renew().status_code == 200, "in the same session: nothing new"
        (line,) = lines(farm, board)
        assert "says isolation level 3" in line
        assert "not in force: one process; level 1 counts" in line
        assert marked(farm, board) == line
        mended(board, facts())
        assert (marked(farm, board), shown(farm, board)["isolation_level"]) == ("", 3)
        assert leased(board)


def mended(board: Board, environment: dict[str, str]) -> None:
    """It starts again, and finds other facts."""
    board.description = description(isolation_level=3, environment=environment)
    board.restart()


def test_what_its_facts_contradict_as_it_renews_is_told(farm: TestFarm) -> None:
    board = farm.board(isolation_level=3, environment=facts())
    assert (marked(farm, board), shown(farm, board)["isolation_level"]) == ("", 3)
    mended(board, facts(lacks="empty root: not set up"))
    assert shown(farm, board)["isolation_level"] == 2
    assert "not in force: empty root; level 2 counts" in marked(farm, board)
    farm.run(bundle=farm.bundle())
    work = leased(board)
    assert shown(farm, board)["isolation_level"] == 2, "whatever it promises as it asks for work"
    assert board.report(work, isolation_level=2).status_code == 200
    assert farm.show(work.run_id)["state"] == "succeeded"
    assert len(lines(farm, board)) == 1


def test_a_promise_beyond_its_facts_is_not_taken(farm: TestFarm) -> None:
    board = farm.board(isolation_level=2, environment=facts(without=("no network",)))
    assert marked(farm, board) == ""
    for _ in range(2):
        board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 4))
    assert shown(farm, board)["isolation_level"] == 2
    board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 0))
    board.post(p.LEASE_PATH, p.LeaseRequest(board.session, 0.0, 4))
    (line,) = lines(farm, board)
    assert "says isolation level 4" in line
    assert "not in force: no network; level 2" in line
    assert shown(farm, board)["isolation_level"] == 2


def test_a_report_that_contradicts_itself_does_not_count_and_its_facts_hold_until_it_starts_again(
    farm: TestFarm,
) -> None:
    run = farm.run(bundle=farm.bundle())
    board = farm.board(isolation_level=3, environment=facts())
    bare = facts(without=("system calls",), lacks="system calls: refused\0 by the kernel")
    assert board.report(leased(board), environment=bare).status_code == 200
    assert farm.show(run["id"])["state"] == "queued", "another device is to try it"
    assert farm.show(run["id"])["tries"][0]["code"] == "device.isolation"
    assert "not in force: system calls; level 1 counts" in marked(farm, board)
    assert board.try_renew().status_code == 200
    board.lease()
    assert shown(farm, board)["isolation_level"] == 1, "its description says otherwise, as it did before"
    assert len(lines(farm, board)) == 1
    mended(board, facts())
    assert (marked(farm, board), shown(farm, board)["isolation_level"]) == ("", 3)
    assert "isolation_lacks" not in shown(farm, board)["environment"]


def test_a_report_of_a_failure_is_held_to_its_facts_too(farm: TestFarm) -> None:
    farm.run(bundle=farm.bundle())
    board = farm.board(isolation_level=3, environment=facts())
    board.report(
        leased(board), p.Outcome("failed", "user", "data.shape", "m"), environment=facts(without=("no network",))
    )
    assert shown(farm, board)["isolation_level"] == 2
    assert marked(farm, board)

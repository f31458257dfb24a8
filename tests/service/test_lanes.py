"""Lanes: what is for whom, looked at by index; nothing unsuitable hides what fits; every claim is exactly one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.orm import aliased
from sqlalchemy.orm.util import AliasedInsp

from device_agents import wire as p
from service.base.identifiers import new_id
from service.boards.agents import leasing
from service.boards.agents.enrolment import Agent
from service.store.database.models import HOME, Attempt, Lane, Run
from service.store.farm import Farm
from service.work.lanes.claim import Head, Seeker, heads, in_turn
from service.work.lanes.dispatch import Dispatcher
from service.work.lanes.entering import enter_queued
from service.work.lanes.key import LaneKey, Taker
from tests.sample import sample
from tests.service.board import Board, leased
from tests.service.farms import TestFarm

MANY = 120
"""Queued runs: more than any page."""
KEY = LaneKey(HOME, "x86-64-v3", ("avx2",))


def seeker_of(farm: Farm, board: Board) -> Seeker:
    with farm.database.transaction() as session:
        request = p.LeaseRequest(board.session, 0, 2)
        return leasing.seek(session, farm, Agent(board.device_id, board.session), request)


def queue_like(farm: TestFarm, run_id: str, count: int, **changes: Any) -> list[str]:
    """More runs in the lane of one that is there, each newer than the one before."""
    with farm.farm.database.transaction() as session:
        first = session.get_one(Run, run_id)
        columns = {column.key: getattr(first, column.key) for column in Run.__table__.columns}
        rows = [
            columns | changes | {"id": new_id("run"), "created_at": first.created_at + 1e-3 * n}
            for n in range(1, count + 1)
        ]
        session.execute(insert(Run), rows)
    return [row["id"] for row in rows]


def fail_on(farm: TestFarm, board: Board, run_ids: list[str]) -> None:
    """As if the board had had each of the runs and failed."""
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).where(Run.id.in_(run_ids)).values(attempts=1))
        session.execute(
            insert(Attempt),
            [
                {
                    "run_id": run_id,
                    "n": 1,
                    "device_id": board.device_id,
                    "state": "failed",
                    "token_hash": run_id,
                    "lease_expires_at": 0.0,
                    "deadline_at": 0.0,
                    "spent": "failed",
                    "finished_at": time.time(),
                }
                for run_id in run_ids
            ],
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"organisation_id": "org_1"},
        {"target": "x86-64-v4"},
        {"features": ("avx2", "fma")},
        {"device_class": "server"},
        {"device_id": "dev_1"},
        {"is_canary": True},
    ],
)
def test_whatever_decides_who_may_take_a_run_makes_another_lane(changes: dict[str, Any]) -> None:
    other = replace(KEY, **changes)
    assert other.id != KEY.id
    assert other.id == replace(KEY, **changes).id


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"owner_id": HOME}, True),
        ({"owner_id": "org_1"}, False),
        ({"targets": ("arm",)}, False),
        ({"features": frozenset()}, False),
        ({"features": frozenset(("avx2", "fma"))}, True),
        ({"device_class": "server"}, True),
    ],
)
def test_who_may_take_a_lane(changes: dict[str, Any], expected: bool) -> None:
    taker = replace(Taker("dev_1", "x86-64", ("x86-64-v4", "x86-64-v3"), frozenset(("avx2",))), **changes)
    assert taker.may_take(KEY) is expected
    assert taker.may_take(replace(KEY, device_id="dev_1", device_class=taker.device_class)) is expected
    assert not taker.may_take(replace(KEY, device_id="dev_2"))
    assert not taker.may_take(replace(KEY, device_class="jetson"))
    assert taker.may_take(replace(KEY, is_canary=True)) is (expected or changes == {"owner_id": "org_1"})


def test_a_lane_is_known_by_what_is_set_in_it() -> None:
    """So that a wish that is added to the key later leaves the lanes of those without it as they are."""
    assert KEY.id == "lan_23e986918879a9825cc0c129fc005f3a"


def test_runs_of_one_wish_share_a_lane(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    wishes: list[dict[str, Any]] = [{}, {}, {"device": board.device_id}, {"device_class": "x86-64"}, {}]
    ids = [farm.run(bundle=digest, **wish)["id"] for wish in wishes]
    with farm.farm.database.read() as session:
        lanes = [session.get_one(Run, run_id).lane_id for run_id in ids]
        rows = {lane.id: (lane.device_id, lane.device_class) for lane in session.scalars(select(Lane))}
    assert lanes[0] == lanes[1] == lanes[4]
    assert rows == {lanes[0]: ("", ""), lanes[2]: (board.device_id, ""), lanes[3]: ("", "x86-64")}


def test_a_full_page_of_unsuitable_runs_does_not_hide_a_suitable_one(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    first = farm.run(bundle=digest)["id"]
    fail_on(farm, board, [first, *queue_like(farm, first, MANY)])
    elsewhere = farm.run(bundle=digest, device=farm.board(name="other").device_id)["id"]
    queue_like(farm, elsewhere, MANY)
    assert board.lease() is None
    suitable = farm.run(bundle=digest)["id"]
    assert leased(board).run_id == suitable


def test_the_oldest_comes_first_over_all_lanes(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    wishes: list[dict[str, Any]] = [{"device_class": "x86-64"}, {}, {"device": board.device_id}, {}]
    expected = [farm.run(bundle=digest, **wish)["id"] for wish in wishes]
    taken = []
    for _ in expected:
        work = leased(board)
        taken.append(work.run_id)
        assert board.report(work).status_code == 200
    assert taken == expected
    assert in_turn([Head("l1", "r2", 2.0), Head("l2", "r1", 1.0), Head("l3", "r0", 2.0)]) == [
        Head("l2", "r1", 1.0),
        Head("l3", "r0", 2.0),
        Head("l1", "r2", 2.0),
    ]


def test_a_run_that_comes_back_keeps_its_turn(farm: TestFarm) -> None:
    digest, one, other = farm.bundle(), farm.board(name="one"), farm.board(name="other")
    first, _ = farm.run(bundle=digest)["id"], farm.run(bundle=digest)["id"]
    assert leased(one).run_id == first
    one.restart()  # gives it up
    assert leased(other).run_id == first


@pytest.mark.parametrize("older", [{"rarest_wish": None}, {"rarest_wish": None, "lane_id": None}])
def test_runs_that_older_code_queued_are_found_after_a_sweep_and_keep_their_order(
    farm: TestFarm, older: dict[str, Any]
) -> None:
    digest, board = farm.bundle(), farm.board()
    first = farm.run(bundle=digest)["id"]
    ids = [first, *queue_like(farm, first, 4)]
    with farm.farm.database.transaction() as session:
        session.execute(update(Run).values(older))
        session.execute(text("DELETE FROM lanes"))
    assert board.lease() is None
    with farm.farm.database.transaction() as session:
        assert enter_queued(session, most=2) == 2
    assert leased(board).run_id == ids[0]
    farm.sweep()
    with farm.farm.database.read() as session:
        assert session.scalars(select(Run.lane_id).distinct()).all() == [session.scalars(select(Lane.id)).one()]


def test_every_run_of_many_lanes_is_claimed_exactly_once(farm: TestFarm) -> None:
    digest = farm.bundle()
    boards = [farm.board(name=f"board {n}") for n in range(6)]
    wishes: list[dict[str, Any]] = [{}, {"device_class": "x86-64"}, *({"device": one.device_id} for one in boards[:2])]
    runs = {farm.run(bundle=digest, **wish)["id"] for wish in wishes}
    start = threading.Barrier(len(boards))

    def claim(board: Board) -> str | None:
        agent, seeker = Agent(board.device_id, board.session), seeker_of(farm.farm, board)
        start.wait()
        for _ in range(20):  # a row that another holds is passed over
            work = leasing.work_for(farm.farm, agent, seeker)
            if work is not None:
                return p.loads(p.Assignment, work.assignment.payload_bytes()).run_id
        return None

    with ThreadPoolExecutor(len(boards)) as threads:
        taken = [run_id for run_id in threads.map(claim, boards) if run_id is not None]
    assert len(taken) == len(set(taken))
    left = {run_id for run_id in runs if farm.show(run_id)["state"] == "queued"}
    assert set(taken) | left == runs
    assert all(farm.show(run_id)["wanted_device_id"] for run_id in left)  # its device has the other kind now


@contextmanager
def statements(farm: Farm) -> Iterator[list[tuple[str, Any]]]:
    """What is sent to the database meanwhile."""
    seen: list[tuple[str, Any]] = []

    def note(_c: object, _u: object, statement: str, parameters: Any, _x: object, _m: object) -> None:
        seen.append((statement, parameters))

    event.listen(farm.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(farm.database.engine, "before_cursor_execute", note)


def the_look(seen: list[tuple[str, Any]]) -> tuple[str, Any]:
    """The only statement of an empty look."""
    (only,) = [one for one in seen if "SELECT" in one[0]]
    return only


def analyse(farm: TestFarm) -> None:
    """Let the database count its rows, without its removing what is dead."""
    with farm.farm.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def plan_of(farm: TestFarm, statement: str, parameters: Any) -> str:
    with farm.farm.database.engine.connect() as connection:
        prefix = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, parameters))


@pytest.mark.parametrize("wishes", sample(["one", "each its own"], ["each its own"]))
def test_an_empty_look_is_one_statement_by_index(farm: TestFarm, wishes: str) -> None:
    """However much waits for others: the plan names the index of queued runs, and scans no table of runs."""
    digest, board = farm.bundle(), farm.board()
    other = farm.run(bundle=digest, device_class="server", allow_waiting=True)["id"]
    farm.run(bundle=digest, device=farm.board(name="other").device_id)
    queue_like(farm, other, 5000)
    if wishes != "one":
        with farm.farm.database.transaction() as session:
            session.execute(
                text(
                    "UPDATE runs SET lane_id = 'lan_' || substr(id, 5), rarest_wish = 'tag:' || id "
                    "WHERE wanted_device_class = 'server'"
                )
            )
    analyse(farm)
    seeker = seeker_of(farm.farm, board)
    with statements(farm.farm) as seen, farm.farm.database.read() as session:
        assert heads(session, seeker) == []
    plan = plan_of(farm, *the_look(seen))
    assert "ix_runs_queued_under" in plan, plan
    assert "SCAN runs" not in plan, plan
    assert "Seq Scan on runs" not in plan, plan


def test_what_has_left_the_queue_is_not_read_though_statistics_say_that_nothing_waits(farm: TestFarm) -> None:
    """PostgreSQL then takes any index of queued runs for a single page: one that it reads from end to end would have an
    entry for each run that has been queued since the last VACUUM."""
    digest, board = farm.bundle(), farm.board()
    queue_like(farm, farm.run(bundle=digest)["id"], 5000)
    with farm.farm.database.transaction() as session:
        session.execute(text("UPDATE runs SET state = 'cancelled' WHERE state = 'queued'"))
    analyse(farm)
    farm.run(bundle=digest)
    with statements(farm.farm) as seen:
        leased(board)
    plans = [plan_of(farm, *one) for one in seen if "'queued'" in one[0]]
    assert len(plans) == 3  # which lanes, their heads, the run itself
    for plan in plans:
        assert set(re.findall(r"\bix_runs_\w+", plan)) <= {"ix_runs_queued_under", "ix_runs_queued_in"}, plan
        assert "ix_runs_queued_" in plan, plan


def test_work_of_boards_makes_no_aliases(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias of a table copies each of its columns: made at every look, three of them were most of what it cost."""
    digest, board = farm.bundle(), farm.board()
    made: list[object] = []
    begin = AliasedInsp.__init__

    def note(self: Any, *arguments: Any, **named: Any) -> None:
        made.append(arguments)
        begin(self, *arguments, **named)

    monkeypatch.setattr(AliasedInsp, "__init__", note)
    aliased(Run)
    assert len(made) == 1
    assert board.lease() is None
    farm.run(bundle=digest)
    board.report(leased(board))
    assert len(made) == 1


def steps_of_a_look(farm: TestFarm, board: Board) -> int:
    """What the database does for an empty look, as it counts itself: SQLite's instructions, PostgreSQL's rows."""
    seeker, count = seeker_of(farm.farm, board), 0
    with farm.farm.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        # Dead rows of other tests would count, and decide which plan is taken.
        connection.execute(text("ANALYZE" if is_sqlite else "VACUUM (FULL, ANALYZE)"))
    with statements(farm.farm) as seen, farm.farm.database.read() as session:
        assert heads(session, seeker) == []
    (statement, parameters) = the_look(seen)

    def step() -> None:
        nonlocal count
        count += 1

    with farm.farm.database.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.set_progress_handler(step, 1)
            connection.exec_driver_sql(statement, parameters).all()
            driver.set_progress_handler(None, 1)
            return count
        connection.execute(
            text("SET LOCAL enable_seqscan = off")
        )  # a table of a page is read whole, whatever its index
        explain = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "
        (told,) = connection.exec_driver_sql(explain + statement, parameters).one()
    return rows_under(told[0]["Plan"])


def rows_under(node: dict[str, Any]) -> int:
    """Rows that a node of a plan and those under it have read, those aside that they passed over too."""
    passed_over = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    below = sum(rows_under(one) for one in node.get("Plans", ()))
    return int(node["Actual Loops"] * (node["Actual Rows"] + passed_over)) + below


def many_wishes(farm: TestFarm, board: Board, digest: str, which: str, count: int) -> None:
    """So many lanes more, a run in each. Of `empty` ones, whose runs are cancelled, the board could take every run."""
    mine = {f"t{number}": "" for number in range(6)}
    farm.http.post(f"/devices/{board.device_id}/tags", json={"set": mine})
    subsets = [[tag for bit, tag in enumerate(mine) if number >> bit & 1] for number in range(1, 64)]
    for number in range(count):
        wishes: dict[str, dict[str, Any]] = {
            "empty": {"where": subsets[number % 63]},
            "foreign tags": {"where": [f"wish={number}"]},
            "foreign tags beside one of mine": {"where": ["t0", f"wish={number}", "t1"]},
            "foreign classes": {"device_class": f"class-{number}"},
            "foreign classes and tags of mine": {"device_class": f"class-{number}", "where": ["t0"]},
        }
        run = farm.run(bundle=digest, allow_waiting=True, **wishes[which])
        if which == "empty":
            assert farm.http.post(f"/runs/{run['id']}/cancel").status_code == 202


@pytest.mark.thorough
@pytest.mark.parametrize(
    "which",
    sample(
        [
            "empty",
            "foreign tags",
            "foreign tags beside one of mine",
            "foreign classes",
            "foreign classes and tags of mine",
        ],
        {"foreign tags beside one of mine", "foreign classes and tags of mine"},
    ),
)
def test_lanes_with_nothing_for_a_device_cost_its_look_nothing(farm: TestFarm, which: str) -> None:
    """However many wishes there are and have been: it does not even come by them."""
    digest, board = farm.bundle(), farm.board()
    many_wishes(farm, board, digest, which, 3)
    few = steps_of_a_look(farm, board)
    many_wishes(farm, board, digest, which, 60)
    with farm.farm.database.read() as session:
        assert len(session.scalars(select(Lane.id)).all()) >= 60
    assert steps_of_a_look(farm, board) == few


def test_a_run_with_many_wishes_is_found_under_the_rarest(farm: TestFarm) -> None:
    digest, one, other = farm.bundle(), farm.board(name="one"), farm.board(name="other")
    farm.http.post(f"/devices/{one.device_id}/tags", json={"set": {"gpu": "", "rack": "7"}})
    farm.http.post(f"/devices/{other.device_id}/tags", json={"set": {"gpu": ""}})
    wishes: dict[str, dict[str, Any]] = {
        "tag:rack=7": {"where": ["gpu", "rack=7"], "device_class": "x86-64"},
        "tag:gpu": {"where": ["gpu"]},
        "class:x86-64": {"device_class": "x86-64"},
        "target:x86-64-v3": {},
        f"device:{one.device_id}": {"device": one.device_id, "where": ["gpu"]},
    }
    ids = [farm.run(bundle=digest, **wish)["id"] for wish in wishes.values()]
    with farm.farm.database.read() as session:
        assert [session.get_one(Run, run_id).rarest_wish for run_id in ids] == list(wishes)
    for run_id in ids:
        work = leased(one)
        assert work.run_id == run_id
        one.report(work)


def test_tags_that_a_device_gets_later_open_the_lanes_that_wait_for_it(farm: TestFarm) -> None:
    """Though the wish under which the run lies is not the rarest any more."""
    digest, board, other = farm.bundle(), farm.board(name="board"), farm.board(name="other")
    run = farm.run(bundle=digest, where=["one", "two"], allow_waiting=True)["id"]
    assert board.lease() is None
    for device in (other, board):
        farm.http.post(f"/devices/{device.device_id}/tags", json={"set": {"one": "", "two": ""}})
    farm.http.post(f"/devices/{other.device_id}/tags", json={"remove": ["two"]})
    assert leased(board).run_id == run


def test_a_process_looks_for_what_its_own_waiters_may_have(farm: TestFarm) -> None:
    digest, board = farm.bundle(), farm.board()
    mine = farm.run(bundle=digest)["id"]
    farm.run(bundle=digest, where=["elsewhere"], allow_waiting=True)
    dispatcher = farm.farm.part(Dispatcher)
    with dispatcher.room.waiting(seeker_of(farm.farm, board)):
        found = dispatcher._busy_lanes(dispatcher.room.wishes())
    with farm.farm.database.read() as session:
        assert found == [session.get_one(Run, mine).lane_id]


def test_the_position_counts_only_what_the_fitting_devices_may_take(farm: TestFarm) -> None:
    board = farm.board(name="only")
    plain, demanding = farm.bundle(b"a"), farm.bundle(b"b", features=("amx",))
    busy = farm.run(bundle=plain)["id"]
    assert leased(board).run_id == busy
    farm.run(bundle=demanding)
    farm.run(bundle=plain, device=farm.board(name="other", targets=("x86-64-v3",)).device_id)
    farm.run(bundle=plain, device=board.device_id)
    mine = farm.run(bundle=plain, device_class="x86-64", device=board.device_id)["id"]
    waiting = farm.http.get(f"/runs/{mine}/why").json()["waiting"]
    assert (waiting["code"], waiting["position"], waiting["is_position_least"]) == ("queue", 2, False)

"""What is remembered for a second: never longer, and never over a commit of the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text, update

from service.dashboard.queries import counts
from service.people.quotas.limits import quotas_of
from service.store.database import memory
from service.store.database.engine import Database
from service.store.database.memory import DEAR_S, KEPT_S, RESTS, UNREMEMBERED, Memory, recalled
from service.store.database.models import ApiKey, Organisation
from tests.service.farms import TestFarm


class Clock:
    """A clock that only the test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(memory, "time", clock)
    return clock


@pytest.fixture
def other(database_url: str) -> Iterator[Database]:
    """The same database as another process has it."""
    database = Database(database_url)
    yield database
    database.close()


def test_a_key_is_refused_at_once_where_it_was_revoked_and_within_a_second_elsewhere(
    farm: TestFarm, other: Database, clock: Clock
) -> None:
    first, second = farm.key(), farm.key()
    for key in (first, second):
        assert farm.http.get("/runs", headers=key).status_code == 200
    with other.transaction() as session:
        session.execute(update(ApiKey).where(ApiKey.name == "user").values(revoked_at=1.0))
    clock.now += 0.9 * KEPT_S
    assert farm.http.get("/runs", headers=first).status_code == 200
    clock.now += 0.1 * KEPT_S
    assert [farm.http.get("/runs", headers=key).status_code for key in (first, second)] == [401, 401]

    third = farm.key()
    assert farm.http.get("/runs", headers=third).status_code == 200
    with farm.farm.database.transaction() as session:
        session.execute(update(ApiKey).where(ApiKey.name == "user").values(revoked_at=1.0))
    assert farm.http.get("/runs", headers=third).status_code == 401


def test_a_commit_while_a_value_is_read_keeps_it_from_being_remembered(farm: TestFarm, clock: Clock) -> None:
    database, tables = farm.farm.database, frozenset({Organisation.__tablename__})

    def read_while_another_commits() -> str:
        with database.transaction() as inner:
            inner.get_one(Organisation, "org_home").quotas = {"devices": 5}
        return "what was there before"

    with database.read() as session:
        assert recalled(session, "a", tables, read_while_another_commits) == "what was there before"
        assert recalled(session, "a", tables, lambda: "what is there now") == "what is there now"
        assert recalled(session, "a", tables, lambda: "not asked for") == "what is there now"


def test_a_session_sees_what_it_has_changed_itself(farm: TestFarm, clock: Clock) -> None:
    database = farm.farm.database
    with database.transaction() as session:
        before = quotas_of(session, "org_home")
        session.get_one(Organisation, "org_home").quotas = {"devices": 7}
        session.flush()
        assert (before, quotas_of(session, "org_home")) == ({}, {"devices": 7})


def test_connections_that_the_server_has_closed_are_not_handed_out(migrated_postgres: str) -> None:
    mine, other = Database(migrated_postgres), Database(migrated_postgres)
    for _ in range(2):
        with mine.read() as session:
            (pid,) = session.execute(text("SELECT pg_backend_pid()")).one()
        with other.read() as session:
            session.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    with mine.transaction() as session:
        assert session.scalar(text("SELECT pg_backend_pid()")) != pid
    mine.close()
    other.close()


def test_an_update_of_what_nothing_was_read_from_leaves_what_is_remembered(farm: TestFarm, clock: Clock) -> None:
    database, tables = farm.farm.database, frozenset({Organisation.__tablename__})
    with database.transaction() as session:
        recalled(session, "a", tables, lambda: "kept")
        session.execute(update(Organisation).values(runs_served_at=5.0), execution_options=UNREMEMBERED)
    with database.read() as session:
        assert recalled(session, "a", tables, lambda: "read anew") == "kept"


def test_what_takes_long_to_find_is_found_anew_when_fifty_times_as_long_has_passed(clock: Clock) -> None:
    memory, rows = Memory(), [1, 2, 3]

    def count(takes_s: float) -> int:
        clock.now += takes_s
        return len(rows)

    assert memory.recall_dear("rows", lambda: count(0.1)) == 3
    rows.append(4)
    memory.forget({"runs"})
    clock.now += 0.1 * RESTS * 0.99
    assert memory.recall_dear("rows", lambda: count(0.1)) == 3
    clock.now += 0.1 * RESTS * 0.02
    assert memory.recall_dear("rows", lambda: count(0.1)) == 4


def test_what_is_found_soon_is_never_old(clock: Clock) -> None:
    memory, rows = Memory(), [1]

    def count() -> int:
        clock.now += DEAR_S / 2
        return len(rows)

    assert memory.recall_dear("rows", count) == 1
    rows.append(2)
    assert memory.recall_dear("rows", count) == 2


def test_open_runs_are_counted_anew_however_long_that_takes(farm: TestFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is taken for dear: ended runs are as of the first look, those that wait are not."""
    monkeypatch.setattr(memory, "DEAR_S", 0.0)
    monkeypatch.setattr(memory, "RESTS", 1e9)

    def seen() -> dict[str, int]:
        with farm.farm.database.read() as session:
            return counts(session)["runs"]

    board, bundle = farm.board(), farm.bundle()
    for _ in range(2):
        farm.http.post("/runs", json={"bundle": bundle}).raise_for_status()
    done = board.lease()
    assert done is not None
    assert board.report(done).status_code == 200
    assert seen() == {"queued": 1, "succeeded": 1}
    farm.http.post("/runs", json={"bundle": bundle}).raise_for_status()
    other = board.lease()
    assert other is not None
    assert board.report(other).status_code == 200
    assert seen() == {"queued": 1, "succeeded": 1}
    farm.farm.database.memory._dear.clear()
    assert seen() == {"queued": 1, "succeeded": 2}

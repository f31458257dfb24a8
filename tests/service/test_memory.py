"""What is remembered for a second: never longer, and never over a commit of the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text, update

from service.database import memory
from service.database.engine import Database
from service.database.memory import KEPT_S, UNREMEMBERED, recalled
from service.database.models import ApiKey, Organisation
from service.quotas.limits import quotas_of
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

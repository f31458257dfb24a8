"""A farm is held to the heads of its log that it has signed: one that rewrites its log is caught."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from device_agents import wire as p
from device_agents.wire.receipt import LogEntry
from pockfarm.cli import main as pockfarm
from pockfarm.client.synchronous.record import Record
from pockfarm.values import Json
from pockfarm.verification import NotVerified
from pockfarm.verification.log import check_log
from service.operations.result_log import log
from service.store.database.models import LoggedResult, LogHead, LogNode
from tests.agents.live_farm import LiveFarm
from tests.service.board import leased
from tests.service.farms import TestFarm
from tests.service.test_result_log import finished

TABLES = {"logged_results": "entry", "log_nodes": "hash", "log_heads": "paper"}


class Seen(Record):
    """The farm through its HTTP door."""

    def __init__(self, farm: TestFarm) -> None:
        self.farm = farm

    def _get(self, path: str, query: Mapping[str, str | int | None] | None = None) -> Json:
        answer = self.farm.http.get(path, params=dict(query or {}))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
def logged(farm: TestFarm) -> TestFarm:
    """A farm with three results in its log, of which it has kept a head."""
    finished(farm, 3)
    farm.sweep()
    return farm


def without_triggers(session: Session) -> None:
    """What an operator who wants to lie does first."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SET LOCAL session_replication_role = replica"))
        return
    for table in TABLES:
        for event in ("update", "delete"):
            session.execute(text(f"DROP TRIGGER {table}_refuse_{event}"))


def rewrite(session: Session, changed: Callable[[LogEntry], LogEntry | None]) -> None:
    """The whole log anew from changed entries; None: it was never there."""
    without_triggers(session)
    entries = [
        p.loads(LogEntry, row.entry) for row in session.scalars(select(LoggedResult).order_by(LoggedResult.place))
    ]
    attempts = list(session.scalars(select(LoggedResult.attempt_id).order_by(LoggedResult.place)))
    session.execute(delete(LoggedResult))
    session.execute(delete(LogNode))
    session.flush()
    session.expunge_all()
    tree = log._Tree(session)
    kept = [(new, attempt) for entry, attempt in zip(entries, attempts, strict=True) if (new := changed(entry))]
    for index, (entry, attempt) in enumerate(kept):
        entry = replace(entry, index=index)
        session.add(LoggedResult(place=index, attempt_id=attempt, entry=p.dumps(entry).decode()))
        tree.append(index, entry.leaf())
    session.flush()


CHANGES: dict[str, Callable[[LogEntry], LogEntry | None]] = {
    "another report": lambda entry: replace(entry, report_digest="sha256:" + "0" * 64) if entry.index == 1 else entry,
    "one result gone": lambda entry: None if entry.index == 1 else entry,
    "the last gone": lambda entry: None if entry.index == 2 else entry,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_farm_that_rewrote_its_log_is_caught(logged: TestFarm, tmp_path: Path, change: str) -> None:
    farm, keep = Seen(logged), tmp_path / "head.json"
    check_log(farm, keep, trusted=logged.farm.signer.public_key)
    said = {one.what: one.how for one in check_log(farm, keep, trusted=None)}
    assert "begins with the 3" in said["grew"]
    with logged.farm.database.transaction() as session:
        rewrite(session, CHANGES[change])
    for held_by in (keep, tmp_path / "nobody.json"):  # its own head, kept by itself, does not fit either
        with pytest.raises(NotVerified, match=r"are not the first|were taken away"):
            check_log(farm, held_by, trusted=None)
    assert not (tmp_path / "nobody.json").exists()
    kept = keep.read_bytes()
    with logged.farm.database.transaction() as session:
        if session.get_bind().dialect.name == "postgresql":
            without_triggers(session)
        session.execute(delete(LogHead))
    with pytest.raises(NotVerified):
        check_log(farm, keep, trusted=None)
    assert keep.read_bytes() == kept, "it is evidence"


def test_a_log_that_grew_fits(logged: TestFarm, tmp_path: Path) -> None:
    farm, keep = Seen(logged), tmp_path / "head.json"
    check_log(farm, keep, trusted=None)
    finished_again(logged)
    said = {one.what: one.how for one in check_log(farm, keep, trusted=None)}
    assert said["log"].startswith("4 results")
    assert said["kept"].startswith("0 heads"), "the one of 3 results was looked at the last time"
    with logged.farm.database.transaction() as session:
        without_triggers(session)
        session.execute(update(LogHead).values(at=0.0))
    logged.sweep()
    said = {one.what: one.how for one in check_log(farm, tmp_path / "new.json", trusted=None)}
    assert said["kept"].startswith("2 heads")


def finished_again(farm: TestFarm) -> None:
    """One more result."""
    digest = farm.http.get("/bundles").json()["items"][0]["digest"]
    farm.run(bundle=digest, steps=99)
    board = farm.board(name="another")
    assert board.report(leased(board)).status_code == 200
    farm.sweep()


def test_heads_are_kept_now_and_then(logged: TestFarm) -> None:
    finished_again(logged)
    logged.sweep()
    with logged.farm.database.read() as session:
        assert list(session.scalars(select(LogHead.size))) == [3], "the last one is not old enough"


def test_a_head_of_another_key_is_not_believed(logged: TestFarm, tmp_path: Path) -> None:
    farm = Seen(logged)
    with pytest.raises(NotVerified, match="nothing leads from there"):
        check_log(farm, tmp_path / "head.json", trusted="A" * 43 + "=")
    (tmp_path / "head.json").write_bytes(b"{}")
    with pytest.raises(NotVerified):
        check_log(farm, tmp_path / "head.json", trusted=None)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("act", ["UPDATE {table} SET {column} = 'x'", "DELETE FROM {table}"])
def test_the_database_refuses_to_change_the_log(logged: TestFarm, table: str, act: str) -> None:
    with (
        pytest.raises(DBAPIError, match="the log of results only grows"),
        logged.farm.database.transaction() as session,
    ):
        session.execute(text(act.format(table=table, column=TABLES[table])))
    with logged.farm.database.read() as session:
        assert session.scalar(select(func.count()).select_from(LoggedResult)) == 3


def test_the_command(live: LiveFarm, tmp_path: Path, said: Callable[..., str]) -> None:
    keep = tmp_path / "head.json"
    assert "there was nothing to hold it to" in said("log", "check", "--keep", str(keep))
    assert "begins with the 0" in said("log", "check", "--keep", str(keep))
    assert "0 results" in said("verify", str(keep))
    assert pockfarm(["log", "check", "--keep", str(keep), "--trust", "A" * 43 + "="]) == 4
    assert pockfarm(["log", "check", "--keep", str(tmp_path)]) == 2

"""A database that goes away in the middle of a compile, and comes back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from service.store.database.engine import Database
from tests.service.farms import open_test_farm
from tests.workers.test_compiling import FAKE, run_compile, show
from workers.compiling import Compile
from workers.retries import retry_transient_errors


def away() -> OperationalError:
    return OperationalError("UPDATE", {}, sqlite3.OperationalError("server closed the connection"))


def test_what_fails_for_now_is_tried_again_and_what_is_refused_is_not() -> None:
    waits: list[float] = []
    failures = [away(), away()]

    def act() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retry_transient_errors(act, "it", sleep=waits.append) == "done"
    assert waits == [0.5, 1.0]

    def refused() -> str:
        raise IntegrityError("INSERT", {}, sqlite3.IntegrityError("not unique"))

    with pytest.raises(IntegrityError):
        retry_transient_errors(refused, "it", sleep=waits.append)


def test_patience_ends() -> None:

    def act() -> None:
        raise away()

    with pytest.raises(OperationalError):
        retry_transient_errors(act, "it", patience_s=0.0)


def test_a_compile_outlives_a_database_that_restarts(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first renewal until its end it is away; then the result is recorded, by the first attempt."""
    settings = {"compile_function": FAKE, "cache_dir": str(tmp_path / "cache"), "compile_lease_s": 1.0}
    with open_test_farm(tmp_path / "state", sqlite_url, **settings) as farm:
        job_id = farm.compile(b"fine").json()["id"]
        real, left = Database.transaction, [3]

        @contextmanager
        def flaky(database: Database) -> Iterator[Session]:
            if "away" in marks and left[0]:
                left[0] -= 1
                raise away()
            with real(database) as session:
                yield session

        marks: set[str] = set()
        begin = Compile._write_order

        def go_away(compile: Compile, folder: Path, cache: Path) -> None:
            marks.add("away")
            begin(compile, folder, cache)

        monkeypatch.setattr(Compile, "_write_order", go_away)
        monkeypatch.setattr(Database, "transaction", flaky)
        run_compile(farm, job_id)
        assert left == [0]
        assert (show(farm, job_id)["state"], show(farm, job_id)["attempts"]) == ("succeeded", 1)

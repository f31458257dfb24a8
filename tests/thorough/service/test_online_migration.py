"""Migrating a farm that is at work, and not starting on a database of another schema."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from service.store.database.engine import Database
from service.store.database.schema import MigrationBlocked, Patience, check_schema, current_revision, migrate
from tests.architecture.sources import ROOT
from tests.service.newer_code import TODAY
from tests.service.postgres import PostgresServer
from tests.waiting import HANG_S, until

QUICK = Patience(lock_s=0.2, pause_s=0.1, give_up_s=HANG_S)


@contextmanager
def old_database(url: str) -> Iterator[Database]:
    """Of a farm before the last migrations."""
    migrate(url, TODAY)
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


def test_a_held_lock_holds_up_the_migration_and_nobody_behind_it(postgres: PostgresServer, newer_code: None) -> None:
    url = postgres.make_database()
    with old_database(url) as database:
        failed: list[BaseException] = []

        def act() -> None:
            try:
                migrate(url, patience=QUICK)
            except BaseException as error:
                failed.append(error)

        with database.engine.connect() as holder:
            holder.execute(text("SELECT count(*) FROM runs"))  # as a long report: shared, until its transaction ends
            thread = threading.Thread(target=act)
            thread.start()

            def waits() -> bool:
                waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                with database.engine.connect() as reader:  # would queue behind a migration that waits for good
                    reader.execute(text("SET LOCAL lock_timeout = '60s'"))
                    is_one = bool(reader.scalar(waiting))
                    assert reader.scalar(text("SELECT count(*) FROM runs")) == 0
                    return is_one

            until(waits)
            assert thread.is_alive(), "it waits"
        thread.join(HANG_S)
        assert failed == []
        check_schema(database)


def test_a_migration_that_gives_up_says_who_is_in_the_way_and_changes_nothing(
    postgres: PostgresServer, newer_code: None
) -> None:
    url = postgres.make_database()
    with old_database(url) as database, database.engine.connect() as holder:
        holder.execute(text("SET application_name = 'long-report'"))
        holder.execute(text("LOCK TABLE runs IN ACCESS SHARE MODE"))
        with pytest.raises(MigrationBlocked, match=r"(?s)as it was.*long-report, idle in transaction"):
            migrate(url, patience=Patience(lock_s=0.1, pause_s=0.05, give_up_s=0.3))
        with database.engine.connect() as connection:
            assert current_revision(connection) == TODAY


def start(url: str, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "POCKFARM_STATE": str(state),
        "POCKFARM_DATABASE_URL": url,
        "POCKFARM_LOG_FORMAT": "json",
    }
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=60, check=False, cwd=state
    )


@pytest.mark.parametrize(
    ("revision", "message"),
    [(TODAY, "run `python -m service.admin migrate`"), ("9999", "newer code has migrated it")],
)
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "tests.service.newer_code", "uvicorn", "service.app:served", "--factory", "--port", "0"),
        (
            "-c",
            "from tests.service.newer_code import become_newer; become_newer(); "
            "import workers.app as a; a.clear_away()",
        ),
    ],
    ids=["api", "worker"],
)
def test_nothing_starts_on_another_schema(tmp_path: Path, revision: str, message: str, words: tuple[str, ...]) -> None:
    url = f"sqlite:///{tmp_path}/farm.db"
    migrate(url)
    database = Database(url)
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    database.close()
    done = start(url, tmp_path, *words)
    assert done.returncode != 0
    assert message in done.stderr
    assert f"the database has schema {revision}" in done.stderr
    assert "Traceback" not in done.stderr, "an operator's matter, in words"

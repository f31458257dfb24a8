"""Migrations on both databases: they build what the models say, both ways, with data, one at a time."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import Pool

from pockfarm.own_farm import parts
from pockfarm.own_farm.state import StateFolder
from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.database.models import ApiKey, Base, Job
from service.store.database.schema import (
    MIGRATIONS,
    BrokenReferences,
    SchemaBehind,
    alembic_config,
    check_schema,
    known_revisions,
    migrate,
)
from tests.sample import sample, some
from tests.service.beginnings import Beginnings
from tests.service.newer_code import LATER, TODAY
from tests.service.postgres import PostgresServer
from tests.service.rows import Snapshot, describe, fill, snapshot

REVISIONS = [script.revision for script in reversed(list(ScriptDirectory(str(MIGRATIONS)).walk_revisions()))]
"""Every revision there is, the oldest first."""
CHAIN = [*REVISIONS, *LATER]
"""With those of a later release, which show what the machinery does whatever revisions there are."""
WAYS = sample(REVISIONS, {REVISIONS[-1]})
"""From the newest."""
STEPS = sample(
    (
        pytest.param(older, newer, id=f"{older}-{newer}")
        for older, newer in sorted({*itertools.pairwise(CHAIN), (CHAIN[0], CHAIN[-1])})
    ),
    {f"{CHAIN[0]}-{CHAIN[-1]}"},
)
"""Each step by itself, and the whole way."""


def add_rows(database: Database) -> None:
    with database.transaction() as session:
        session.add(ApiKey(id="key_1", name="n", role="user", secret_hash="h"))
        session.flush()
        digest = "sha256:" + "0" * 64
        session.add(
            Job(
                api_key_id="key_1",
                request_digest=digest,
                model_name="m",
                model_digest=digest,
                model_bytes=1 << 40,
                plan_name="p",
                plan_digest=digest,
                plan_json="{}",
                spec_digest=digest,
                spec_json="{}",
                target="t",
                compiler_version="v",
                queue_deadline_at=1.5,
            )
        )


def test_up_down_up_with_data(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(SchemaBehind):
        check_schema(database)
    for _ in range(2):
        migrate(empty_url)
        check_schema(database)
        add_rows(database)
        with database.read() as session:
            assert session.query(Job).one().model_bytes == 1 << 40
        downgrade(empty_url, "base")
        assert tables(database) == {"alembic_version"}
    database.close()


def test_base_leaves_nothing_of_what_was_set_aside(empty_url: str, newer_code: None) -> None:
    filled_database(empty_url, "head")
    with contextlib.closing(Database(empty_url)) as database:
        downgrade(empty_url, REVISIONS[-1])
        assert {name for name in tables(database) if name.startswith("set_aside_9002_")} >= {
            "set_aside_9002_runs",
            "set_aside_9002_attempts",
            "set_aside_9002_runs_pruned_share",
        }
        downgrade(empty_url, "base")
        assert tables(database) == {"alembic_version"}
    migrate(empty_url)


def tables(database: Database) -> set[str]:
    with database.engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def downgrade(url: str, revision: str) -> None:
    command.downgrade(alembic_config(url), revision)


def filled_database(url: str, revision: str) -> Snapshot:
    """A database of that revision with rows in every table."""
    migrate(url, revision)
    return filled(url)


def filled(url: str) -> Snapshot:
    """What is in a database after rows came into every table."""
    database = Database(url)
    with database.engine.begin() as connection:
        fill(connection)
    database.close()
    return content(url)[1]


def content(url: str) -> tuple[dict[str, object], Snapshot]:
    database = Database(url)
    with database.engine.connect() as connection:
        found = describe(connection), snapshot(connection)
    database.close()
    return found


def assert_holds(rows: Snapshot, older: Snapshot) -> None:
    """Every row of `older` is there, with every value that it had."""
    for name, expected in older.items():
        assert [{column: row[column] for column in expected[0]} for row in rows[name]] == expected, name


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def beginnings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Beginnings:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return Beginnings(tmp_path_factory.mktemp("beginnings"), server, CHAIN)


@pytest.fixture(scope="module")
def of_the_models(beginnings: Beginnings) -> dict[str, object]:
    """What the models say: checks, predicates of partial indexes and defaults too, which `alembic check` does not
    compare."""
    url = beginnings.empty()
    database = Database(url)
    Base.metadata.create_all(database.engine)
    database.close()
    return content(url)[0]


@pytest.mark.parametrize("revision", WAYS)
def test_a_filled_database_goes_up_and_down_again(
    beginnings: Beginnings, revision: str, of_the_models: dict[str, object]
) -> None:
    url = beginnings.of(revision)
    before = filled(url)
    schema, _ = content(url)
    migrate(url)
    command.check(alembic_config(url))
    upgraded, rows = content(url)
    assert upgraded == of_the_models
    assert_holds(rows, before)
    downgrade(url, revision)
    assert content(url) == (schema, before)


@pytest.mark.parametrize("revision", sample(LATER, {LATER[-1]}))
def test_a_later_release_changes_no_value_of_an_older_one(
    beginnings: Beginnings, revision: str, newer_code: None
) -> None:
    url = beginnings.of(REVISIONS[-1])
    before = filled(url)
    migrate(url, revision)
    assert_holds(content(url)[1], before)


@pytest.mark.parametrize(("older", "newer"), STEPS)
def test_a_filled_database_goes_down_and_up_again(
    beginnings: Beginnings, older: str, newer: str, newer_code: None
) -> None:
    url = beginnings.of(newer)
    before = filled(url)
    schema, _ = content(url)
    downgrade(url, older)
    migrate(url, newer)
    assert content(url) == (schema, before)


def migrate_until(url: str, change: int) -> None:
    """Migrate to head, and break before that statement of those that write. Raises: InterruptedError, if it came."""
    count = 0

    def count_or_fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal count
        count += statement.split()[0] not in ("SELECT", "PRAGMA")
        if count == change:
            raise InterruptedError

    event.listen(Engine, "before_cursor_execute", count_or_fail)
    try:
        migrate(url)
    finally:
        event.remove(Engine, "before_cursor_execute", count_or_fail)


@pytest.mark.parametrize("every", sample((5, 41), {"41"}))
def test_a_first_migration_that_breaks_anywhere_leaves_nothing(empty_url: str, every: int) -> None:
    """At every so many-th of its changes: it is one transaction."""
    step = 0
    while True:
        step += every
        try:
            migrate_until(empty_url, step)
        except InterruptedError:
            assert content(empty_url) == ({}, {}), f"at change {step}"
        else:
            break
    assert step > 100


def test_a_migration_that_breaks_anywhere_changes_nothing(empty_url: str, newer_code: None) -> None:
    """At each of its changes: it is one transaction, however many revisions it has."""
    before = filled_database(empty_url, TODAY)
    schema, _ = content(empty_url)
    for step in itertools.count(1):
        try:
            migrate_until(empty_url, step)
        except InterruptedError:
            assert content(empty_url) == (schema, before), f"at change {step}"
        else:
            break
    assert step > 5
    assert_holds(content(empty_url)[1], before)


KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event
from service.store.database.schema import migrate
from tests.service.newer_code import become_newer

@event.listens_for(Engine, "after_cursor_execute")
def kill(connection, cursor, statement, *_):
    if "ADD COLUMN wanted_shelf" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

become_newer()
migrate(sys.argv[1])
"""
"""Ends after the devices have been built anew (SQLite), or have got their foreign key."""


def test_a_killed_migration_changes_nothing(empty_url: str, newer_code: None) -> None:
    before = filled_database(empty_url, TODAY)
    schema, _ = content(empty_url)
    killed = subprocess.run([sys.executable, "-c", KILLED, empty_url], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert content(empty_url) == (schema, before)
    database = Database(empty_url)
    with database.engine.begin() as connection, pytest.raises(IntegrityError):
        connection.execute(text("UPDATE runs SET bundle_digest = 'none such'"))
    database.close()
    migrate(empty_url)
    assert_holds(content(empty_url)[1], before)


def test_a_reference_to_nothing_stops_a_migration_by_name(tmp_path: Path, newer_code: None) -> None:
    url = f"sqlite:///{tmp_path / 'farm.db'}"
    filled_database(url, TODAY)
    with sqlite3.connect(tmp_path / "farm.db") as connection:  # its foreign keys are off
        connection.execute("UPDATE runs SET bundle_digest = 'none such' WHERE rowid = 3")
    connection.close()
    before = content(url)
    with pytest.raises(BrokenReferences, match=r"1 rows refer.*runs \(row 3\) -> bundles"):
        migrate(url)
    assert content(url) == before


def test_foreign_keys_hold_again_after_a_migration(tmp_path: Path, newer_code: None) -> None:
    seen: list[int] = []

    def note(connection: sqlite3.Connection, _record: object) -> None:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            seen.append(connection.execute("PRAGMA foreign_keys").fetchone()[0])

    event.listen(Pool, "checkin", note)
    try:
        migrate(f"sqlite:///{tmp_path / 'farm.db'}")
    finally:
        event.remove(Pool, "checkin", note)
    assert seen == [1]


def test_a_migration_is_not_held_to_the_time_of_a_request(postgres: PostgresServer) -> None:
    found: dict[str, str] = {}

    def look(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("\nCREATE TABLE runs"):
            for name in ("statement_timeout", "lock_timeout"):
                found[name] = str(connection.connection.cursor().execute(f"SHOW {name}").fetchone()[0])

    event.listen(Engine, "after_cursor_execute", look)
    try:
        migrate(postgres.make_database())
    finally:
        event.remove(Engine, "after_cursor_execute", look)
    assert found == {"statement_timeout": "1h", "lock_timeout": "2s"}


def test_a_farm_that_starts_upgrades_its_filled_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_code: None
) -> None:
    """What `pockfarm up` of a later release does with an older farm's folder."""
    state = StateFolder(tmp_path / "state")
    state.make()
    url = Settings(state=state.path).database
    before = filled_database(url, TODAY)
    command = [sys.executable, "-m", "tests.service.newer_code"]
    monkeypatch.setattr(parts, "python", lambda module, *arguments: [*command, module, *arguments])
    assert parts.admin(parts.FarmPlan(state, 1), "migrate") == "the database is up to date"
    with contextlib.closing(Database(url)) as database:
        check_schema(database)
    assert_holds(content(url)[1], before)


def test_models_and_migrations_agree(empty_url: str) -> None:
    migrate(empty_url)
    command.check(alembic_config(empty_url))


def test_every_constraint_has_a_name(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    with database.engine.connect() as connection:
        found = inspect(connection)
        for table in Base.metadata.tables:
            constraints = [
                found.get_pk_constraint(table),
                *found.get_foreign_keys(table),
                *found.get_unique_constraints(table),
                *found.get_check_constraints(table),
            ]
            assert all(constraint["name"] for constraint in constraints), table
    database.close()


def test_there_is_one_head_and_files_are_named_for_their_revisions() -> None:
    assert [known_revisions()[1]] == ScriptDirectory(str(MIGRATIONS)).get_heads()
    assert known_revisions()[0] == set(REVISIONS)


def test_versions_do_not_import_our_code() -> None:
    for path in some((MIGRATIONS / "versions").glob("*.py")):
        assert "service" not in [
            line.split()[1].split(".")[0]
            for line in path.read_text().splitlines()
            if line.startswith(("import ", "from "))
        ]


def test_simultaneous_migrations_wait_for_each_other(empty_url: str) -> None:
    url = empty_url
    word = [
        sys.executable,
        "-c",
        "import sys; from service.store.database.schema import migrate; migrate(sys.argv[1])",
        url,
    ]
    both = [subprocess.Popen(word, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    with contextlib.closing(Database(url)) as database:
        check_schema(database)

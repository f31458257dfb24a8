"""The database's schema: brought up to date by the migrations, checked by who depends on it.

Only who migrates loads Alembic, which takes 7 MB of a process.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from service.store.database.engine import Database

if TYPE_CHECKING:
    from alembic.config import Config

LOG = logging.getLogger(__name__)
BLOCKED_SQLSTATES = ("55P03", "40P01")
"""PostgreSQL: lock_not_available, deadlock_detected."""
SQLITE_BUSY = 5
LONGEST_TRANSACTIONS = """
    SELECT pid, application_name, state, extract(epoch FROM now() - xact_start) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    ORDER BY xact_start LIMIT 3"""
MIGRATIONS = Path(__file__).resolve().parents[3] / "migrations"
VERSIONS: tuple[Path, ...] = (MIGRATIONS / "versions",)
"""Folders of revisions. Tests add one, with revisions of a later release."""


class SchemaMismatch(Exception):
    """The database has another schema than this code expects. `state` is one word for it."""

    state = "other"


class SchemaBehind(SchemaMismatch):
    """The database's schema is older than the code."""

    state = "behind"


class SchemaAhead(SchemaMismatch):
    """Newer code migrated the database's schema."""

    state = "ahead"


class BrokenReferences(Exception):
    """After a migration, rows would refer to rows that are not there; the migration was undone."""


def alembic_config(url: str) -> Config:
    """Returns Alembic's configuration for the database at `url`."""
    from alembic.config import Config

    config = Config()
    options = {
        "script_location": str(MIGRATIONS),
        "version_locations": "\n".join(map(str, VERSIONS)),
        "path_separator": "newline",
        "sqlalchemy.url": url,
    }
    for name, value in options.items():
        config.set_main_option(name, value.replace("%", "%%"))
    return config


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits on how a migration waits for its locks while the farm is at work (PostgreSQL; SQLite waits 30 s for its
    one lock).
    """

    lock_s: float = 2.0
    """A statement waits so long for a lock; requests that come after it wait for as long."""
    pause_s: float = 3.0
    """Then everything is undone, and tried again after so long."""
    give_up_s: float = 180.0
    statement_s: float = 3600.0
    """No statement takes longer."""


class MigrationBlocked(Exception):
    """Another connection held a lock for too long; nothing was changed."""


def migrate(url: str, revision: str = "head", *, patience: Patience | None = None) -> None:
    """Migrates the database up to `revision`; concurrent calls wait for each other. Raises: MigrationBlocked."""
    from alembic import command

    patience = patience or Patience()
    config, give_up_at, tries = alembic_config(url), time.monotonic() + patience.give_up_s, 0
    config.attributes["patience"] = patience
    while True:
        tries += 1
        try:
            return command.upgrade(config, revision)
        except DBAPIError as error:
            if not _is_blocked(error):
                raise
            if time.monotonic() >= give_up_at:
                raise MigrationBlocked(_blocked_by(url, tries)) from None
            LOG.warning("the migration let go of its locks, for another holds one that it needs; trying again")
        time.sleep(patience.pause_s)


def migrate_within(connection: Connection) -> None:
    """Migrates the connection's database to the newest revision within its transaction, for which nobody else waits: a
    farm that is being restored. Raises: BrokenReferences.
    """
    from alembic import command

    config = alembic_config("")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def migrate_back(url: str, revision: str = "base") -> None:
    """Migrates the database back to an older `revision`, or to no schema. Raises: SchemaMismatch, MigrationBlocked."""
    from alembic import command

    revisions, head = known_revisions()
    if revision not in {*revisions, "base"}:
        raise SchemaMismatch(f"there is no revision {revision}: it is one of 0001 to {head}, or base")
    _refuse_to_go_up(url, revision)
    try:
        command.downgrade(alembic_config(url), revision)
    except DBAPIError as error:
        if not _is_blocked(error):
            raise
        raise MigrationBlocked(_blocked_by(url, 1)) from None


def _refuse_to_go_up(url: str, revision: str) -> None:
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            current = current_revision(connection)
    finally:
        database.close()
    if revision != "base" and (current or "") < revision:
        raise SchemaMismatch(f"the database has schema {current or 'none'}, which is older than {revision} already")


def _is_blocked(error: DBAPIError) -> bool:
    return (
        getattr(error.orig, "sqlstate", None) in BLOCKED_SQLSTATES
        or getattr(error.orig, "sqlite_errorcode", None) == SQLITE_BUSY
    )


def _blocked_by(url: str, tries: int) -> str:
    """Tells the operator who has been in a transaction for longest."""
    message = f"the migration did not get its locks in {tries} tries; the database is as it was. "
    database = Database(url)
    try:
        if database.engine.dialect.name == "sqlite":
            return message + "Another process is writing all the time: stop the farm, then migrate again"
        with database.read() as session:
            rows = session.execute(text(LONGEST_TRANSACTIONS)).all()
    finally:
        database.close()
    who = "; ".join(
        f"pid {pid} ({name or 'no name'}, {state}, since {since:.0f} s)" for pid, name, state, since in rows
    )
    return message + f"In a transaction for longest: {who or 'nobody now'}. End these (pg_terminate_backend), or wait"


def check_schema(database: Database) -> None:
    """Raises: SchemaBehind, SchemaAhead; or the driver's error if the database does not answer."""
    revisions, head = known_revisions()
    with database.engine.connect() as connection:
        current = current_revision(connection)
    if current == head:
        return
    if current is None or current in revisions:
        raise SchemaBehind(
            f"the database has schema {current or 'none'}, this code expects {head}: "
            "run `python -m service.admin migrate`, then start again"
        )
    raise SchemaAhead(
        f"the database has schema {current}, which this code does not know (its own is {head}): newer code has "
        f"migrated it. Start that code; or take the schema back with it first (`service.admin migrate-back {head}`)"
    )


def current_revision(connection: Connection) -> str | None:
    """Returns the schema that the database has; None before the first migration."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def known_revisions() -> tuple[frozenset[str], str]:
    """Returns every revision of this code, and the newest, by the names of their files."""
    return _revisions_in(VERSIONS)


@cache
def _revisions_in(folders: tuple[Path, ...]) -> tuple[frozenset[str], str]:
    revisions = [path.name.partition("_")[0] for folder in folders for path in folder.glob("[0-9]*.py")]
    return frozenset(revisions), max(revisions)


def refuse_other_schema(url: str, what: str) -> None:
    """Ends this process with a message if the database's schema is not this code's. A database that does not answer is
    waited for later.
    """
    database = Database(url)
    try:
        check_schema(database)
    except SchemaMismatch as error:
        sys.exit(f"{what} does not start: {error}")
    except DBAPIError as error:
        LOG.warning("the database's schema could not be looked at: %s", error)
    finally:
        database.close()

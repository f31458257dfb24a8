"""Runs migrations on SQLite (in batches: it cannot alter most things) and PostgreSQL (under an advisory lock).

All revisions of one call are one transaction on either: it is done whole, or the database is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import context
from sqlalchemy import Column, Connection, Index, text

from service.base.settings import Settings
from service.store.database.engine import Database
from service.store.database.models import Base
from service.store.database.schema import BrokenReferences, Patience
from service.store.database.set_aside import add_operations

LOCK_NUMBER = 727_420_001
"""Number of the advisory lock that keeps two migrations apart."""
SHOWN_ROWS = 5


def run() -> None:
    """Migrate the configured database, or within the transaction of the connection of the caller."""
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is not None:
        _migrate_within(connection)
        return
    url = context.config.get_main_option("sqlalchemy.url") or Settings().database
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                _migrate_sqlite(connection)
            else:
                _migrate_postgres(connection)
    finally:
        database.close()


def _is_comparable(item: object, _name: str | None, _kind: str, _reflected: bool, _other: object) -> bool:
    """Indexes by an expression come back in the database's own words, or not at all: tests compare them."""
    return not isinstance(item, Index) or all(isinstance(expression, Column) for expression in item.expressions)


def _migrate_sqlite(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        include_object=_is_comparable,
        transactional_ddl=True,
    )
    with _foreign_keys_unenforced(connection), context.begin_transaction():
        context.run_migrations()
        _check_references(connection)


def _migrate_within(connection: Connection) -> None:
    """On SQLite the caller has turned foreign keys off before it began: the pragma does nothing here."""
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=connection.dialect.name == "sqlite"
    )
    context.run_migrations()
    if connection.dialect.name == "sqlite":
        _check_references(connection)


@contextmanager
def _foreign_keys_unenforced(connection: Connection) -> Iterator[None]:
    """Batches drop and rebuild tables that others refer to. Within a transaction the pragma does nothing, so it goes to
    the driver, before SQLAlchemy begins one."""
    driver: Any = connection.connection.dbapi_connection
    driver.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON")


def _check_references(connection: Connection) -> None:
    """Checks references as the database would have row by row. Raises: BrokenReferences, which undoes the migration."""
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if rows:
        shown = ", ".join(f"{table} (row {row}) -> {parent}" for table, row, parent, _ in rows[:SHOWN_ROWS])
        raise BrokenReferences(
            f"the migration is undone: {len(rows)} rows refer to rows that are not there: {shown}; "
            "repair or delete them (PRAGMA foreign_key_check lists all), then migrate again"
        )


def _migrate_postgres(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=Base.metadata, compare_type=True, include_object=_is_comparable
    )
    with context.begin_transaction():
        patience: Patience = context.config.attributes.get("patience", Patience())
        for name in ("statement_timeout", "lock_timeout"):  # those of requests: another migration may take longer
            connection.execute(text(f"SET LOCAL {name} = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
        # Whoever asks for a table after us waits behind us: better to let go, and to try again (`schema.migrate`).
        connection.execute(text(f"SET LOCAL lock_timeout = {int(1000 * patience.lock_s)}"))
        connection.execute(text(f"SET LOCAL statement_timeout = {int(1000 * patience.statement_s)}"))
        context.run_migrations()


add_operations()
run()

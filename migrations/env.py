"""Runs migrations on SQLite (in batches: it cannot alter most things) and PostgreSQL (under an advisory lock)."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

from service.database.engine import Database
from service.database.models import Base
from service.settings import Settings

LOCK_NUMBER = 727_420_001
"""Of the advisory lock that keeps two migrations apart."""


def run() -> None:
    """Migrate the configured database."""
    url = context.config.get_main_option("sqlalchemy.url") or Settings().database
    database = Database(url)
    try:
        with database.engine.connect() as connection:
            _migrate(connection)
    finally:
        database.close()


def _migrate(connection: Connection) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")  # batches drop and rebuild tables that others refer to
        connection.commit()
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=is_sqlite, compare_type=True
    )
    with context.begin_transaction():
        if not is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
        context.run_migrations()
    connection.commit()


run()

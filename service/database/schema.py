"""The database's schema: brought up to date by the migrations, checked by who depends on it."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.database.engine import Database

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


class SchemaBehind(Exception):
    """The database has another schema than this code expects."""


class BrokenReferences(Exception):
    """After a migration, rows would refer to rows that are not there; it was undone."""


def alembic_config(url: str) -> Config:
    """Alembic's configuration for the database at `url`."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str, revision: str = "head") -> None:
    """Bring the database up to `revision`; concurrent calls wait for each other."""
    command.upgrade(alembic_config(url), revision)


def check_schema(database: Database) -> None:
    """Raises: SchemaBehind; or the driver's error if the database does not answer."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    with database.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current != head:
        raise SchemaBehind(f"schema {current}, expected {head}; run `python -m service.admin migrate`")

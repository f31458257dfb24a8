"""The database's schema: brought up to date by the migrations, checked by who depends on it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.database.engine import Database

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


class SchemaMismatch(Exception):
    """The database has another schema than this code expects. `state` is one word for it."""

    state = "other"


class SchemaBehind(SchemaMismatch):
    """It is older."""

    state = "behind"


class SchemaAhead(SchemaMismatch):
    """It was migrated by newer code."""

    state = "ahead"


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
    """Raises: SchemaBehind, SchemaAhead; or the driver's error if the database does not answer."""
    revisions, head = known_revisions()
    with database.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current == head:
        return
    if current is None or current in revisions:
        raise SchemaBehind(f"the database has schema {current or 'none'}, this code expects {head}: "
                           "run `python -m service.admin migrate`, then start again")  # fmt: skip
    raise SchemaAhead(
        f"the database has schema {current}, which this code does not know (its own is {head}): newer code has "
        f"migrated it. Start that code; or take the schema back with it first (`alembic downgrade {head}`)"
    )


@cache
def known_revisions() -> tuple[frozenset[str], str | None]:
    """Every revision of this code, and the newest."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    return frozenset(script.revision for script in scripts.walk_revisions()), scripts.get_current_head()

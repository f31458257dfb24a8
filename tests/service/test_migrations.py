"""Migrations on both databases: they build what the models say, both ways, with data, one at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from service.database.engine import Database
from service.database.models import ApiKey, Base, Job
from service.database.schema import MIGRATIONS, SchemaBehind, alembic_config, check_schema, migrate
from tests.service.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'farm.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.make_database()


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
        command.downgrade(alembic_config(empty_url), "base")
        with database.engine.connect() as connection:
            assert set(inspect(connection).get_table_names()) == {"alembic_version"}
    database.close()


def test_models_and_migrations_agree(empty_url: str) -> None:
    migrate(empty_url)
    command.check(alembic_config(empty_url))


def test_every_constraint_has_a_name(empty_url: str) -> None:
    migrate(empty_url)
    database = Database(empty_url)
    with database.engine.connect() as connection:
        found = inspect(connection)
        for table in Base.metadata.tables:
            constraints = [found.get_pk_constraint(table), *found.get_foreign_keys(table),
                           *found.get_unique_constraints(table), *found.get_check_constraints(table)]  # fmt: skip
            assert all(constraint["name"] for constraint in constraints), table
    database.close()


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory(str(MIGRATIONS)).get_heads()) == 1


def test_versions_do_not_import_our_code() -> None:
    for path in (MIGRATIONS / "versions").glob("*.py"):
        assert "service" not in [line.split()[1].split(".")[0] for line in path.read_text().splitlines()
                                 if line.startswith(("import ", "from "))]  # fmt: skip


def test_simultaneous_migrations_wait_for_each_other(postgres: PostgresServer) -> None:
    url = postgres.make_database()
    word = [sys.executable, "-c", "import sys; from service.database.schema import migrate; migrate(sys.argv[1])", url]
    both = [subprocess.Popen(word, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    check_schema(Database(url))

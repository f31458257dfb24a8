"""The service on SQLite with a folder and on PostgreSQL with S3: the same tests on both, built by the migrations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from sqlalchemy import create_engine, insert, text

from pockfarm import cli
from service.store.database import schema
from service.store.database.models import HOME, Base, Organisation
from service.store.database.schema import migrate
from tests.agents.live_farm import LiveFarm, live_farm
from tests.service import newer_code as later_release
from tests.service.farms import TestFarm, empty_sqlite, open_test_farm
from tests.service.postgres import PostgresServer, running_postgres
from tests.service.stores import s3_store

HOME_ROW = {"id": HOME, "name": "home"}
"""What the migrations put in."""


ON_EITHER = frozenset(
    f"test_{name}.py"
    for name in ("agent_story", "calls", "garbage", "lanes", "odd_input", "read_by_index", "scope", "story", "turns")
)
"""Tests of what the database does itself: its locks, its plans, its refusals, and whatever happens in any order."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which tests `make test` runs on both databases: those of `ON_EITHER`.

    Another runs on one of them, as its name happens to have it: each part of the farm meets both. One with several
    cases has them on SQLite, and the first on PostgreSQL too.
    """
    seen: set[str] = set()
    for item in items:
        values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        kind = values.get("database_url", values.get("empty_url"))
        function = item.nodeid.partition("[")[0]
        if kind is None or item.path.name in ON_EITHER or item.get_closest_marker("thorough"):
            continue
        if len(values) == 1:
            is_kept = kind == ("sqlite", "postgresql")[crc32(function.rpartition("::")[2].encode()) % 2]
        else:
            is_kept = kind == "sqlite" or function not in seen
            seen |= {function} if kind == "postgresql" else set()
        if not is_kept:
            item.add_marker("thorough")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """URL of a migrated database, emptied by each test that uses it."""
    url = postgres.make_database()
    migrate(url)
    return url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "farm.db"
    path.write_bytes(empty_sqlite())
    return path


def empty_tables(url: str) -> None:
    """Deletes all rows. TRUNCATE takes much longer: it makes the files of each table anew."""
    engine = create_engine(url)
    deletions = [f"DELETE FROM {table.name}" for table in Base.metadata.sorted_tables]
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # no foreign key is looked at
        connection.execute(text("; ".join(deletions)))
        connection.execute(text("SELECT setval(sequencename::regclass, 1, false) FROM pg_sequences"))
        connection.execute(insert(Organisation), HOME_ROW)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty migrated database of each kind."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "farm.db")
        return f"sqlite:///{tmp_path / 'farm.db'}"
    url: str = request.getfixturevalue("migrated_postgres")
    empty_tables(url)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'farm.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.make_database()


@pytest.fixture
def newer_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of a later release, with two migrations more."""
    monkeypatch.setattr(schema, "VERSIONS", later_release.VERSIONS)


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(migrated_sqlite, tmp_path / "farm.db")
    return f"sqlite:///{tmp_path / 'farm.db'}"


@pytest.fixture
def storage_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """Files lie in a folder beside SQLite, and in an S3-compatible store beside PostgreSQL.

    A module whose tests need files on a disk has a fixture of this name that says so.
    """
    if database_url.startswith("sqlite"):
        yield f"file://{tmp_path / 'state' / 'files'}"
        return
    with s3_store() as url:
        yield url


@pytest.fixture
def farm(database_url: str, storage_url: str, tmp_path: Path) -> Iterator[TestFarm]:
    """A farm on each kind of database and storage, without a broker and with the sweeper called by hand."""
    with open_test_farm(tmp_path / "state", database_url, storage_url=storage_url) as opened:
        yield opened


@pytest.fixture
def small_farm(sqlite_url: str, tmp_path: Path) -> Iterator[TestFarm]:
    """A farm on SQLite only, for what does not touch the database's kind."""
    with open_test_farm(tmp_path / "state", sqlite_url) as opened:
        yield opened


@pytest.fixture
def live(
    request: pytest.FixtureRequest, loopback: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LiveFarm]:
    """A farm on a socket, which `pockfarm` speaks to as its operator; the parameter, if any, is its settings."""
    with live_farm(tmp_path, **getattr(request, "param", {})) as farm:
        monkeypatch.setenv("POCKFARM_URL", farm.url)
        monkeypatch.setenv("POCKFARM_API_KEY", farm.http.headers["Authorization"].split()[1])
        yield farm


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a `pockfarm` command prints that succeeds."""

    def say(*words: str) -> str:
        assert cli.main(list(words)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return say

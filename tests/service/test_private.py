"""What the farm leaves on disk is its owner's only, also what an older release left open."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.farm.state import StateFolder
from service.store.database.engine import Database
from service.store.database.schema import migrate
from tests.agents.live_farm import live_farm


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in sorted(folder.rglob("*"))}


def test_a_new_database_is_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'farm.db'}"
    migrate(url)
    database = Database(url)
    with database.transaction() as session:
        session.connection().exec_driver_sql("DELETE FROM events")
        assert modes(tmp_path) == {"farm.db": 0o600, "farm.db-shm": 0o600, "farm.db-wal": 0o600}
    database.close()


def test_an_open_database_of_an_older_release_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "farm.db"
    older = sqlite3.connect(path)
    older.execute("PRAGMA journal_mode=WAL")
    older.execute("CREATE TABLE t (x)")
    older.commit()
    assert set(modes(tmp_path).values()) == {0o644}
    database = Database(f"sqlite:///{path}")
    assert modes(tmp_path) == {"farm.db": 0o600, "farm.db-shm": 0o600, "farm.db-wal": 0o600}
    database.close()
    older.close()


def test_everything_that_a_running_farm_leaves_is_private(loopback: None, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    with live_farm(state) as farm:
        farm.run(farm.keep_bundle())
        found = modes(state)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert state.stat().st_mode & 0o777 == 0o700


def test_the_admin_command_leaves_private_files(tmp_path: Path) -> None:
    environment = {**os.environ, "POCKFARM_STATE": str(tmp_path / "s")}
    for words in (["migrate"], ["create-key", "--save"]):
        subprocess.run(
            [sys.executable, "-m", "service.admin", *words], env=environment, check=True, capture_output=True
        )
    assert {name: oct(mode) for name, mode in modes(tmp_path).items() if mode & 0o077} == {}


def test_an_agents_state_folder_that_was_there_before_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir(mode=0o755)
    StateFolder(tmp_path / "agent")
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o700

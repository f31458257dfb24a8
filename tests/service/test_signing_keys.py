"""A lost or swapped signing key stops the farm with a clear word; only an operator's command makes another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from service.app import create_app
from service.base.settings import Settings
from service.store import signing_keys
from service.store.database.models import SigningKey
from service.store.signing_keys import SigningKeyLost
from tests.service.farms import RecordingQueue, TestFarm, open_test_farm


def key_of(farm: TestFarm) -> str:
    return farm.farm.signer.key_id


def test_a_lost_key_is_not_replaced_in_silence(database_url: str, tmp_path: Path) -> None:
    state = tmp_path / "s"
    with open_test_farm(state, database_url) as farm:
        key = key_of(farm)
    with open_test_farm(state, database_url) as farm:
        assert key_of(farm) == key, "as long as the file is there, nothing is said"
    (state / "signing-key.json").rename(tmp_path / "backup")
    with pytest.raises(SigningKeyLost, match=rf"signing-key.json is missing.*{key}.*new-signing-key"):
        create_app(Settings(state=state, database_url=database_url), queue=RecordingQueue())
    assert not (state / "signing-key.json").exists()
    (tmp_path / "backup").rename(state / "signing-key.json")
    with open_test_farm(state, database_url) as farm:
        assert key_of(farm) == key


def test_processes_that_start_a_farm_together_record_its_key_once(
    farm: TestFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has looked before the first has written."""
    monkeypatch.setattr(signing_keys, "current_key", lambda session: None)
    with farm.farm.database.transaction() as session:
        signing_keys.confirm(session, farm.farm.signer, farm.farm.settings.signing_key_path)
    with farm.farm.database.read() as session:
        assert [one.key_id for one in session.scalars(select(SigningKey))] == [key_of(farm)]


def test_a_farm_of_an_older_release_that_has_devices_had_a_key(database_url: str, tmp_path: Path) -> None:
    state = tmp_path / "s"
    with open_test_farm(state, database_url) as farm:
        farm.board()
        with farm.farm.database.transaction() as session:
            session.execute(delete(SigningKey))
    (state / "signing-key.json").unlink()
    with pytest.raises(SigningKeyLost, match="has devices that trust an earlier key"):
        create_app(Settings(state=state, database_url=database_url), queue=RecordingQueue())


def test_another_farms_key_is_refused(migrated_sqlite: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copy(migrated_sqlite, tmp_path / f"{name}.db")
        with open_test_farm(tmp_path / name, f"sqlite:///{tmp_path / name}.db"):
            pass
    shutil.copy(tmp_path / "one" / "signing-key.json", tmp_path / "two" / "signing-key.json")
    with (
        pytest.raises(SigningKeyLost, match=r"two/signing-key\.json holds key \w+"),
        open_test_farm(tmp_path / "two", f"sqlite:///{tmp_path / 'two'}.db"),
    ):
        pass


def test_the_way_out_makes_a_new_key_and_only_when_the_old_one_is_gone(sqlite_url: str, tmp_path: Path) -> None:
    state = tmp_path / "s"
    with open_test_farm(state, sqlite_url) as farm:
        old = key_of(farm)

    def command() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "POCKFARM_STATE": str(state), "POCKFARM_DATABASE_URL": sqlite_url}
        words = [sys.executable, "-m", "service.admin", "new-signing-key"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    refused = command()
    assert refused.returncode == 1
    assert "is there" in refused.stderr
    assert "Traceback" not in refused.stderr
    (state / "signing-key.json").unlink()
    made = command()
    assert made.returncode == 0, made.stderr
    with open_test_farm(state, sqlite_url) as farm:
        assert key_of(farm) != old
        assert key_of(farm) in made.stdout
        with farm.farm.database.read() as session:
            retired = {row.key_id for row in session.query(SigningKey) if row.retired_at is not None}
    assert retired == {old}

"""A backup of a farm at work, restored into an empty one: the same record, on either database and between them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pockfarm import cli
from service import admin
from service.base.settings import Settings
from service.operations.backup.form import BackupError, seal, unseal
from service.operations.backup.reading import restore_backup
from service.operations.backup.writing import write_backup
from service.store.database import schema
from service.store.database.engine import Database
from service.store.database.models import Job
from service.store.database.schema import check_schema, current_revision, migrate
from service.store.storage import open_storage
from tests.sample import sample
from tests.service.farms import TestFarm, open_test_farm
from tests.service.newer_code import LATER, VERSIONS
from tests.service.rows import Snapshot, fill, snapshot

PASSPHRASE = "four words or more"


def content(url: str) -> Snapshot:
    database = Database(url)
    with database.engine.connect() as connection:
        found = snapshot(connection)
    database.close()
    return found


def revived(rows: Snapshot) -> Snapshot:
    """What a restore brings back as it was: the rest is `test_restoring.py`'s."""
    gone = (
        "dashboard_links",
        "dashboard_sessions",
        "device_credentials",
        "idempotency_records",
        "enrolment_tokens",
        "enrolment_uses",
        "webhook_deliveries",
        "audit_entries",
        "device_events",
    )
    return {
        name: [{column: value for column, value in row.items() if column != "unconfirmed_at"} for row in table]
        for name, table in rows.items()
        if name not in gone
    }


def said(_: str) -> None:
    """Nobody listens."""


@pytest.fixture(params=["sqlite", "postgresql"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that nobody has migrated."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'other' / 'farm.db'}"
    return str(request.getfixturevalue("postgres").make_database())


def settings_at(folder: Path, url: str) -> Settings:
    return Settings(state=folder, database_url=url)


def test_every_row_and_file_comes_back_on_either_database(farm: TestFarm, other_url: str, tmp_path: Path) -> None:
    digest, board = farm.bundle(), farm.board()
    farm.run(bundle=digest, mode="profile", steps=4)
    assert board.lease() is not None
    old, new = farm.farm.settings, settings_at(tmp_path / "other", other_url)
    assert write_backup(old, tmp_path / "b", passphrase=None, say=said) == []
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    read = restore_backup(new, tmp_path / "b", passphrase=None, say=said)
    assert revived(content(new.database)) == revived(content(old.database))
    assert sum(read.rows.values()) == sum(len(rows) for rows in content(old.database).values())
    for kept in (digest, farm.http.get("/jobs").json()["items"][0]["model"]["digest"]):
        assert b"".join(open_storage(new.storage).read(kept)) == b"".join(farm.farm.storage.read(kept))
    shutil.copy(old.signing_key_path, new.signing_key_path)
    with open_test_farm(new.state, new.database) as again:
        assert again.compile(b"another").status_code == 202, "and it works"
        assert {one["id"] for one in again.http.get("/runs").json()["items"]} == {
            run["id"] for run in farm.http.get("/runs").json()["items"]
        }


def test_every_kind_of_row_comes_back(sqlite_url: str, other_url: str, tmp_path: Path) -> None:
    """Rows of every table, with every checked value, nulls and numbers from the database's counters."""
    database = Database(sqlite_url)
    with database.engine.begin() as connection:
        fill(connection)
    database.close()
    old, new = settings_at(tmp_path / "old", sqlite_url), settings_at(tmp_path / "new", other_url)
    write_backup(old, tmp_path / "b", passphrase=None, say=said)
    restore_backup(new, tmp_path / "b", passphrase=None, say=said)
    assert revived(content(new.database)) == revived(content(sqlite_url))


def test_it_is_one_moment_while_the_farm_goes_on(farm: TestFarm, tmp_path: Path) -> None:
    """Jobs come in all the time, each with its event in one transaction: a backup has both or none."""
    stop, count = threading.Event(), [0]

    def submit() -> None:
        while not stop.is_set():
            assert farm.compile(f"model {count[0]}".encode()).status_code == 202
            count[0] += 1

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        for n in range(2):
            before = count[0]
            write_backup(farm.farm.settings, tmp_path / f"b{n}", passphrase=None, say=said)
            new = settings_at(tmp_path / f"new{n}", f"sqlite:///{tmp_path}/new{n}/farm.db")
            restore_backup(new, tmp_path / f"b{n}", passphrase=None, say=said)
            rows = content(new.database)
            assert before <= len(rows["jobs"]) <= count[0] + 1
            assert {row["subject"] for row in rows["events"]} == {row["id"] for row in rows["jobs"]}
            storage = open_storage(new.storage)
            assert [row["id"] for row in rows["jobs"] if storage.size(row["model_digest"]) is None] == []
    finally:
        stop.set()
        thread.join()


def test_a_farm_that_is_not_empty_is_left_alone(farm: TestFarm, tmp_path: Path) -> None:
    write_backup(farm.farm.settings, tmp_path / "b", passphrase=None, say=said)
    before = content(farm.farm.settings.database)
    with pytest.raises(BackupError, match=r"not empty \(its table api_keys has rows\)"):
        restore_backup(farm.farm.settings, tmp_path / "b", passphrase=None, say=said)
    assert content(farm.farm.settings.database) == before
    with pytest.raises(BackupError, match="is there already"):
        write_backup(farm.farm.settings, tmp_path / "b", passphrase=None, say=said)


def rewritten(source: Path, to: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with its members changed, or left out."""
    with tarfile.open(source) as old, tarfile.open(to, "w") as new:
        for entry in old:
            stream = old.extractfile(entry)
            assert stream is not None
            data = change(entry.name, stream.read())
            if data is not None:
                entry.size = len(data)
                new.addfile(entry, io.BytesIO(data))
    return to


def begin(**fields: Any) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | fields).encode() if name == "begin.json" else data

    return change


DAMAGES: dict[str, tuple[Callable[[str, bytes], bytes | None], str]] = {
    "cut off": (lambda name, data: None if name == "end.json" else data, "cut off"),
    "a row changed": (lambda name, data: data.replace(b'"state":"queued"', b'"state":"failed"'), "damaged at tables/"),
    "a table gone": (lambda name, data: None if name.startswith("tables/jobs") else data, "damaged at tables/jobs"),
    "a file changed": (lambda name, data: b"x" + data[1:] if name.startswith("files/") else data, "damaged"),
    "another form": (begin(form="tar"), "this code reads pockfarm.backup/1"),
    "newer": (begin(schema="9999"), "does not know"),
    "a later release": (begin(release_number=7), "POCKFARM_RELEASE_NUMBER=7"),
}


@pytest.mark.parametrize("damage", sample(DAMAGES, {"cut off", "a row changed"}))
def test_a_damaged_backup_restores_nothing(small_farm: TestFarm, tmp_path: Path, damage: str) -> None:
    small_farm.compile()
    write_backup(small_farm.farm.settings, tmp_path / "b", passphrase=None, say=said)
    change, message = DAMAGES[damage]
    new = settings_at(tmp_path / "new", f"sqlite:///{tmp_path}/new/farm.db")
    with pytest.raises(BackupError, match=message):
        restore_backup(new, rewritten(tmp_path / "b", tmp_path / "bad", change), passphrase=None, say=said)
    assert {name for name, rows in content(new.database).items() if rows} <= {"organisations"}  # the migrations' own
    restore_backup(new, tmp_path / "b", passphrase=None, say=said)  # the farm is still empty, so the good one goes in
    assert len(content(new.database)["jobs"]) == 1


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"nothing of the kind" * 100)
    new = settings_at(tmp_path / "new", f"sqlite:///{tmp_path}/new/farm.db")
    for name, message in (("b", "is no backup"), ("missing", "No such file")):
        with pytest.raises(BackupError, match=message):
            restore_backup(new, tmp_path / name, passphrase=None, say=said)


@pytest.mark.parametrize("is_migrated", [False, True], ids=["into nothing", "into an empty farm"])
def test_a_backup_of_older_code_is_brought_up_to_date(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_migrated: bool
) -> None:
    database = Database(sqlite_url)
    with database.engine.begin() as connection:
        fill(connection)
    database.close()
    write_backup(settings_at(tmp_path / "old", sqlite_url), tmp_path / "b", passphrase=None, say=said)
    monkeypatch.setattr(schema, "VERSIONS", VERSIONS)
    new = settings_at(tmp_path / "new", f"sqlite:///{tmp_path}/new/farm.db")
    if is_migrated:
        migrate(new.database)
    restore_backup(new, tmp_path / "b", passphrase=None, say=said)
    database = Database(new.database)
    check_schema(database)
    with database.engine.connect() as connection:
        assert current_revision(connection) == LATER[-1]
    with database.read() as session:
        assert session.query(Job).count() == len(content(sqlite_url)["jobs"])
    database.close()


def test_keys_go_along_only_when_asked_and_only_encrypted(
    small_farm: TestFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small_farm.farm.settings
    key = settings.signing_key_path.read_bytes()
    monkeypatch.setenv("POCKFARM_STATE", str(settings.state))
    monkeypatch.setenv("POCKFARM_DATABASE_URL", settings.database)
    assert admin.main(["backup", str(tmp_path / "plain")]) == 0
    assert "without keys" in capsys.readouterr().err
    assert admin.main(["backup", str(tmp_path / "b"), "--with-keys"]) == 1
    assert "POCKFARM_BACKUP_PASSPHRASE" in capsys.readouterr().err
    monkeypatch.setenv("POCKFARM_BACKUP_PASSPHRASE", PASSPHRASE)
    assert admin.main(["backup", str(tmp_path / "b"), "--with-keys"]) == 0
    private = json.loads(key)
    secret = max((value for value in private.values() if isinstance(value, str)), key=len).encode()
    for name in ("plain", "b"):
        assert secret not in (tmp_path / name).read_bytes()
    monkeypatch.setenv("POCKFARM_STATE", str(tmp_path / "new"))
    monkeypatch.setenv("POCKFARM_DATABASE_URL", "")
    monkeypatch.setenv("POCKFARM_BACKUP_PASSPHRASE", "another passphrase")
    assert admin.main(["restore", str(tmp_path / "b")]) == 0
    assert "put signing-key.json into" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "new")
    monkeypatch.setenv("POCKFARM_BACKUP_PASSPHRASE", PASSPHRASE)
    assert admin.main(["restore", str(tmp_path / "b"), "--with-keys"]) == 0
    assert (tmp_path / "new" / "signing-key.json").read_bytes() == key
    with pytest.raises(BackupError, match="another passphrase"):
        unseal(seal({"a": b"b"}, PASSPHRASE), PASSPHRASE + "x")
    with pytest.raises(BackupError, match="at least 12"):
        seal({}, "short")


def test_a_stored_file_that_has_rotted_is_told(small_farm: TestFarm, tmp_path: Path) -> None:
    digest = small_farm.compile().json()["model"]["digest"]
    path = small_farm.farm.settings.state / "files" / "sha256" / digest[7:9] / digest[9:]
    path.chmod(0o600)
    path.write_bytes(b"rotte")
    assert write_backup(small_farm.farm.settings, tmp_path / "b", passphrase=None, say=said) == [digest]
    new = settings_at(tmp_path / "new", f"sqlite:///{tmp_path}/new/farm.db")
    read = restore_backup(new, tmp_path / "b", passphrase=None, say=said)
    assert read.lost == [digest]
    assert open_storage(new.storage).size(digest) is None


@pytest.mark.thorough
def test_a_farm_of_this_machine_has_commands_for_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "farm.tar"
    assert cli.main(["backup", str(file), "--state", str(old)]) == 1
    assert "run `python -m service.admin migrate`" in capfd.readouterr().err
    with open_test_farm(old, _migrated(old)) as farm:
        farm.compile()
    assert cli.main(["backup", str(file), "--state", str(old)]) == 0
    new.mkdir()
    _migrated(new)
    assert cli.main(["restore", str(tmp_path / "mistyped"), "--state", str(new)]) == 1
    assert cli.main(["restore", str(file), "--state", str(new)]) == 0
    was, now = (content(f"sqlite:///{state}/farm.db") for state in (old, new))
    audits = [sorted((one["action"], one["outcome"]) for one in rows.pop("audit_entries")) for rows in (was, now)]
    assert revived(now) == revived(was)
    assert audits == [
        [("POST /compile", "done"), ("service.admin backup", "done")],
        [
            ("POST /compile", "done"),
            ("restore", "done"),
            ("service.admin restore", "done"),
            ("service.admin restore", "refused"),
        ],
    ]
    assert cli.main(["restore", str(file), "--state", str(new)]) == 1
    assert "this farm is not empty" in capfd.readouterr().err


def _migrated(state: Path) -> str:
    url = f"sqlite:///{state}/farm.db"
    migrate(url)
    return url

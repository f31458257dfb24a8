"""A disk without room: said before it matters, and nothing half-written when it happens."""

from __future__ import annotations

import errno
import logging
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from psycopg.errors import DiskFull as PostgresDiskFull
from sqlalchemy.exc import OperationalError

from service.base.disk import is_disk_full, is_file_error, written_folders
from service.base.identifiers import digest_of
from service.base.settings import Settings
from service.store.storage.s3 import S3Storage
from tests.service.farms import TestFarm, npz, open_test_farm
from tests.service.stores import s3_store


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond `size_bytes`: a write fails as it does on a full disk (EFBIG for ENOSPC)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def storage_url(tmp_path: Path) -> str:
    """A folder, whichever the database: it is its disk that is full."""
    return f"file://{tmp_path / 'state' / 'files'}"


def kept_files(farm: TestFarm) -> list[Path]:
    return [path for path in (farm.farm.settings.state / "files").rglob("*") if path.is_file()]


@pytest.mark.parametrize("model_bytes", [500_000, 4_000_000])
def test_no_room_for_a_model_is_said_and_leaves_nothing(farm: TestFarm, model_bytes: int) -> None:
    """The small one fails in the storage, the large one while it arrives."""
    with files_end_at(1 << 18):
        answer = farm.compile(b"x" * model_bytes)
    assert (answer.status_code, answer.json()["code"], answer.json()["cause"]) == (507, "infra.disk-full", "infra")
    assert int(answer.headers["retry-after"]) < farm.farm.settings.lease_s / 3, (
        "else a board that is told so loses its lease"
    )
    assert kept_files(farm) == []
    assert farm.http.get("/jobs").json()["items"] == []
    assert farm.compile(b"x" * model_bytes).status_code == 202


def test_no_room_for_data_and_weights_is_said(farm: TestFarm) -> None:
    bundle, board = farm.bundle(), farm.board()
    farm.run(bundle=bundle)
    work = board.lease()
    assert work is not None
    before = kept_files(farm)
    with files_end_at(1 << 18):
        data = farm.http.post("/datasets", files={"file": ("d.npz", npz(x=[[0.5] * 90_000], y=[1]))})
        weights = board.put_weights(work, b"w" * 500_000, "sha256:" + "0" * 64)
    assert [data.json()["code"], weights.json()["code"]] == ["infra.disk-full"] * 2
    assert kept_files(farm) == before


def test_a_database_whose_files_cannot_grow_has_no_room(small_farm: TestFarm) -> None:
    """SQLite calls EFBIG an input or output error, as it does with a disk that fails."""
    with files_end_at(1 << 10):
        answer = small_farm.http.post("/keys", json={"name": "k" * 200})
    assert (answer.status_code, answer.json()["code"]) == (507, "infra.disk-full"), answer.text
    assert answer.json()["where"] == "database"
    assert small_farm.http.post("/keys", json={"name": "k" * 200}).status_code == 201


@pytest.mark.parametrize("name", ["SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN", "SQLITE_CANTOPEN_ISDIR", "SQLITE_BUSY"])
def test_a_database_that_fails_with_room_left_is_down(
    small_farm: TestFarm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failed = sqlite3.OperationalError("no")
    failed.sqlite_errorcode = getattr(sqlite3, name)
    assert is_file_error(failed) == (name != "SQLITE_BUSY")

    def refuse(*_: object) -> None:
        raise OperationalError("SELECT", {}, failed)

    monkeypatch.setattr(small_farm.farm.database.engine.pool, "connect", refuse)
    answer = small_farm.http.get("/runs")
    assert (answer.status_code, answer.json()["code"]) == (503, "infra.database")


# ------------------------------------------------------------------------------------- a store on another machine


@pytest.fixture
def s3_farm(sqlite_url: str, tmp_path: Path) -> Iterator[TestFarm]:
    with s3_store() as url, open_test_farm(tmp_path / "state", sqlite_url, storage_url=url) as farm:
        yield farm


@contextmanager
def failing_writes(farm: TestFarm, error: Exception) -> Iterator[None]:
    """The store is away, or full, for everything that is written to it."""

    def refuse(**_: object) -> None:
        raise error

    storage = farm.farm.storage
    assert isinstance(storage, S3Storage)
    events, names = storage.bucket.client.meta.events, ("PutObject", "CreateMultipartUpload", "UploadPart")
    for name in names:
        events.register(f"before-call.s3.{name}", refuse)
    yield
    for name in names:
        events.unregister(f"before-call.s3.{name}", refuse)


FULL = ClientError({"Error": {"Code": "InsufficientStorage"}, "ResponseMetadata": {"HTTPStatusCode": 507}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(FULL, 507, "infra.disk-full"), (EndpointConnectionError(endpoint_url="http://secret"), 503, "infra.storage")],
)
def test_a_store_that_is_full_or_down_is_said(s3_farm: TestFarm, error: Exception, status: int, code: str) -> None:
    farm = s3_farm
    farm.run(bundle=farm.bundle())
    board = farm.board()
    work = board.lease()
    assert work is not None
    with failing_writes(farm, error):
        messages = [
            farm.compile(b"other"),
            farm.send_dataset(x=np.zeros((2, 1)), y=np.zeros(2)),
            board.put_weights(work, b"w" * 500, digest_of(b"w" * 500)),
        ]
    for answer in messages:
        body = answer.json()
        assert (answer.status_code, body["code"], body["cause"]) == (status, code, "infra"), answer.text
        assert int(answer.headers["Retry-After"]) > 0
        assert "secret" not in answer.text
    assert farm.compile(b"other").status_code == 202


def test_a_full_disk_is_not_ready(sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        open_test_farm(tmp_path / "s", sqlite_url, disk_reserve_bytes=1 << 60) as farm,
        caplog.at_level(logging.WARNING),
    ):
        answer = farm.anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["disk"]) == (503, "full")
    assert " 1,152,921,504,606,846,976" in caplog.text


def test_a_disk_that_takes_no_write_is_not_ready(small_farm: TestFarm) -> None:
    small_farm.worker_lives()
    with files_end_at(1 << 10):
        answer = small_farm.anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["parts"]["disk"]) == (503, "full")
    assert small_farm.anonymous.get("/readyz").json()["status"] == "ok"


def test_every_folder_that_is_written_to_is_looked_at(tmp_path: Path) -> None:
    settings = Settings(
        state=tmp_path / "s", database_url=f"sqlite:///{tmp_path}/d/farm.db", storage_url=f"file://{tmp_path}/f"
    )
    assert {tmp_path / "s", tmp_path / "d", tmp_path / "f"} < set(written_folders(settings))
    remote = Settings(state=tmp_path / "s", database_url="postgresql+psycopg://x/y", storage_url="s3://b/p")
    assert len(written_folders(remote)) == 2


def test_a_database_without_room_is_told_from_one_that_is_down(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "small.db")
    connection.execute("PRAGMA max_page_count=4")
    connection.execute("CREATE TABLE t (x)")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert is_disk_full(caught.value)
    assert is_disk_full(PostgresDiskFull())
    assert is_disk_full(OSError(errno.ENOSPC, "no room"))
    assert not is_disk_full(sqlite3.OperationalError("database is locked"))
    assert not is_disk_full(OSError(errno.ENOENT, "gone"))
    connection.close()

"""Content-addressed files: the same behaviour in a folder and in an S3-compatible store."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from service.base.disk import is_disk_full
from service.store.storage import (
    DigestMismatch,
    FileStorage,
    FileTooLarge,
    MissingFile,
    Storage,
    StorageDown,
    StorageFull,
    open_storage,
    s3,
)
from service.store.storage.s3 import S3Storage
from service.store.storage.s3_calls import meaning
from tests.service.stores import s3_store

DATA = bytes(range(256)) * 10_000
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "file":
        yield open_storage(f"file://{tmp_path / 'files'}")
        return
    with s3_store() as url:
        yield open_storage(url)


def test_what_is_put_comes_back(storage: Storage) -> None:
    for _ in range(2):
        stored = storage.put(io.BytesIO(DATA), limit_bytes=len(DATA), digest=DIGEST)
        assert (stored.digest, stored.size_bytes) == (DIGEST, len(DATA))
    assert storage.size(DIGEST) == len(DATA)
    assert b"".join(storage.read(DIGEST)) == DATA
    with storage.local(DIGEST) as path:
        assert path.read_bytes() == DATA
    storage.check()


def test_too_long_or_other_bytes_are_not_kept(storage: Storage) -> None:
    with pytest.raises(FileTooLarge):
        storage.put(io.BytesIO(DATA), limit_bytes=len(DATA) - 1)
    with pytest.raises(DigestMismatch):
        storage.put(io.BytesIO(b"other"), limit_bytes=100, digest=DIGEST)
    assert storage.size(DIGEST) is None
    assert storage.size("sha256:" + hashlib.sha256(b"other").hexdigest()) is None


def test_missing_file(storage: Storage) -> None:
    with pytest.raises(MissingFile):
        storage.read(DIGEST)
    with pytest.raises(MissingFile), storage.local(DIGEST):
        pass


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "sha256:" + "A" * 64, "", "sha256:" + "0" * 63])
def test_names_that_are_no_digests_are_missing(tmp_path: Path, digest: str) -> None:
    files = FileStorage(tmp_path)
    assert files.size(digest) is None
    with pytest.raises(MissingFile):
        files.read(digest)


def test_concurrent_puts_of_the_same_bytes(tmp_path: Path) -> None:
    files = FileStorage(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        stored = list(threads.map(lambda _: files.put(io.BytesIO(DATA), limit_bytes=1 << 30), range(16)))
    assert {one.digest for one in stored} == {DIGEST}
    assert list((tmp_path / "incoming").iterdir()) == []


def test_broken_stream_leaves_nothing(tmp_path: Path) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise ConnectionError("gone")

    files = FileStorage(tmp_path)
    with pytest.raises(ConnectionError):
        files.put(Broken(), limit_bytes=100)  # type: ignore[arg-type]
    assert list((tmp_path / "incoming").iterdir()) == []


def grow(storage: Storage, name: str, *pieces: bytes) -> None:
    at = 0
    for piece in pieces:
        storage.append(name, piece, at_bytes=at)
        at += len(piece)


def test_a_file_grows_and_is_adopted(storage: Storage) -> None:
    grow(storage, "upl_1", DATA[:1_000_000], DATA[1_000_000:1_000_001], DATA[1_000_001:])
    assert [name for name, _ in storage.growing()] == ["upl_1"]
    assert storage.size(DIGEST) is None
    stored = storage.adopt("upl_1", size_bytes=len(DATA), digest=DIGEST)
    assert (stored.digest, stored.size_bytes) == (DIGEST, len(DATA))
    assert b"".join(storage.read(DIGEST)) == DATA
    assert list(storage.growing()) == []
    with pytest.raises(MissingFile):
        storage.adopt("upl_1", size_bytes=len(DATA), digest=DIGEST)


def test_pieces_written_again_or_by_two_change_nothing(storage: Storage) -> None:
    """A sender that was cut off goes on at 1,000 while its first request is still being written."""
    grow(storage, "upl_1", DATA[:1000])
    storage.append("upl_1", DATA[1000:5000], at_bytes=1000)
    storage.append("upl_1", DATA[1000:2000], at_bytes=1000)
    storage.append("upl_1", DATA[5000:], at_bytes=5000)
    storage.append("upl_1", DATA[5000:6000], at_bytes=5000)
    storage.adopt("upl_1", size_bytes=len(DATA), digest=DIGEST)
    assert b"".join(storage.read(DIGEST)) == DATA


def test_other_bytes_are_not_adopted_even_under_a_known_digest(storage: Storage) -> None:
    storage.put(io.BytesIO(DATA), limit_bytes=len(DATA))
    grow(storage, "upl_1", b"x" * len(DATA))
    for digest in (DIGEST, "sha256:" + "0" * 64):
        with pytest.raises(DigestMismatch):
            storage.adopt("upl_1", size_bytes=len(DATA), digest=digest)
    assert storage.size("sha256:" + "0" * 64) is None
    assert [name for name, _ in storage.growing()] == ["upl_1"]
    storage.discard("upl_1")
    storage.discard("upl_1")
    assert list(storage.growing()) == []
    assert b"".join(storage.read(DIGEST)) == DATA


def test_a_gap_is_a_missing_file(storage: Storage) -> None:
    grow(storage, "upl_1", DATA[:1000])
    with suppress(MissingFile):  # a store of objects hears of it at the end only
        storage.append("upl_1", DATA[3000:], at_bytes=3000)
    with pytest.raises(MissingFile):
        storage.adopt("upl_1", size_bytes=len(DATA), digest=DIGEST)
    with pytest.raises(MissingFile):
        storage.adopt("upl_2", size_bytes=10, digest=DIGEST)
    assert storage.size(DIGEST) is None


def test_growing_files_are_listed_once_each(storage: Storage) -> None:
    for name in ("upl_b", "upl_a"):
        grow(storage, name, b"1", b"2", b"3")
    before = time.time()
    assert [name for name, _ in storage.growing()] == ["upl_a", "upl_b"]
    assert all(abs(at - before) < 60 for _, at in storage.growing())


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a" * 81, "."])
def test_names_of_growing_files_are_no_paths(storage: Storage, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a file"):
        storage.append(name, b"x", at_bytes=0)


def test_a_file_of_several_parts_is_whole(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    data = DATA * 5
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    grow(storage, "upl_1", *(data[at : at + 4_000_000] for at in range(0, len(data), 4_000_000)))
    storage.adopt("upl_1", size_bytes=len(data), digest=digest)
    assert b"".join(storage.read(digest)) == data


# ------------------------------------------------------------------------------------- what another's file shows


@pytest.fixture
def bucket() -> Iterator[S3Storage]:
    with s3_store() as url:
        opened = open_storage(url)
        assert isinstance(opened, S3Storage)
        yield opened


def calls_of(bucket: S3Storage, act: Callable[[], object]) -> list[str]:
    """Names of the requests that it takes."""
    names: list[str] = []
    events = bucket.bucket.client.meta.events

    def note(event_name: str, **_: object) -> None:
        names.append(event_name)

    events.register("before-call.s3", note)
    act()
    events.unregister("before-call.s3", note)
    return names


@pytest.mark.parametrize("times", [1, 9], ids=["one request", "several parts"])
def test_a_second_sender_sees_the_calls_of_the_first(bucket: S3Storage, times: int) -> None:
    data = DATA * times
    digest = "sha256:" + hashlib.sha256(data).hexdigest()

    def put() -> None:
        bucket.put(io.BytesIO(data), limit_bytes=len(data))

    def upload() -> None:
        grow(bucket, "upl_1", data)
        bucket.adopt("upl_1", size_bytes=len(data), digest=digest)

    for send in (put, upload):
        first, second = calls_of(bucket, send), calls_of(bucket, send)
        assert first == second
        assert any("PutObject" in name or "UploadPart" in name for name in second)
        bucket.delete(digest)
    assert calls_of(bucket, upload) == calls_of(bucket, upload)


def changes_of(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[str]:
    """What it does to folders, in order: everything that waits for a disk."""
    names: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("link", "replace", "unlink", "utime", "mkdir", "fsync"):
            real = getattr(os, name)

            def noted(*arguments: Any, _name: str = name, _real: Any = real, **named: Any) -> Any:
                names.append(_name)
                return _real(*arguments, **named)

            patch.setattr(os, name, noted)
        act()
    return names


def test_a_second_sender_changes_the_folder_as_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileStorage(tmp_path)

    def put() -> None:
        files.put(io.BytesIO(DATA), limit_bytes=len(DATA))

    def upload() -> None:
        grow(files, "upl_1", DATA)
        files.adopt("upl_1", size_bytes=len(DATA), digest=DIGEST)

    for send in (put, upload):
        first, second = changes_of(monkeypatch, send), changes_of(monkeypatch, send)
        assert first == second
        assert "replace" in second
        files.delete(DIGEST)


def test_who_reads_a_file_goes_on_while_it_is_sent_again(tmp_path: Path) -> None:
    files = FileStorage(tmp_path)
    files.put(io.BytesIO(DATA), limit_bytes=len(DATA))
    reading = files.read(DIGEST)
    begun = next(reading)
    files.put(io.BytesIO(DATA), limit_bytes=len(DATA))
    assert begun + b"".join(reading) == DATA


# ------------------------------------------------------------------------------------------- a store without room


def refusal(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("InsufficientStorage", 507, StorageFull),
        ("QuotaExceeded", 403, StorageFull),
        ("Other", 507, StorageFull),
        ("XMinioStorageFull", 507, StorageFull),
        ("InternalError", 500, StorageDown),
        ("SlowDown", 503, StorageDown),
        ("AccessDenied", 403, StorageDown),
        ("NoSuchBucket", 404, StorageDown),
        ("RequestTimeout", 400, StorageDown),
        ("NoSuchKey", 404, MissingFile),
        ("404", 404, MissingFile),
        ("InvalidPart", 400, type(None)),
    ],
)
def test_what_a_stores_refusal_means(code: str, status: int, expected: type) -> None:
    found = meaning(refusal(code, status))
    assert type(found) is expected
    assert is_disk_full(found) == (expected is StorageFull)


def test_every_call_of_a_store_that_is_not_there_says_so(bucket: S3Storage) -> None:
    def refuse(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="http://store")

    bucket.bucket.client.meta.events.register("before-call.s3", refuse)
    asked: list[Callable[[], object]] = [
        lambda: bucket.put(io.BytesIO(DATA), limit_bytes=len(DATA)),
        lambda: bucket.size(DIGEST),
        lambda: bucket.read(DIGEST),
        bucket.check,
        lambda: bucket.delete(DIGEST),
        lambda: list(bucket.stored()),
        lambda: bucket.append("upl_1", b"x", at_bytes=0),
        lambda: bucket.discard("upl_1"),
        lambda: bucket.adopt("upl_1", size_bytes=1, digest=DIGEST),
        lambda: list(bucket.growing()),
        lambda: bucket.tidy(0.0),
    ]
    for ask in asked:
        with pytest.raises(StorageDown, match="http://store"):
            ask()


def test_unknown_kind_of_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="file:///folder or s3://bucket"):
        open_storage("ftp://somewhere")

"""Content-addressed files: the same behaviour in a folder and in an S3-compatible store."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from service.storage import DigestMismatch, FileStorage, FileTooLarge, MissingFile, Storage, open_storage, s3

DATA = bytes(range(256)) * 10_000
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    if request.param == "file":
        yield open_storage(f"file://{tmp_path / 'files'}")
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="farm")
        yield open_storage("s3://farm/files")


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


def test_unknown_kind_of_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="file:///folder or s3://bucket"):
        open_storage("ftp://somewhere")

"""Content-addressed files: the same behaviour in a folder and in an S3-compatible store."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from service.storage import DigestMismatch, FileStorage, FileTooLarge, MissingFile, Storage, open_storage

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


def test_unknown_kind_of_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="file:///folder or s3://bucket"):
        open_storage("ftp://somewhere")

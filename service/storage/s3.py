"""Content-addressed files in an S3-compatible store: `<prefix>/sha256/ab/cdef…`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from service.storage.files import check_digest, write_hashed
from service.storage.store import CHUNK_BYTES, MissingFile, StoredFile

_MISSING = {"404", "NoSuchKey", "NotFound"}


class S3Storage:
    """A `Storage` in one bucket. Time-outs: 10 s to connect, 60 s to read, 4 attempts with back-off (botocore's)."""

    def __init__(self, bucket: str, prefix: str = "", *, endpoint_url: str | None = None) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        config = Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 4, "mode": "standard"})
        self._client: Any = boto3.client("s3", endpoint_url=endpoint_url, config=config)

    def _key(self, digest: str) -> str:
        name = digest.removeprefix("sha256:")
        return f"{self.prefix}sha256/{name[:2]}/{name[2:]}"

    def put(self, stream: BinaryIO, *, limit_bytes: int, digest: str | None = None) -> StoredFile:
        """See `Storage.put`. The stream is hashed in a temporary file first: the key needs the digest."""
        with tempfile.TemporaryFile() as spool:
            stored = write_hashed(stream, spool, limit_bytes=limit_bytes)
            check_digest(digest, stored.digest)
            if self.size(stored.digest) is None:
                spool.seek(0)
                self._client.upload_fileobj(spool, self.bucket, self._key(stored.digest))
        return stored

    def size(self, digest: str) -> int | None:
        """See `Storage.size`."""
        try:
            return int(self._client.head_object(Bucket=self.bucket, Key=self._key(digest))["ContentLength"])
        except ClientError as error:
            if _is_missing(error):
                return None
            raise

    def read(self, digest: str) -> Iterator[bytes]:
        """See `Storage.read`."""
        try:
            body = self._client.get_object(Bucket=self.bucket, Key=self._key(digest))["Body"]
        except ClientError as error:
            if _is_missing(error):
                raise MissingFile(digest) from None
            raise
        chunks: Iterator[bytes] = body.iter_chunks(CHUNK_BYTES)
        return chunks

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        """See `Storage.local`: a temporary copy."""
        with tempfile.NamedTemporaryFile() as copy:
            for chunk in self.read(digest):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)

    def check(self) -> None:
        """See `Storage.check`."""
        self._client.head_bucket(Bucket=self.bucket)


def _is_missing(error: ClientError) -> bool:
    return str(error.response.get("Error", {}).get("Code", "")) in _MISSING

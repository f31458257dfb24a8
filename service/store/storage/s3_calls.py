"""Calls to one bucket; botocore's errors are translated here, once.

    an object that is not there                       MissingFile
    a store that is full (by code, or status 507)     StorageFull
    no answer, 5xx, no access, no bucket, too busy    StorageDown

Anything else that a store refuses (a malformed request) is a defect of ours, and stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from service.store.storage.store import CHUNK_BYTES, MissingFile, StorageDown, StorageFull

MISSING = {"404", "NoSuchKey", "NotFound"}
FULL = {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"}
FULL_STATUS = 507
DOWN_STATUSES = {403, 404, 408, 429}
"""Below 500: access that was taken away, a bucket that is gone, a request that took too long, too many of them."""
DOWN = {"RequestTimeout", "SlowDown"}
PART_BYTES = 8 << 20
ONE_AT_A_TIME = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False)
"""A transfer holds one part in memory; the ten threads that are boto3's default hold ten."""


class S3Calls:
    """Time-outs: 10 s to connect, 60 s to read, 4 attempts with back-off (botocore's)."""

    def __init__(self, bucket: str, *, endpoint_url: str | None = None) -> None:
        self.bucket = bucket
        config = Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 4, "mode": "standard"})
        self.client: Any = boto3.client("s3", endpoint_url=endpoint_url, config=config)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Returns the answer of one operation. Raises: MissingFile, StorageFull, StorageDown."""
        with _translated():
            return getattr(self.client, operation)(Bucket=self.bucket, **arguments)

    def upload(self, stream: BinaryIO, key: str) -> None:
        """Uploads the whole stream under a key, and replaces what is there. Raises: as `call`."""
        with _translated():
            self.client.upload_fileobj(stream, self.bucket, key, Config=ONE_AT_A_TIME)

    def pages(self, operation: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yields every page of a listing. Raises: as `call`."""
        with _translated():
            yield from self.client.get_paginator(operation).paginate(Bucket=self.bucket, **arguments)

    def chunks(self, key: str) -> Iterator[bytes]:
        """Yields an object's bytes. Whether it is there is known when this returns. Raises: as `call`."""
        return _chunks(self.call("get_object", Key=key)["Body"])


def _chunks(body: Any) -> Iterator[bytes]:
    with _translated():
        yield from body.iter_chunks(CHUNK_BYTES)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        meant = meaning(error)
        if meant is None:
            raise
        raise meant from error
    except BotoCoreError as error:
        raise StorageDown(str(error)) from error


def meaning(error: ClientError) -> Exception | None:
    """Translates a refusal into what it says of the store; None if it says something of the request."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in MISSING:
        return MissingFile(str(error))
    if code in FULL or status == FULL_STATUS:
        return StorageFull(str(error))
    if code in DOWN or status in DOWN_STATUSES or status >= 500:
        return StorageDown(str(error))
    return None

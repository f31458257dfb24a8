"""Content-addressed files: a folder, or an S3-compatible store, behind one interface."""

from pathlib import Path
from urllib.parse import urlsplit

from service.store.storage.files import FileStorage
from service.store.storage.store import (
    DigestMismatch,
    FileTooLarge,
    MissingFile,
    Storage,
    StorageDown,
    StorageFull,
    StoredFile,
)


def open_storage(url: str, *, s3_endpoint_url: str = "") -> Storage:
    """Returns the store at `file:///folder` or `s3://bucket/prefix`."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FileStorage(Path(parts.path))
    if parts.scheme == "s3":
        from service.store.storage.s3 import S3Storage  # boto3 takes 20 MB of every process that imports it

        return S3Storage(parts.netloc, parts.path.strip("/"), endpoint_url=s3_endpoint_url or None)
    raise ValueError(f"storage_url {url!r}: expected file:///folder or s3://bucket/prefix")


__all__ = [
    "DigestMismatch",
    "FileStorage",
    "FileTooLarge",
    "MissingFile",
    "Storage",
    "StorageDown",
    "StorageFull",
    "StoredFile",
    "open_storage",
]

"""The interface of a content-addressed store, and the errors of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

CHUNK_BYTES = 1 << 20


class FileTooLarge(Exception):
    """The stream is longer than its limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than {limit_bytes:,} bytes")
        self.limit_bytes = limit_bytes


class DigestMismatch(Exception):
    """The bytes are not those that their digest says."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"expected {expected}, got {actual}")


class MissingFile(Exception):
    """No file with this digest."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What a stored stream turned out to be."""

    digest: str
    size_bytes: int


class Storage(Protocol):
    """Files named by the SHA-256 of their bytes. All methods may be called from any thread or process."""

    def put(self, stream: BinaryIO, *, limit_bytes: int, digest: str | None = None) -> StoredFile:
        """Keep a stream under its digest; keeping it twice changes nothing.

        Raises: FileTooLarge, DigestMismatch (if `digest` is given and differs); nothing is kept then.
        """
        ...

    def size(self, digest: str) -> int | None:
        """Bytes of the file, or None if there is none."""
        ...

    def read(self, digest: str) -> Iterator[bytes]:
        """The file in chunks. Raises: MissingFile."""
        ...

    def local(self, digest: str) -> AbstractContextManager[Path]:
        """A path of the file's bytes on this machine, to be read only inside the block. Raises: MissingFile."""
        ...

    def check(self) -> None:
        """Raise if the store cannot be written now."""
        ...

"""The interface of a content-addressed store, and the errors of it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from service.base.failures import PartDown

CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


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


class StorageFull(OSError):
    """A store on another machine has no room: to whoever asks `is_disk_full`, a full disk."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENOSPC, message)


class StorageDown(PartDown):
    """A store on another machine did not answer, or denied access; it may answer later. The message is for logs."""

    part = "storage"


def check_name(name: str) -> str:
    """Checks the name of a growing file, and returns it. Raises: ValueError for one that could be a path."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.100} cannot name a file")
    return name


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The digest and size of a stored stream."""

    digest: str
    size_bytes: int


class Storage(Protocol):
    """Files named by the SHA-256 of their bytes. All methods may be called from any thread or process."""

    def put(self, stream: BinaryIO, *, limit_bytes: int, digest: str | None = None) -> StoredFile:
        """Stores a stream under its digest; storing it twice changes nothing.

        Raises: FileTooLarge, DigestMismatch (if `digest` is given and differs); nothing is kept then.
        """
        ...

    def size(self, digest: str) -> int | None:
        """Returns the file's size in bytes, or None if there is none."""
        ...

    def read(self, digest: str) -> Iterator[bytes]:
        """Yields the file in chunks. Raises: MissingFile."""
        ...

    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Returns a context with a path of the file's bytes on this machine, to be read only inside the block. Raises:
        MissingFile.
        """
        ...

    def check(self) -> None:
        """Raises if the store cannot be written now."""
        ...

    def delete(self, digest: str) -> None:
        """Removes the file, if there is one."""
        ...

    def stored(self) -> Iterator[tuple[str, int, float]]:
        """Yields the digest, bytes and time of writing (seconds since 1970) of every file, in the order of digests.

        A file that comes or goes meanwhile may be among them, or not.
        """
        ...

    def free_bytes(self) -> int | None:
        """Returns the room that is left, or None if the store does not know."""
        ...

    # A file that arrives in pieces, under a name of its own until it is whole

    def append(self, name: str, piece: bytes | bytearray, *, at_bytes: int, reserve_bytes: int = 0) -> None:
        """Appends a piece to a growing file; it is on disk when this returns. The same piece again changes nothing.

        However many do so at once, they leave the reserve of the disk alone, where the store knows its room. Raises:
        MissingFile (what comes before it is gone), OSError (ENOSPC; nothing of the piece was written).
        """
        ...

    def adopt(self, name: str, *, size_bytes: int, digest: str) -> StoredFile:
        """Reads the grown file from its beginning and stores it under its digest; its name as a growing file is gone
        then.

        Raises: MissingFile (pieces of it are gone), DigestMismatch; it stays as it is then.
        """
        ...

    def discard(self, name: str) -> None:
        """Deletes a growing file, if there is one."""
        ...

    def growing(self) -> Iterator[tuple[str, float]]:
        """Yields the names of growing files, and when each last grew (seconds since 1970)."""
        ...

    def tidy(self, before: float) -> None:
        """Deletes what processes that died had begun to write before then (seconds since 1970)."""
        ...

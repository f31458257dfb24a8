"""Content-addressed files in a folder: `sha256/ab/cdef…`."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from service.private import make_private_folder
from service.storage.store import CHUNK_BYTES, DigestMismatch, FileTooLarge, MissingFile, StoredFile


def write_hashed(stream: BinaryIO, out: BinaryIO, *, limit_bytes: int) -> StoredFile:
    """Copy `stream` to `out`, hashing and counting. Raises: FileTooLarge."""
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise FileTooLarge(limit_bytes)
        digest.update(chunk)
        out.write(chunk)
    return StoredFile("sha256:" + digest.hexdigest(), size_bytes)


def check_digest(expected: str | None, actual: str) -> None:
    """Raises: DigestMismatch if `expected` is given and differs."""
    if expected is not None and expected != actual:
        raise DigestMismatch(expected, actual)


class FileStorage:
    """A `Storage` in a folder. A file appears under its digest only when all its bytes are on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for one in (folder, folder / "incoming", folder / "sha256"):
            make_private_folder(one)

    def path(self, digest: str) -> Path:
        """Where the file of `digest` is, or would be."""
        name = digest.removeprefix("sha256:")
        if len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise MissingFile(digest)
        return self.folder / "sha256" / name[:2] / name[2:]

    def put(self, stream: BinaryIO, *, limit_bytes: int, digest: str | None = None) -> StoredFile:
        """See `Storage.put`."""
        handle, name = tempfile.mkstemp(dir=self.folder / "incoming")
        try:
            with os.fdopen(handle, "wb") as out:
                stored = write_hashed(stream, out, limit_bytes=limit_bytes)
                check_digest(digest, stored.digest)
                out.flush()
                os.fsync(out.fileno())
            self._adopt(Path(name), self.path(stored.digest))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
        return stored

    def _adopt(self, incoming: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        incoming.chmod(0o400)
        with suppress(FileExistsError):
            os.link(incoming, final)
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the new name may be lost with the power
        finally:
            os.close(folder)

    def size(self, digest: str) -> int | None:
        """See `Storage.size`."""
        try:
            return self.path(digest).stat().st_size
        except (FileNotFoundError, MissingFile):
            return None

    def read(self, digest: str) -> Iterator[bytes]:
        """See `Storage.read`."""
        try:
            stream = self.path(digest).open("rb")
        except FileNotFoundError:
            raise MissingFile(digest) from None
        return _chunks(stream)

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        """See `Storage.local`."""
        path = self.path(digest)
        if not path.exists():
            raise MissingFile(digest)
        yield path

    def check(self) -> None:
        """See `Storage.check`."""
        with tempfile.TemporaryFile(dir=self.folder / "incoming") as probe:
            probe.write(b"ready")


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk

"""Content-addressed files in a folder: `sha256/ab/cdef…`; what is not whole yet lies in `incoming/`."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from service.base.private import make_private_folder
from service.store.storage.store import CHUNK_BYTES, DigestMismatch, FileTooLarge, MissingFile, StoredFile, check_name

GROWING = ".growing"
"""Ends the names of growing files, among those that `put` writes."""


def write_hashed(stream: BinaryIO, out: BinaryIO, *, limit_bytes: int) -> StoredFile:
    """Copies `stream` to `out`, hashing and counting. Raises: FileTooLarge."""
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise FileTooLarge(limit_bytes)
        digest.update(chunk)
        out.write(chunk)
    return StoredFile("sha256:" + digest.hexdigest(), size_bytes)


def digest_of(chunks: Iterable[bytes]) -> str:
    """Returns the digest of the chunks, as `sha256:<hex>`."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return "sha256:" + digest.hexdigest()


def check_digest(expected: str | None, actual: str) -> None:
    """Raises: DigestMismatch if `expected` is given and differs."""
    if expected is not None and expected != actual:
        raise DigestMismatch(expected, actual)


class FileStorage:
    """A `Storage` in a folder. A file appears under its digest only when all its bytes are on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for subfolder in (folder, folder / "incoming", folder / "sha256"):
            make_private_folder(subfolder)
        for first in range(256):  # now: the time that a first file's folder takes would tell that it is the first
            (folder / "sha256" / f"{first:02x}").mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Returns where the file of `digest` is, or would be."""
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
        """Moves the file into its place, in the same steps whether or not one is there, so that their number reveals
        nothing about the other.

        What is there is held open until its name is gone, since giving back the room of a large file takes time.
        """
        incoming.chmod(0o400)
        before = _opened(final)
        try:
            os.replace(incoming, final)
            folder = os.open(final.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # else the new name may be lost with the power
            finally:
                os.close(folder)
        finally:
            threading.Thread(target=os.close, args=(before,), name="room of a replaced file").start()

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

    def delete(self, digest: str) -> None:
        """See `Storage.delete`."""
        self.path(digest).unlink(missing_ok=True)

    def stored(self) -> Iterator[tuple[str, int, float]]:
        """See `Storage.stored`."""
        for folder in sorted((self.folder / "sha256").iterdir()):
            for path in sorted(folder.iterdir()):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield f"sha256:{folder.name}{path.name}", status.st_size, status.st_mtime

    def tidy(self, before: float) -> None:
        """See `Storage.tidy`."""
        for path in (self.folder / "incoming").iterdir():
            with suppress(FileNotFoundError):
                if path.suffix != GROWING and path.stat().st_mtime <= before:
                    path.unlink()

    def free_bytes(self) -> int | None:
        """See `Storage.free_bytes`."""
        room = os.statvfs(self.folder)
        return room.f_bavail * room.f_frsize

    def _growing(self, name: str) -> Path:
        return self.folder / "incoming" / f"{check_name(name)}{GROWING}"

    @contextmanager
    def _room(self, more_bytes: int, reserve_bytes: int) -> Iterator[None]:
        """Excludes all other writers of pieces on this machine during the block, so that nobody fills the room that
        another has just seen free.
        """
        handle = os.open(self.folder / "incoming", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if (self.free_bytes() or 0) - more_bytes < reserve_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
            yield
        finally:
            os.close(handle)

    def append(self, name: str, piece: bytes | bytearray, *, at_bytes: int, reserve_bytes: int = 0) -> None:
        """See `Storage.append`. Nothing is cut off: of two who write the same piece, neither undoes the other."""
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT if at_bytes == 0 else 0)
        try:
            handle = os.open(self._growing(name), flags, 0o600)
        except FileNotFoundError:
            raise MissingFile(name) from None
        with os.fdopen(handle, "wb", buffering=0) as file:
            if os.fstat(handle).st_size < at_bytes:
                raise MissingFile(name)
            with self._room(len(piece), reserve_bytes):
                file.seek(at_bytes)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            os.fsync(handle)

    def adopt(self, name: str, *, size_bytes: int, digest: str) -> StoredFile:
        """See `Storage.adopt`. No byte is copied."""
        path = self._growing(name)
        try:
            stream = path.open("r+b")
        except (FileNotFoundError, PermissionError):  # the latter: it was adopted just now
            raise MissingFile(name) from None
        with stream:
            if os.fstat(stream.fileno()).st_size < size_bytes:
                raise MissingFile(name)
            stream.truncate(size_bytes)
            check_digest(digest, digest_of(_read(stream)))
            os.fsync(stream.fileno())
        self._adopt(path, self.path(digest))
        return StoredFile(digest, size_bytes)

    def discard(self, name: str) -> None:
        """See `Storage.discard`."""
        self._growing(name).unlink(missing_ok=True)

    def growing(self) -> Iterator[tuple[str, float]]:
        """See `Storage.growing`."""
        for path in sorted((self.folder / "incoming").glob(f"*{GROWING}")):
            with suppress(FileNotFoundError):
                yield path.name.removesuffix(GROWING), path.stat().st_mtime

    def check(self) -> None:
        """See `Storage.check`."""
        with tempfile.TemporaryFile(dir=self.folder / "incoming") as probe:
            probe.write(b"ready")


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        yield from _read(stream)


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk

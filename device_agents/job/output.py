"""A job's output, read without trusting it: the only way in which the agent opens a file of a job.

A job may leave anything in its folder: links to files of the board, FIFOs and devices that never answer, folders, files
without end, and processes that go on changing all of it. So each part of the path is looked up without following links
(`O_PATH`, which opens nothing), the file must be a plain one with one name and the job's owner, and it is copied out of
the job's reach, under a limit, from one descriptor: what was checked is what is digested, saved and uploaded.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from device_agents.errors import BadOutput, Stopped

CHUNK_BYTES = 1 << 20
O_PATH = getattr(os, "O_PATH", 0o10000000)
"""Linux's value on all our architectures; PyPy does not name it."""
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True)
class KeptOutput:
    """A copy of a job's file, in a place of the agent's own."""

    path: Path
    digest: str
    size_bytes: int


def keep_output(
    folder: Path,
    name: str,
    to: Path,
    *,
    uid: int,
    max_bytes: int,
    should_stop: Callable[[], Stopped | None] = lambda: None,
) -> KeptOutput:
    """Copies the file `name` (a relative path) of the job's `folder` to the new file `to`.

    `uid` is the user that the job ran as. Raises: `BadOutput` (`output.missing`, `output.unsafe`, `output.size`),
    `Stopped`, `OSError` for the agent's own side.
    """
    with _opened(folder, name, uid, max_bytes) as (source, size_bytes):
        try:
            digest = _copy(source, to, name, size_bytes, should_stop)
        except BaseException:
            to.unlink(missing_ok=True)
            raise
    return KeptOutput(to, digest, size_bytes)


@contextmanager
def _opened(folder: Path, name: str, uid: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """A descriptor to read the checked file from, and its size."""
    descriptor = _find(folder, name)
    try:
        size_bytes = _check(os.fstat(descriptor), name, uid, max_bytes)
        # The same file as was checked, whatever its name leads to by now.
        source = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise BadOutput("output.unsafe", f"{name} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    try:
        yield source, size_bytes
    finally:
        os.close(source)


def _find(folder: Path, name: str) -> int:
    """Looks a path up, part by part, without following a link or opening what is there."""
    at = os.open(folder, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    parts = Path(name).parts
    for number, part in enumerate(parts, 1):
        must_be_folder = os.O_DIRECTORY if number < len(parts) else 0
        try:
            inner = os.open(part, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | must_be_folder, dir_fd=at)
        except OSError as error:
            raise _not_found(name, part, error) from None
        finally:
            os.close(at)
        at = inner
    return at


def _not_found(name: str, part: str, error: OSError) -> BadOutput:
    if error.errno == errno.ENOENT:
        return BadOutput("output.missing", f"the binary ended well but did not write {name}")
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return BadOutput("output.unsafe", f"the way to {name} leads over {part}, which is no folder (a link, perhaps)")
    return BadOutput("output.unsafe", f"{name} cannot be looked up: {error.strerror}")


def _check(status: os.stat_result, name: str, uid: int, max_bytes: int) -> int:
    for is_kind, word in _KINDS:
        if is_kind(status.st_mode):
            raise BadOutput("output.unsafe", f"the binary left {word} as {name}; only a plain file is read")
    if not stat.S_ISREG(status.st_mode):
        raise BadOutput("output.unsafe", f"the binary left {name}, which is no plain file")
    if status.st_uid != uid:
        raise BadOutput("output.unsafe", f"{name} belongs to user {status.st_uid}, the job ran as {uid}")
    if status.st_nlink != 1:
        raise BadOutput("output.unsafe", f"{name} has {status.st_nlink} names (hard links); only one is allowed")
    if status.st_size > max_bytes:
        message = f"{name} has {status.st_size:,} bytes, at most {max_bytes:,} are expected"
        raise BadOutput("output.size", message, cause="limits")
    return status.st_size


def _copy(source: int, to: Path, name: str, size_bytes: int, should_stop: Callable[[], Stopped | None]) -> str:
    """Copies exactly `size_bytes`; returns their digest."""
    digest, left_bytes = hashlib.sha256(), size_bytes
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while left_bytes:
            chunk = os.read(source, min(CHUNK_BYTES, left_bytes))
            if not chunk:
                raise BadOutput("output.unsafe", f"{name} became shorter while it was read")
            digest.update(chunk)
            file.write(chunk)
            left_bytes -= len(chunk)
            stopped = should_stop()
            if stopped:
                raise stopped
    if os.read(source, 1):
        raise BadOutput("output.unsafe", f"{name} grew while it was read")
    return f"sha256:{digest.hexdigest()}"

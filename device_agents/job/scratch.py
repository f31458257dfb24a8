"""Folders that jobs write in: made afresh, and removed whatever a job has left in them.

Nothing here follows a link or recurses: a tree may be thousands of folders deep, locked, or still being written to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from device_agents.job.output import O_PATH

log = logging.getLogger("device_agents")

MAX_S = 120.0
"""The most seconds for emptying a folder: a process that escaped may add to it for ever."""
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder in the system's place for such, removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pockfarm-"))
    try:
        yield folder
    finally:
        empty(folder)
        with contextlib.suppress(OSError):
            folder.rmdir()


def let_read(folder: Path) -> None:
    """A job's own user reads what was put there for it, whatever this process's umask was. Before the job begins."""
    for place, _, names in os.walk(folder):
        os.chmod(place, 0o755)
        for name in names:
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, 0o755 if mode & 0o100 else 0o644)


def empty(folder: Path) -> None:
    """Removes all that is in `folder`. What cannot be removed is logged and left; nothing is raised for it."""
    try:
        top = os.open(folder, os.O_RDONLY | _FOLDER)
    except OSError as error:
        log.error("%s cannot be emptied: %s", folder, error)
        return
    try:
        remaining = _empty(top, secrets.token_hex(8), time.monotonic() + MAX_S)
    finally:
        os.close(top)
    if remaining:
        log.error(
            "%s: %d entries cannot be removed, such as %r; remove them by hand", folder, len(remaining), remaining[0]
        )


def _empty(top: int, prefix: str, deadline_s: float) -> list[str]:
    """Rounds over `top`: each removes files and lifts what is in its folders up into it. Returns what stays."""
    serial = 0
    while time.monotonic() < deadline_s:
        names = os.listdir(top)
        has_changed = False
        for name in names:
            lifted = _remove(top, name, prefix, serial)
            if lifted is not None:
                serial, has_changed = serial + lifted, True
        if not has_changed:
            return names
    return os.listdir(top)


def _remove(top: int, name: str, prefix: str, serial: int) -> int | None:
    """Removes one entry of `top`; returns how many folders were lifted out of it, None if it could not be removed."""
    if _unlink(top, name):
        return 0
    lifted = 0
    try:
        folder = _unlocked(top, name)
        try:
            for inner in os.listdir(folder):
                if not _unlink(folder, inner):
                    os.close(_unlocked(folder, inner))  # its entry `..` changes, so it must be writable
                    os.rename(inner, f"{prefix}.{serial + lifted}", src_dir_fd=folder, dst_dir_fd=top)
                    lifted += 1
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return lifted or None
    return lifted


def _unlink(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _unlocked(parent: int, name: str) -> int:
    """A descriptor to read a folder, after allowing ourselves everything in it. Never that of a link's target."""
    descriptor = os.open(name, O_PATH | _FOLDER, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)

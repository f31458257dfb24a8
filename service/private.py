"""Files and folders of the state that nobody but their owner may read, also those that an older release made."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

LOG = logging.getLogger(__name__)
OTHERS = 0o077


def make_private_folder(folder: Path) -> None:
    """Make the folder, or take away what others may do in it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _tighten(folder)


def make_private_file(path: Path) -> None:
    """Make the (empty) file, or take away what others may do with it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _tighten(path)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file in one step, flushed to disk, never readable by others."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _tighten(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)
    except FileNotFoundError:
        pass
    except OSError as error:
        LOG.warning("%s can be read by others, and its mode cannot be changed: %s", path, error)


def tighten_database(path: Path) -> None:
    """Make a SQLite database and what lies beside it private; SQLite gives new side files the database's own mode."""
    make_private_file(path)
    for suffix in ("-wal", "-shm", "-journal"):
        _tighten(path.with_name(path.name + suffix))

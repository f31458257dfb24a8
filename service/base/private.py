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
    """Makes the folder, or takes all rights in it from other users."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _tighten(folder)


def make_private_file(path: Path) -> None:
    """Makes the (empty) file, or takes all rights to it from other users."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _tighten(path)


def create_file(path: Path, data: bytes) -> None:
    """Creates a file that was not there, flushed to disk, never readable by others. Nothing of it stays if that fails.

    Not by a link from a draft: sticks that keys are kept on may know no links. Raises: FileExistsError, OSError.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


def replace_file(path: Path, data: bytes) -> None:
    """Replaces the file in one step, flushed to disk, never readable by others; what was there stays if that fails."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    create_file(draft, data)
    try:
        os.replace(draft, path)
    except OSError:
        draft.unlink()
        raise


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
    """Makes a SQLite database and the files beside it private. SQLite gives new side files the mode of the database."""
    make_private_file(path)
    for suffix in ("-wal", "-shm", "-journal"):
        _tighten(path.with_name(path.name + suffix))

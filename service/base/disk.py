"""Room on the disks that the farm writes to, and how to tell that an error is the lack of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

from device_agents.wire.disk import is_full
from service.base.settings import Settings

FULL_SQLSTATE = "53100"
"""PostgreSQL: disk_full."""
SQLITE_FULL = 13
SQLITE_FILE_ERRORS = (10, 14)
"""Primary codes IOERR and CANTOPEN: a file cannot be read, written or opened, for whatever reason."""
PROBE_BYTES = 1 << 16
FEWEST_INODES = 64


class DiskFull(Exception):
    """A disk has less room than the farm needs; the message names the folder."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an operating system's or a database driver's error says that a disk, or a quota of it, is used up."""
    if isinstance(error, OSError):
        return is_full(error)
    codes = (getattr(error, "sqlstate", None), getattr(error, "sqlite_errorcode", None))
    return FULL_SQLSTATE in codes or SQLITE_FULL in codes


def is_file_error(error: BaseException | None) -> bool:
    """Whether SQLite says that a file failed it, and not why: want of room is one reason (EFBIG)."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in SQLITE_FILE_ERRORS


def find_temporary_folder() -> None:
    """Has Python choose its temporary folder now. It chooses by writing a file, which fails once every disk is full."""
    tempfile.gettempdir()


def written_folders(settings: Settings) -> tuple[Path, ...]:
    """Folders on this machine that requests write to: state, database, stored files, uploads on their way."""
    folders = [settings.state, Path(tempfile.gettempdir())]
    database = make_url(settings.database)
    if database.get_backend_name() == "sqlite" and database.database:
        folders.append(Path(database.database).parent)
    storage = urlsplit(settings.storage)
    if storage.scheme == "file":
        folders.append(Path(storage.path))
    return tuple(dict.fromkeys(folder.resolve() for folder in folders))


def storage_free_bytes(settings: Settings) -> int | None:
    """Returns the free room for stored files; None if they are on no disk of this machine."""
    storage = urlsplit(settings.storage)
    if storage.scheme != "file" or not os.path.isdir(storage.path):
        return None
    room = os.statvfs(storage.path)
    return room.f_bavail * room.f_frsize


def check_room(settings: Settings) -> None:
    """Raises: DiskFull if a folder's disk has less than `disk_reserve_bytes` left, or takes no write."""
    for folder in written_folders(settings):
        room = os.statvfs(folder)
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes < settings.disk_reserve_bytes:
            raise DiskFull(
                f"{folder}: {free_bytes:,} bytes are free, the farm needs {settings.disk_reserve_bytes:,}; "
                "make room, or lower POCKFARM_DISK_RESERVE_BYTES"
            )
        if room.f_files and room.f_favail < FEWEST_INODES:
            raise DiskFull(f"{folder}: {room.f_favail} files can still be made there; remove some")
        _write(folder)


def lacks_room(settings: Settings) -> bool:
    """Whether `check_room` finds a folder without."""
    try:
        check_room(settings)
    except DiskFull:
        return True
    return False


def _write(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise DiskFull(f"{folder}: {PROBE_BYTES:,} bytes could not be written: {error.strerror}") from None

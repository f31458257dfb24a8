"""A job's use of the disk, looked at while it runs: a limit on all of its files together, and on their number.

The kernel limits one file (RLIMIT_FSIZE, to the disk's room if that is less); a quota on a folder needs file systems
that boards do not have, and a RAM disk would take the memory that training needs. So the folder is measured four
times a second: files by name, and files that have no name any more as long as the process holds them. What even that
does not see shows in the disk's free room.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from device_agents.errors import AttemptError, Stopped
from device_agents.wire import Outcome

log = logging.getLogger(__name__)

EVERY_S = 0.25
FULL_BYTES = 1 << 20
"""A disk with less room than this is full: whatever a step wanted to write may be missing."""
MAX_FILES = 1000
RESERVE_BYTES = 32 << 20
"""Bytes of the disk that are kept for the agent's own report."""
UNSEEN_BYTES = 512 << 20
"""Bytes that the disk may lose beyond what is seen in the job's folder before somebody must stop."""


class DiskWatch:
    """The limit on a job's folder. `check` is called often and looks seldom; the kernel limits each file meanwhile."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._next_s = 0.0
        self._free_bytes = _free_bytes(folder)
        self.pid: int | None = None

    def check(self) -> Stopped | None:
        """Returns the reason to end the job: `limits.disk`, `limits.files` for what it has written, `device.disk` for a
        full disk.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + EVERY_S
        return self.look()

    def room_bytes(self) -> int:
        """Returns how many bytes one file may take now: the rest of the disk is the agent's. Half of a disk with hardly
        any room.
        """
        free_bytes = _free_bytes(self._folder)
        return max(free_bytes - RESERVE_BYTES, free_bytes // 2)

    def put_down(self, error: AttemptError, file_bytes: int) -> AttemptError:
        """A file that was cut off at `file_bytes`, by the disk's room and not by the job's limit, is the board's."""
        is_cut_short = file_bytes < self._limit_bytes and _used(self._folder, None)[0] >= file_bytes
        if error.cause != "limits" or not is_cut_short:
            return error
        message = f"the device's disk had room for a file of {file_bytes:,} bytes, the limit is {self._limit_bytes:,}"
        return Stopped("device.disk", message, cause="device", hint="make room on the device's disk")

    def look(self) -> Stopped | None:
        """Checks at once, as `check` does."""
        used_bytes, files = _used(self._folder, self.pid)
        if files > MAX_FILES:
            return Stopped("limits.files", f"the job made more than {MAX_FILES:,} files", cause="limits")
        if used_bytes > self._limit_bytes:
            message = f"the job wrote {used_bytes:,} bytes, its limit is {self._limit_bytes:,}"
            return Stopped("limits.disk", message, cause="limits")
        free_bytes = _free_bytes(self._folder)
        lost_bytes = self._free_bytes - free_bytes - used_bytes
        if lost_bytes > self._limit_bytes + UNSEEN_BYTES:
            message = f"the disk lost {lost_bytes:,} bytes while the job ran, which has {used_bytes:,} in its folder"
            return Stopped("device.disk", message, cause="device", hint="look what else writes to the device's disk")
        if free_bytes < RESERVE_BYTES < self._free_bytes:
            message = f"the device's disk is full ({free_bytes:,} bytes left); the job wrote {used_bytes:,}"
            return Stopped("device.disk", message, cause="device", hint="make room on the device's disk")
        return None


def _free_bytes(folder: Path) -> int:
    statistics = os.statvfs(folder)
    return statistics.f_bavail * statistics.f_frsize


def _used(folder: Path, pid: int | None) -> tuple[int, int]:
    """Bytes on disk and number of files, at most a few more than `MAX_FILES` looked at."""
    used_bytes = files = 0
    todo = [os.fspath(folder)]
    while todo and files <= MAX_FILES:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    used_bytes += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        todo.append(entry.path)
                if files > MAX_FILES:
                    break
    return used_bytes + sum(_nameless(process_id) for process_id in _family(pid)), files


@dataclass(frozen=True)
class Room:
    """Room on a disk, and the bytes that a job has written to it."""

    free_bytes: int
    total_bytes: int
    written_bytes: int


def room_left(disk: Path, folder: Path) -> Room:
    """Returns the room on the disk that `disk` lies on, with the job's folder. To be asked where a job fails: whoever
    took the room may give it back at any moment.
    """
    usage = shutil.disk_usage(disk)
    return Room(usage.free, usage.total, _used(folder, None)[0])


def with_cause(outcome: Outcome, room: Room) -> Outcome:
    """Attributes the failure of a step to its cause: that a disk is full of other things is not the job's fault, nor is
    it its user's where a file cannot be begun: the agent has chosen the folder.
    """
    is_full = room.free_bytes < FULL_BYTES and room.written_bytes < room.total_bytes // 2
    is_of_room = outcome.cause in ("compiler", "limits") or outcome.code == "user.output"
    if not is_of_room or not is_full:
        return outcome
    log.warning("the disk is full, and not by the job: %s: %s", outcome.code, outcome.message)
    message = f"the device's disk is full, and so: {outcome.message}"[:4000]
    return Outcome("failed", "device", "device.disk", message, "make room on the device's disk")


def _family(pid: int | None) -> list[int]:
    """The launcher, and the binary where that is its child."""
    if pid is None:
        return []
    try:
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except (OSError, ValueError):
        return [pid]


def _nameless(pid: int) -> int:
    """Bytes of open files that have no name any more."""
    used_bytes = 0
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    used_bytes += status.st_blocks * 512
    return used_bytes

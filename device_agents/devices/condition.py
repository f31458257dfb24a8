"""The present condition of this device: the room where its agent keeps its work, and how hot it is."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from device_agents.devices.board import Board
from device_agents.devices.kind import DeviceKind
from device_agents.wire.condition import COLDEST_C, HOTTEST_C, Condition

MOST_ENTRIES = 2000
"""Number of the agent's own files above which their size is not reported."""
KEPT_FOR_S = 60.0
BLOCK_BYTES = 512


@dataclass
class ConditionReader:
    """Looks at the board and at the agent's folder; never raises. `without`: a folder in it that is a job's."""

    kind: DeviceKind
    board: Board
    folder: Path
    without: str = ""
    _kept_bytes: int | None = None
    _kept_until_s: float = field(default=float("-inf"))

    def __call__(self) -> Condition:
        total_bytes, free_bytes = _room(self.folder)
        return Condition(total_bytes, free_bytes, self._measured_kept_bytes(), self._temperature_c())

    def _measured_kept_bytes(self) -> int | None:
        """Looked at once a minute."""
        if time.monotonic() >= self._kept_until_s:
            self._kept_bytes = _size_bytes(self.folder, self.without)
            self._kept_until_s = time.monotonic() + KEPT_FOR_S
        return self._kept_bytes

    def _temperature_c(self) -> float | None:
        """A broken sensor, which says what no board is, says nothing."""
        heat_c = self.kind.temperature_c(self.board)
        return round(heat_c, 1) if heat_c is not None and COLDEST_C <= heat_c <= HOTTEST_C else None


def _room(folder: Path) -> tuple[int | None, int | None]:
    try:
        statistics = os.statvfs(folder)
    except OSError:
        return None, None
    total_bytes = statistics.f_blocks * statistics.f_frsize
    return (total_bytes, min(statistics.f_bavail * statistics.f_frsize, total_bytes)) if total_bytes else (None, None)


def _size_bytes(folder: Path, without: str) -> int | None:
    """Returns the size on the disk of all files in a folder; None if there are too many to look at."""
    used_bytes = entries = 0
    todo = [os.fspath(folder)]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as scan:
            for entry in scan:
                entries += 1
                if entries > MOST_ENTRIES:
                    return None
                with contextlib.suppress(OSError):
                    used_bytes += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False) and entry.name != without:
                        todo.append(entry.path)
    return used_bytes

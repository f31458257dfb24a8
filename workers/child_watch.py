"""Whether a compile child lives, by what it says and by the processor time that it and its children use.

A compile may be silent for minutes in one kernel, so silence alone says nothing; but then some process of it runs, or
waits for a processor or a disk. One that does none of this and has used no processor time is stopped or stuck.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

HUNG_S = 15.0
LOOK_S = 2.0
LONGEST_LOOK_S = 5.0
"""Seconds that one look counts for, at most: if more time has passed since the last one, nobody was looking."""
BUSY = ("R", "D")


class ChildWatch:
    """Adds up the time in which nothing moved."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}
        self._silent_s = 0.0
        self._looked_at = time.monotonic()

    def heard(self) -> None:
        """Notes that the child has sent something."""
        self._silent_s = 0.0

    def is_hung(self) -> bool:
        """Whether it has been silent and idle for `HUNG_S`; cheap to ask often."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        passed_s, self._looked_at = min(now - self._looked_at, LONGEST_LOOK_S), now
        self._silent_s = 0.0 if self._moves() else self._silent_s + passed_s
        return self._silent_s >= HUNG_S

    def _moves(self) -> bool:
        """Whether some process of it is busy, or has used processor time since the last look."""
        before, self._ticks = self._ticks, {}
        is_busy = False
        for pid in _family(self._pid):
            with contextlib.suppress(OSError, IndexError, ValueError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                is_busy |= words[0] in BUSY
                self._ticks[pid] = int(words[11]) + int(words[12])
        return is_busy or self._ticks != before


def _family(pid: int) -> list[int]:
    """Returns the process and all below it."""
    process_ids, waiting = [], [pid]
    while waiting:
        process_id = waiting.pop()
        process_ids.append(process_id)
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process_id}/task").iterdir():
                with contextlib.suppress(OSError):
                    waiting += [int(word) for word in (thread / "children").read_text().split()]
    return process_ids

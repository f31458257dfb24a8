"""The time for which a process gave no sign of life although it could have: one rule for all who keep a process up.

Nothing is restarted because the machine is slow: time in which the process waited for a processor or for a disk does
not count, nor does time in which the watcher itself did not look (a suspended laptop, a frozen container). One that
was stopped (SIGSTOP, a debugger) and goes on has its chance first: its silence begins anew, once until it gives a sign.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

FEWEST_LOOKS = 5
"""The fewest looks in a row before a verdict."""
LONGEST_LOOK_S = 5.0
"""Seconds that one look counts for, at most: if more time has passed since the last one, nobody was looking."""
WAITS_FOR_DISK = "D"
STOPPED = ("T", "t")
"""The states of a process that is stopped: by a signal; by a debugger."""


@dataclass
class Beat:
    """A file that a process touches while it lives: true if it has done so since the last look. No clocks compared."""

    path: Path
    seen_ns: int = 0

    def __call__(self) -> bool:
        try:
            now_ns = self.path.stat().st_mtime_ns
        except OSError:
            return False
        is_new, self.seen_ns = now_ns != self.seen_ns, now_ns
        return is_new


@dataclass
class Watch:
    """Adds up the silence of one process."""

    silent_s: float = 0.0
    looks: int = 0
    """The number of looks in a row without a sign."""
    _looked_at: float | None = None
    _queued_ns: dict[str, int] = field(default_factory=dict)
    _was_stopped: bool = False
    _may_begin_anew: bool = True

    def is_hung(self, pid: int, limit_s: float, gives_sign: Callable[[], bool]) -> bool:
        """Whether the process is hung. Looks once more before a verdict: a request for a sign takes time, in which the
        process may have gone on.
        """
        for _ in range(2):
            has_sign = gives_sign()
            self.look(pid, time.monotonic(), has_sign=has_sign)
            if not self.is_silent(limit_s):
                return False
        return True

    def is_silent(self, limit_s: float) -> bool:
        """Whether that is the verdict, by the looks up to now."""
        return self.silent_s >= limit_s and self.looks >= FEWEST_LOOKS

    def look(self, pid: int, now: float, *, has_sign: bool) -> float:
        """Records whether the process has given a sign since the last look, and returns its silence up to now, in
        seconds.
        """
        before, self._looked_at = self._looked_at, now
        queued_s, states = self._held_up(pid)
        goes_on = self._goes_on(states)
        if has_sign or before is None:
            self.silent_s, self.looks, self._may_begin_anew = 0.0, 0, True
            return 0.0
        if goes_on and self._may_begin_anew:
            self.silent_s, self.looks, self._may_begin_anew = 0.0, 0, False
            return 0.0
        self.looks += 1
        if WAITS_FOR_DISK not in states:
            self.silent_s += max(0.0, min(now - before, LONGEST_LOOK_S) - queued_s)
        return self.silent_s

    def _goes_on(self, states: set[str]) -> bool:
        """Whether it was stopped at the last look and is so no more."""
        was_stopped, self._was_stopped = self._was_stopped, bool(states) and states.issubset(STOPPED)
        return was_stopped and not self._was_stopped

    def _held_up(self, pid: int) -> tuple[float, set[str]]:
        """Longest wait of its threads for a processor since the last look; the states that they are in."""
        now_ns: dict[str, int] = {}
        states, longest_ns = set(), 0
        for thread in _threads(pid):
            try:
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
                now_ns[thread.name] = int((thread / "schedstat").read_text().split()[1])
            except (OSError, IndexError, ValueError):  # it has just ended, or this kernel does not say
                continue
            longest_ns = max(longest_ns, now_ns[thread.name] - self._queued_ns.get(thread.name, now_ns[thread.name]))
        self._queued_ns = now_ns
        return longest_ns / 1e9, states


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []

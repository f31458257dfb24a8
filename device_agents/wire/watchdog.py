"""How long a process gave no sign of life although it could have.

Nothing is restarted because the machine is slow: time in which the process waited for a processor or for a disk does
not count, nor does time in which the watcher itself did not look (a suspended laptop, a frozen container).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

FEWEST_LOOKS = 5
"""In a row, before a verdict."""
LONGEST_LOOK_S = 5.0
"""What one look counts for at most: if more time has passed since the last one, nobody was looking."""
WAITS_FOR_DISK = "D"


@dataclass
class Watch:
    """Adds up the silence of one process."""

    silent_s: float = 0.0
    looks: int = 0
    """Without a sign, in a row."""
    _looked_at: float | None = None
    _queued_ns: dict[str, int] = field(default_factory=dict)

    def look(self, pid: int, now: float, *, has_sign: bool) -> float:
        """Note whether the process has given a sign since the last look; its silence up to now, in seconds."""
        before, self._looked_at = self._looked_at, now
        queued_s, is_on_disk = self._held_up(pid)
        if has_sign or before is None:
            self.silent_s, self.looks = 0.0, 0
            return 0.0
        self.looks += 1
        if not is_on_disk:
            self.silent_s += max(0.0, min(now - before, LONGEST_LOOK_S) - queued_s)
        return self.silent_s

    def _held_up(self, pid: int) -> tuple[float, bool]:
        """Longest wait of its threads for a processor since the last look; whether one waits for a disk."""
        now_ns, is_on_disk, longest_ns = {}, False, 0
        for thread in _threads(pid):
            try:
                words = (thread / "schedstat").read_text().split()
                is_on_disk |= (thread / "stat").read_text().rpartition(")")[2].split()[0] == WAITS_FOR_DISK
                now_ns[thread.name] = int(words[1])
            except (OSError, IndexError, ValueError):  # it has just ended, or this kernel does not say
                continue
            longest_ns = max(longest_ns, now_ns[thread.name] - self._queued_ns.get(thread.name, now_ns[thread.name]))
        self._queued_ns = now_ns
        return longest_ns / 1e9, is_on_disk


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []

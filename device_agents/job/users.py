"""A user of its own for each job of an agent that is root: the kernel counts processes by user, and tells files apart.

Numbers come from a range that no account has. A number in use is locked, so agents that share a file system never share
one. An agent in a container has locks of its own: its jobs are seen by their parents, and left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from device_agents.errors import AttemptError


@dataclass(frozen=True)
class JobUsers:
    """User numbers `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else str(self.first)


DEFAULT = JobUsers(1_900_000_000, 1_900_000_063)
"""Numbers that systemd's list of users and groups leaves free."""


def parse(text: str) -> JobUsers:
    """`FIRST-LAST`. Raises: `ValueError` for what is no range, or holds accounts of the system."""
    first, _, last = text.partition("-")
    users = JobUsers(int(first), int(last or first))
    if not 1000 <= users.first <= users.last < (1 << 32) - 1:
        raise ValueError(f"{text}: FIRST-LAST is expected, at least 1000, FIRST not above LAST")
    return users


def is_mapped(users: JobUsers, text: str) -> bool:
    """Whether the machine (a container, perhaps) has these numbers; `text` is /proc/self/uid_map."""
    for line in text.splitlines():
        words = [int(word) for word in line.split()]
        if len(words) == 3 and words[0] <= users.first and users.last < words[0] + words[2]:
            return True
    return False


@contextmanager
def borrowed(users: JobUsers) -> Iterator[int]:
    """A number that nobody else has now. What still runs under it in the end, or an agent that died left, is killed.

    Raises: `AttemptError` (`device.users`) when all are taken.
    """
    folder = _folder()
    for uid in range(users.first, users.last + 1):
        lock = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(lock) or any(_has_another_agent(pid, uid) for pid in processes(uid)):
                continue
            kill_all(uid)
            try:
                yield uid
            finally:
                kill_all(uid)
            return
        finally:
            os.close(lock)
    hint = "give the agents of this machine a longer range with --job-users"
    raise AttemptError("device.users", f"all user numbers for jobs ({users}) are in use", cause="device", hint=hint)


def try_lock(descriptor: int) -> bool:
    """Holds the lock of an open file until it is closed. Returns False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def kill_all(uid: int) -> None:
    """Kills every process of a user that no other living agent has started."""
    for _ in range(100):
        remaining = [pid for pid in processes(uid) if not _has_another_agent(pid, uid)]
        if not remaining:
            break
        for pid in remaining:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _has_another_agent(pid: int, uid: int) -> bool:
    """Whether a process of another tree started it. Orphans fall to process 1, or to a manager of sessions above us."""
    this = os.getpid()
    try:
        others = [ancestor for ancestor in _ancestors(pid) if os.stat(f"/proc/{ancestor}").st_uid != uid]
    except OSError:
        return False
    return this not in others and bool(others) and others[0] not in {1, *_ancestors(this)}


def _ancestors(pid: int) -> Iterator[int]:
    """A process's parent, the parent's, and so on, as far as they are in view."""
    while (pid := int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])) > 0:
        yield pid


def processes(uid: int) -> list[int]:
    """Returns the processes of a user; those that are dead already and only wait to be taken note of are left out."""
    process_ids = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    process_ids.append(int(name))
    return process_ids


def _folder() -> Path:
    folder = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
    folder = folder / "pockfarm-job-users"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to somebody else")
    return folder

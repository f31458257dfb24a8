"""The files of a compile on disk, and how others see that its process is dead.

`<state>/compiles/<host>.<worker>.<process>.<random>/` holds the copies of model and bundle while a compile runs. Its
owner holds a lock (flock) on the folder, which the kernel lets go when the process dies, however it dies: a folder that
can be locked is a dead one's. The job's row names the folder, so that whoever finds it gives the job back at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from device_agents.wire.watchdog import Beat, Watch

HALF_MADE_S = 3600.0
BEAT_S = 2.0
STUCK_S = 15.0
"""A process that has not touched its folder for so long is stopped, not busy: a thread of its own touches it."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A folder that this process holds."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the folder in the job's row."""
        return self.path.name


def root_of(state: Path) -> Path:
    """Returns the folder that contains the folders of all compiles."""
    return state / "compiles"


@contextlib.contextmanager
def own_folder(root: Path) -> Iterator[Owned]:
    """Yields a private folder for one compile, touched now and then, and removed at the end."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"{_prefix(os.getppid())}{os.getpid()}.{secrets.token_hex(8)}"
    half = root / f".{name}"
    half.mkdir(mode=0o700)
    handle = os.open(half, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    released = threading.Event()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        path = half.rename(root / name)  # only now others see it, and it is locked
        threading.Thread(target=_touch, args=(path, released), name="beat", daemon=True).start()
        yield Owned(path)
    finally:
        released.set()
        for folder in (half, root / name):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _prefix(worker: int) -> str:
    return f"{socket.gethostname()}.{worker}."


def _touch(path: Path, released: threading.Event) -> None:
    while not released.wait(BEAT_S):
        with contextlib.suppress(OSError):
            os.utime(path)


@contextlib.contextmanager
def dead_ones(root: Path) -> Iterator[list[str]]:
    """Yields the names of folders whose owners are dead, held against other finders; removed at the end, if the block
    succeeds.
    """
    handles: dict[Path, int] = {}
    try:
        for path in _folders(root):
            handle = _lock(path)
            if handle is not None:
                handles[path] = handle
        yield [path.name for path in handles]
        for path in handles:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        for handle in handles.values():
            os.close(handle)


def _folders(root: Path) -> list[Path]:
    """Returns the folders that count. Those that are still being made do not, unless that began long ago."""
    if not root.is_dir():
        return []
    return [path for path in root.iterdir() if not path.name.startswith(".") or _age_s(path) > HALF_MADE_S]


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds the folder; None if its owner lives, or it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def any_dead(root: Path) -> bool:
    """Whether there is something for `dead_ones`."""
    return any(map(_is_let_go, _folders(root)))


def _is_let_go(path: Path) -> bool:
    """Whether its owner is dead; what has the owner's number may be another process by now."""
    handle = _lock(path)
    if handle is None:
        return False
    os.close(handle)
    return True


@dataclass
class Beats:
    """Watches which processes of a worker no longer touch their folders, by the same rules as for whole parts
    (`Watch`): a clock that jumps, or a machine that slept or is slow, stops nobody.
    """

    root: Path
    worker: Callable[[], int]
    watches: dict[Path, tuple[Beat, Watch]] = field(default_factory=dict)

    def silent(self) -> list[int]:
        """Process ids, after `STUCK_S` of looks at which nothing moved although it could have."""
        prefix = _prefix(self.worker())
        paths = [path for path in _folders(self.root) if path.name.startswith(prefix)]
        self.watches = {path: self.watches.get(path) or (Beat(path), Watch()) for path in paths}
        pids = {path: int(path.name.removeprefix(prefix).split(".")[0]) for path in paths}
        return [
            pids[path]
            for path, (beat, watch) in self.watches.items()
            if watch.is_hung(pids[path], STUCK_S, partial(_moves, beat)) and not _is_let_go(path)
        ]


def _moves(beat: Beat) -> bool:
    """Returns whether the folder's owner moves. A folder that is gone was given up by an owner that lives."""
    return beat() or not beat.path.exists()

"""A cgroup v2 per job: a hard limit on memory and processes, the peak, and one switch that kills all of it.

Needs a writable cgroup of the agent's own with the `memory` and `pids` controllers (systemd: `Delegate=yes`). Version 1
hierarchies are not used: without `memory.peak` and `cgroup.kill` they give less than they complicate.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

MAX_PROCESSES = 512
_CONTROLLERS = ("memory", "pids")


@dataclass(frozen=True)
class JobCgroup:
    """The cgroup of one job. Made by `create`, ended by `remove`."""

    path: Path

    def peak_bytes(self) -> int | None:
        """`memory.peak` (counts page cache); None before Linux 5.19."""
        text = _read(self.path / "memory.peak")
        return int(text) if text and text.isdigit() else None

    def was_out_of_memory(self) -> bool:
        """Whether the kernel killed something here for passing the limit."""
        events = dict(line.split(" ", 1) for line in (_read(self.path / "memory.events") or "").splitlines())
        return int(events.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        """Kill what is left and remove the group; a group that will not go is left to the system."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.02)


def prepare(root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> Path | None:
    """Make room for jobs under the agent's own cgroup; None when that cannot be done.

    A group with members may not give controllers to children, so the agent moves itself one level down first.
    """
    own = own if own is not None else _own_group()
    if own in (None, "", "/"):
        return None
    group = root / str(own).lstrip("/")
    available = (_read(group / "cgroup.controllers") or "").split()
    if not all(name in available for name in _CONTROLLERS) or not os.access(group, os.W_OK):
        return None
    try:
        leaf = group / "pockfarm-agent"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError:
        return None
    return group


def create(parent: Path, name: str, memory_bytes: int) -> JobCgroup | None:
    """A limited group for one job; None when the system refuses."""
    job = JobCgroup(parent / f"pockfarm-job-{name}")
    try:
        job.path.mkdir(exist_ok=True)
        (job.path / "memory.max").write_text(str(memory_bytes))
        (job.path / "pids.max").write_text(str(MAX_PROCESSES))
    except OSError:
        job.remove()
        return None
    with contextlib.suppress(OSError):
        (job.path / "memory.swap.max").write_text("0")
    return job


def _own_group() -> str | None:
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

"""A cgroup per job: a hard limit on memory and processes, the peak, and a way to kill all of it.

Version 2 needs a writable cgroup of the agent's own with the `memory` and `pids` controllers (systemd: `Delegate=yes`).
Version 1, which older boards have, the same two controllers, each with a tree of its own, writable (by root).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_PROCESSES = 512
LEAF = "pockfarm-agent"
"""The group that the agent itself moves to, below its own group."""
_CONTROLLERS = ("memory", "pids")
_V1_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Parent:
    """The place where groups of jobs are made: one folder (version 2), or one for each controller (version 1)."""

    version: int
    folders: Mapping[str, Path]

    def make(self, name: str, memory_bytes: int) -> JobCgroup | None:
        """A limited group for one job; None when the system refuses."""
        job = JobCgroup(self.version, {key: folder / f"pockfarm-job-{name}" for key, folder in self.folders.items()})
        try:
            for path in set(job.paths.values()):
                path.mkdir(exist_ok=True)
            job.limit(memory_bytes)
        except OSError:
            job.remove()
            return None
        return job


@dataclass(frozen=True)
class JobCgroup:
    """The cgroup of one job. Made by `Parent.make`, ended by `remove`."""

    version: int
    paths: Mapping[str, Path]
    """The folders by controller; the same one for each in version 2."""

    @property
    def memory(self) -> Path:
        return self.paths["memory"]

    @property
    def joined_by(self) -> list[str]:
        """Files that a process writes `0` to, to be in."""
        return [str(path / "cgroup.procs") for path in sorted(set(self.paths.values()))]

    def limit(self, memory_bytes: int) -> None:
        """Raises: `OSError`."""
        (self.paths["pids"] / "pids.max").write_text(str(MAX_PROCESSES))
        if self.version == 1:
            (self.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            if (self.memory / "memory.memsw.limit_in_bytes").exists():
                (self.memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
            return
        (self.memory / "memory.max").write_text(str(memory_bytes))
        with contextlib.suppress(OSError):
            (self.memory / "memory.swap.max").write_text("0")

    def is_limited(self) -> bool:
        """Whether the kernel holds a limit on memory now."""
        text = _read(self.memory / ("memory.limit_in_bytes" if self.version == 1 else "memory.max"))
        return bool(text and text.isdigit() and int(text) < _V1_UNLIMITED)

    def peak_bytes(self) -> int | None:
        """The most there was (counts page cache); None with version 2 before Linux 5.19."""
        text = _read(self.memory / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"))
        return int(text) if text and text.isdigit() else None

    def was_out_of_memory(self) -> bool:
        """Whether the kernel killed something here for passing the limit."""
        text = _read(self.memory / ("memory.oom_control" if self.version == 1 else "memory.events")) or ""
        events = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        return int(events.get("oom_kill", "0")) > 0

    def kill(self) -> None:
        """Kills every process in it."""
        if self.version == 2:
            with contextlib.suppress(OSError):
                (self.memory / "cgroup.kill").write_text("1")
                return
        for path in set(self.paths.values()):
            for pid in (_read(path / "cgroup.procs") or "").split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Kills what is left and removes the group; a group that will not go is left to the system."""
        remaining = set(self.paths.values())
        for _ in range(50):
            self.kill()
            for path in list(remaining):
                with contextlib.suppress(OSError):
                    path.rmdir()
                    remaining.discard(path)
                if not path.exists():
                    remaining.discard(path)
            if not remaining:
                return
            time.sleep(0.02)


def prepare(root: Path = Path("/sys/fs/cgroup"), own_groups: str | None = None) -> Parent | None:
    """Makes room for jobs under the agent's own cgroup. Returns None when that cannot be done.

    `own_groups` is what /proc/self/cgroup says. With version 2 a group with members may not give controllers to
    children, so the agent moves itself one level down first.
    """
    own_groups = own_groups if own_groups is not None else _read(Path("/proc/self/cgroup")) or ""
    groups = {
        parts[1]: parts[2] for parts in (line.split(":", 2) for line in own_groups.splitlines()) if len(parts) == 3
    }
    return _version_2(root, groups) or _version_1(root, groups)


def _version_2(root: Path, groups: Mapping[str, str]) -> Parent | None:
    own_path = groups.get("", "")
    if own_path in ("", "/"):
        return None
    group = root / own_path.lstrip("/")
    if group.name == LEAF:  # an agent was here before, and has become this one
        group = group.parent
    available = (_read(group / "cgroup.controllers") or "").split()
    if not all(name in available for name in _CONTROLLERS) or not os.access(group, os.W_OK):
        return None
    try:
        leaf = group / LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError:
        return None
    return Parent(2, dict.fromkeys(_CONTROLLERS, group))


def _version_1(root: Path, groups: Mapping[str, str]) -> Parent | None:
    folders = {}
    for names, own_path in groups.items():
        for name in set(names.split(",")) & set(_CONTROLLERS):
            # A container sees its own group as the top of the tree, whatever /proc says.
            places = [root / place / own_path.lstrip("/") for place in (names, name)] + [root / names, root / name]
            place_found = next((place for place in places if (place / "cgroup.procs").exists()), None)
            if place_found is not None and os.access(place_found, os.W_OK):
                folders[name] = place_found
    return Parent(1, folders) if set(folders) == set(_CONTROLLERS) else None


def memory_switched_off(command_line: str, table: str) -> str:
    """Why the kernel has no memory controller, if its boot options say so (as on a Raspberry Pi); else nothing.

    From /proc/cmdline and /proc/cgroups.
    """
    listed = re.search(r"^memory\s+\d+\s+\d+\s+(\d)", table, re.MULTILINE)
    if listed is not None and listed.group(1) != "0":
        return ""
    words = command_line.split()
    fix = "add `cgroup_enable=memory` to the one line of /boot/firmware/cmdline.txt and start the board again"
    if "cgroup_disable=memory" in words and "cgroup_enable=memory" not in words:
        return f"the boot option cgroup_disable=memory switches the kernel's memory controller off; {fix}"
    return f"the kernel has its memory controller off; {fix}" if listed is not None else ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

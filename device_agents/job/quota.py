"""The processor time that a cgroup allows, and how long it has held processes back for more.

Version 2 has `cpu.max` and `cpu.stat` in each group, version 1 `cpu.cfs_quota_us`, `cpu.cfs_period_us` and `cpu.stat`
in the tree of its controller `cpu`. The tightest of a group and those around it counts.

Source: the Linux kernel's Documentation/admin-guide/cgroup-v2.rst ("CPU Interface Files") and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Quota:
    """Cores' worth of processor time, and the group's folder that allows no more."""

    cores: float
    folder: Path
    version: int

    def throttled_s(self) -> float | None:
        """For how long, in all, processes of the group were held back; None if the kernel does not tell."""
        name, per_second = ("throttled_usec", 1e6) if self.version == 2 else ("throttled_time", 1e9)
        match = re.search(rf"^{name} (\d+)$", _text(self.folder / "cpu.stat"), re.MULTILINE)
        return int(match.group(1)) / per_second if match else None


MOST_HELD = 0.01
"""Of the time that a job runs: more is a reason against its figures."""


@dataclass(frozen=True)
class Held:
    """What a quota did to a job: `seconds` in which processes of its group had to wait; None if nobody tells."""

    cores: float
    seconds: float | None

    def facts(self) -> dict[str, str]:
        """For the environment of a report."""
        facts = {"cpu_quota": f"{self.cores:g} cores"}
        return facts if self.seconds is None else {**facts, "cpu_throttled": f"{self.seconds:.1f} s"}

    def reason(self, run_s: float) -> str:
        """Why figures of a job that ran for so long do not count; empty if they do."""
        if self.seconds is None or self.seconds <= MOST_HELD * run_s:
            return ""
        return f"a processor quota of {self.cores:g} cores held it back for {self.seconds:.1f} of {run_s:.1f} s"


class QuotaWatch:
    """A job's time under the quota of this process, from when it is made."""

    def __init__(self, quota: Quota | None) -> None:
        self._quota = quota
        self._before_s = quota.throttled_s() if quota is not None else None

    def held(self) -> Held | None:
        """Since it was made; None without a quota."""
        if self._quota is None:
            return None
        now_s = self._quota.throttled_s()
        if now_s is None or self._before_s is None:
            return Held(self._quota.cores, None)
        return Held(self._quota.cores, max(0.0, now_s - self._before_s))


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), groups: str | None = None) -> Quota | None:
    """The tightest quota of this process's groups; None without any. `groups`: what /proc/self/cgroup says."""
    quotas = list(_quotas(root, groups if groups is not None else _text(Path("/proc/self/cgroup"))))
    return min(quotas, key=lambda quota: quota.cores, default=None)


def usable_processors(quota: Quota | None) -> int:
    """How many threads are worth while: processors that this process may run on, and its quota, rounded up."""
    processors = len(os.sched_getaffinity(0))
    return processors if quota is None else max(1, min(processors, math.ceil(quota.cores)))


def _quotas(root: Path, groups: str) -> Iterator[Quota]:
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = controllers.split(",") if controllers else []
        for tree in (root, root / "unified") if not names else (root / controllers, root / "cpu"):
            version = 1 if names else 2
            if "cpu" not in names and version == 1:
                continue
            # A container sees its own group as the top of the tree, whatever /proc says.
            folder = tree / group.lstrip("/")
            while True:
                cores = _cores(folder, version)
                if cores is not None:
                    yield Quota(cores, folder, version)
                if folder == tree or tree not in folder.parents:
                    break
                folder = folder.parent


def _cores(folder: Path, version: int) -> float | None:
    if version == 2:
        words = _text(folder / "cpu.max").split()
    else:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(re.fullmatch(r"[1-9]\d*", word) for word in words):
        return None
    return int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Processor quotas of cgroups, and for how long they throttle.

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
    """Processor time in cores, and the folder of the group that limits it."""

    cores: float
    folder: Path
    version: int

    def throttled_s(self) -> float | None:
        """Time for which processors were kept from the group, summed over them; None if the kernel counts none."""
        name, per_second = ("throttled_usec", 1e6) if self.version == 2 else ("throttled_time", 1e9)
        match = re.search(rf"^{name} (\d+)$", _text(self.folder / "cpu.stat"), re.MULTILINE)
        return int(match.group(1)) / per_second if match else None


MOST_THROTTLED = 0.01
"""Share of a job's time; above it the figures do not count."""


@dataclass(frozen=True)
class Throttling:
    """The effect of a quota on a job: `seconds` for which processors were kept from it, summed over them, so it may be
    more than the job took; None if unknown."""

    cores: float
    seconds: float | None

    def facts(self) -> dict[str, str]:
        """Entries for the environment of a report."""
        facts = {"cpu_quota": f"{self.cores:g} cores"}
        return (
            facts
            if self.seconds is None
            else {**facts, "cpu_throttled": f"{self.seconds:.1f} s, summed over processors"}
        )

    def reason(self, run_s: float) -> str:
        """Why the figures of a job that ran for `run_s` do not count; empty if they do."""
        if self.seconds is None or self.seconds <= MOST_THROTTLED * run_s:
            return ""
        return (
            f"a processor quota of {self.cores:g} cores throttled the job: processors were kept from it for "
            f"{self.seconds:.1f} s, summed over them, in {run_s:.1f} s"
        )


class QuotaWatch:
    """Measures for how long the quota of this process throttles a job, from its creation on."""

    def __init__(self, quota: Quota | None) -> None:
        self._quota = quota
        self._before_s = quota.throttled_s() if quota is not None else None

    def throttling(self) -> Throttling | None:
        """Since the creation; None without a quota."""
        if self._quota is None:
            return None
        now_s = self._quota.throttled_s()
        if now_s is None or self._before_s is None:
            return Throttling(self._quota.cores, None)
        return Throttling(self._quota.cores, max(0.0, now_s - self._before_s))


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), groups: str | None = None) -> Quota | None:
    """The tightest quota of this process's groups; None without any. `groups` is the text of /proc/self/cgroup."""
    quotas = list(_quotas(root, groups if groups is not None else _text(Path("/proc/self/cgroup"))))
    return min(quotas, key=lambda quota: quota.cores, default=None)


def usable_processors(quota: Quota | None) -> int:
    """Returns how many threads to use: the processors that this process may run on, at most its quota, rounded up."""
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
            # In a container the group is the top of the tree, whatever path /proc gives.
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

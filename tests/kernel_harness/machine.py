"""Which targets this machine can run."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

from compiler.targets import CpuTarget, load_cpu


@cache
def native_target() -> str:
    """The best x86-64 target that this machine runs; of those that differ in half precision alone, the plain one."""
    return "x86-64-v4" if runs(load_cpu("x86-64-v4")) else "x86-64-v3"


def runs(target: CpuTarget) -> bool:
    """Whether this machine has all instructions of a target."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return target.architecture == platform.machine() and set(target.required_features) <= set(flags)

"""The schedule of running values: threads own outer indices, or columns."""

from __future__ import annotations

from compiler.codegen.tile.axis_tasks import AxisPlan, axis_plan
from compiler.kernels.movement import ScanSpec
from compiler.targets import CpuTarget


def plan(spec: ScanSpec, target: CpuTarget, threads: int) -> AxisPlan:
    """The schedule from the target's figures."""
    size = spec.outer * spec.rows * spec.inner
    return axis_plan(spec.dtype, target, threads, outer=spec.outer, inner=spec.inner, elements=size)


def workspace_bytes(spec: ScanSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: the last row written holds the running values."""
    return 0

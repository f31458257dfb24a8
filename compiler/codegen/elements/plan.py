"""The schedule of picking and putting elements: how the work is shared out."""

from __future__ import annotations

from compiler.codegen.tile.axis_tasks import AxisPlan, axis_plan
from compiler.kernels.movement import ElementsSpec
from compiler.targets import CpuTarget


def plan(spec: ElementsSpec, target: CpuTarget, threads: int) -> AxisPlan:
    """The schedule from the target's figures."""
    moved = spec.outer * max(spec.count, spec.rows) * spec.inner
    return axis_plan(spec.dtype, target, threads, outer=spec.outer, inner=spec.inner, elements=moved)


def workspace_bytes(spec: ElementsSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0

"""The schedule of resampling: how it is shared out, and along what vectors run."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.axis_tasks import AxisPlan, axis_plan
from compiler.kernels.movement import ResampleSpec
from compiler.targets import CpuTarget

MOST_UNROLLED = 8
"""Most taps whose rows and weights are kept at hand for a whole row of results."""


@dataclass(frozen=True, slots=True)
class ResamplePlan:
    """`along_rows`: rows hold less than a vector, so vectors run along the results of the axis."""

    axis: AxisPlan
    along_rows: bool


def plan(spec: ResampleSpec, target: CpuTarget, threads: int) -> ResamplePlan:
    """The schedule from the target's figures."""
    moved = spec.outer * max(spec.count, spec.rows) * spec.inner
    axis = axis_plan(spec.dtype, target, threads, outer=spec.outer, inner=spec.inner, elements=moved)
    return ResamplePlan(axis, spec.inner < axis.lanes)


def workspace_bytes(spec: ResampleSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0

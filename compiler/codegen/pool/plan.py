"""The schedule of pooling: tasks are rows of results (planes for the gradient of a maximum), vectors are channels."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import Precision
from compiler.kernels.spec import PoolSpec
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 16384
_TASKS_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The schedule of one kernel. `parts`: into how many tasks the channels of a row (or plane) are cut."""

    precision: Precision
    parallel: bool
    parts: int


def plan(spec: PoolSpec, target: CpuTarget, threads: int) -> PoolPlan:
    """The schedule from the target's figures."""
    precision = Precision.of(spec.dtype, target)
    elements = spec.n * spec.c * max(spec.h * spec.w, spec.oh * spec.ow)
    rows = {"max_grad": 1, "average_grad": spec.h, "places_grad": spec.h}.get(spec.kind, spec.oh)
    is_few = spec.n * rows < _TASKS_PER_THREAD * threads
    parts = max(1, spec.c // precision.lanes) if is_few else 1
    return PoolPlan(precision, threads > 1 and elements >= _PARALLEL_ELEMENTS, parts)


def workspace_bytes(spec: PoolSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0

"""The schedule of the search for the largest or smallest elements: one task per line along the axis."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.kernels.movement import SelectSpec
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class SelectPlan:
    """The schedule of one kernel."""

    parallel: bool


def plan(spec: SelectSpec, target: CpuTarget, threads: int) -> SelectPlan:
    """The schedule from the target's figures."""
    return SelectPlan(threads > 1 and spec.outer * spec.rows * spec.inner >= _PARALLEL_ELEMENTS)


def workspace_bytes(spec: SelectSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: the heap is where the result will be."""
    return 0

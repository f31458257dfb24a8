"""The sharing out of kernels along one axis of [outer, rows, inner]: threads own outer indices, or columns of them.

What runs along the axis is never cut, so results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import loop_precision
from compiler.element_types import DType
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 16384


@dataclass(frozen=True, slots=True)
class AxisPlan:
    """`parts`: ranges of columns (of inner) that are tasks of their own, where there are few outer indices."""

    lanes: int
    parallel: bool
    parts: int


def axis_plan(dtype: DType, target: CpuTarget, threads: int, *, outer: int, inner: int, elements: int) -> AxisPlan:
    """The schedule from the target's figures; `elements` are those that the kernel touches."""
    lanes = loop_precision((dtype,), target).lanes
    parallel = threads > 1 and elements >= _PARALLEL_ELEMENTS
    vectors = inner // lanes
    return AxisPlan(lanes, parallel, min(threads, vectors) if parallel and outer < threads and vectors else 1)

"""The schedule of a gather and its gradients: how they are shared out, and whether a gradient may update its table."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import loop_precision
from compiler.element_types import ELEMENT_TYPES, SCRATCH
from compiler.kernels.spec import GatherSpec
from compiler.targets import CpuTarget

MOST_POSITIONS = 1 << 24
"""Most indices that an update counts: it does so in f32."""
_PARALLEL_ELEMENTS = 16384
_CLEARING_TASKS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """The schedule of one kernel.

    `parts`: ranges of columns of a scatter-add, so that threads never add to the same element. `clearing_tasks`: those
    that clear its table side by side; 0: one thread does. `slots`: ranges of rows of an update.
    """

    lanes: int
    parallel: bool
    parts: int
    clearing_tasks: int
    slots: int


def plan(spec: GatherSpec, target: CpuTarget, threads: int) -> GatherPlan:
    """The schedule from the target's figures."""
    lanes = loop_precision((spec.dtype,), target).lanes
    vectors = spec.inner // lanes
    parts = min(threads, vectors) if spec.outer < threads and vectors else 1
    moved, table = spec.outer * spec.count * spec.inner, spec.outer * spec.rows * spec.inner
    touched = (spec.count if spec.skips else spec.rows) * spec.inner
    return GatherPlan(
        lanes,
        threads > 1 and moved >= _PARALLEL_ELEMENTS,
        parts,
        _CLEARING_TASKS_PER_THREAD * threads if threads > 1 and table >= _PARALLEL_ELEMENTS else 0,
        min(threads, spec.rows) if touched >= _PARALLEL_ELEMENTS else 1,
    )


def workspace_bytes(spec: GatherSpec, target: CpuTarget, threads: int) -> int:
    """Positions sorted by row, and where each row's end, for an update."""
    return SCRATCH.item_bytes * (spec.rows + spec.count) if spec.epilogue_inputs else 0


def can_update(spec: GatherSpec, target: CpuTarget) -> bool:
    """Whether the gradient of a table may become the table's update itself."""
    is_real = ELEMENT_TYPES[spec.dtype].is_real
    plain = spec.kind == "scatter_add" and spec.outer == 1 and is_real and not spec.epilogue_inputs
    return plain and spec.count <= MOST_POSITIONS

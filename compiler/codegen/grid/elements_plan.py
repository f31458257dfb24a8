"""The schedule of picking and putting elements on a grid: how the work is shared out."""

from __future__ import annotations

from compiler.codegen.grid.row_sums_plan import RowSums, row_sums
from compiler.kernels.movement import ElementsSpec
from compiler.targets import GridTarget

MOST_LOOKING = 32768
"""Results that look through all positions together faster than a column's item takes one position after the other."""


def index_extents(spec: ElementsSpec) -> tuple[int, int]:
    """(outer, inner) of the index."""
    return spec.outer if spec.per_outer else 1, spec.inner if spec.per_inner else 1


def sums_of(spec: ElementsSpec, target: GridTarget) -> RowSums | None:
    """The sums of an `add` whose positions are the same everywhere; None for others."""
    if spec.kind != "add" or index_extents(spec) != (1, 1):
        return None
    return row_sums(spec.outer, spec.rows, spec.inner, spec.count, items=target.items)


def workspace_bytes(spec: ElementsSpec, target: GridTarget, threads: int) -> int:
    """Positions sorted by row, where they are the same for many sums."""
    sums = sums_of(spec, target)
    return 0 if sums is None else sums.workspace_bytes

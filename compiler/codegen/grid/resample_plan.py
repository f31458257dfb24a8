"""The schedule of resampling on a grid: how the work is shared out."""

from __future__ import annotations

from compiler.codegen.grid.row_sums_plan import RowSums, row_sums
from compiler.kernels.movement import ResampleSpec
from compiler.targets import GridTarget


def sums_of(spec: ResampleSpec, target: GridTarget) -> RowSums:
    """The sums of a gradient: every entry of the tables is a position."""
    return row_sums(spec.outer, spec.rows, spec.inner, spec.taps * spec.count, items=target.items)


def workspace_bytes(spec: ResampleSpec, target: GridTarget, threads: int) -> int:
    """Entries of the tables sorted by row, for a gradient."""
    return sums_of(spec, target).workspace_bytes if spec.kind == "gradient" else 0

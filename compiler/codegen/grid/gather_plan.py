"""The schedule of a gather and its gradients on a grid: how they are shared out, and whether a gradient may update its
table.
"""

from __future__ import annotations

from compiler.codegen.gather.plan import MOST_POSITIONS
from compiler.codegen.grid.row_sums_plan import RowSums, row_sums
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.spec import GatherSpec
from compiler.targets import GridTarget


def sums_of(spec: GatherSpec, target: GridTarget) -> RowSums:
    """The sums of a scatter-add."""
    return row_sums(spec.outer, spec.rows, spec.inner, spec.count, items=target.items, skips=spec.skips)


def workspace_bytes(spec: GatherSpec, target: GridTarget, threads: int) -> int:
    """Positions sorted by row, for a scatter-add."""
    return sums_of(spec, target).workspace_bytes if spec.kind == "scatter_add" else 0


def can_update(spec: GatherSpec, target: GridTarget) -> bool:
    """Whether the gradient of a table may become the table's update itself."""
    is_real = ELEMENT_TYPES[spec.dtype].is_real
    plain = spec.kind == "scatter_add" and spec.outer == 1 and is_real and not spec.epilogue_inputs
    return plain and spec.count <= MOST_POSITIONS

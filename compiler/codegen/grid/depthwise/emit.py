"""A depth-wise convolution on a grid: forward and input gradient by `rows`, weight gradient by `weights`."""

from __future__ import annotations

from compiler.codegen.grid.depthwise.plan import workspace_bytes
from compiler.codegen.grid.depthwise.rows import DepthwiseRows
from compiler.codegen.grid.depthwise.weights import DepthwiseWeights
from compiler.codegen.grid.grid import Grid
from compiler.kernels.spec import DepthwiseSpec
from compiler.targets import GridTarget


def emit(spec: DepthwiseSpec, target: GridTarget, threads: int) -> Grid:
    """A depth-wise convolution."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "weight_grad":
        DepthwiseWeights(spec, target).emit(grid)
    else:
        DepthwiseRows(spec).emit(grid)
    return grid

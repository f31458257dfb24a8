"""Element-wise kernels: an item for each point, in the order of the first output's memory."""

from __future__ import annotations

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of, write_outputs
from compiler.codegen.map.plan import arrange
from compiler.codegen.tir.iteration import space_of
from compiler.codegen.tir.tir import Block, Point, Value
from compiler.kernels.spec import MapSpec
from compiler.targets import Target


def emit(spec: MapSpec, target: Target, threads: int) -> Grid:
    """An element-wise kernel."""
    grid = Grid(spec)
    space = arrange(space_of(spec.extents, spec.inputs + spec.outputs), spec)

    def emit_item(here: Here, block: Block, number: Value) -> None:
        point = Point(place_of(block, number, space.extents))
        write_outputs(block, space, here.operands, spec.exprs, point, rank=len(spec.extents))

    if space.size:
        grid.each(space.size, ITEMS, emit_item)
    return grid

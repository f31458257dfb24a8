"""Row gather, an item for each element, and its gradient, which may update the table."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.grid.gather_plan import sums_of, workspace_bytes
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of, write_outputs
from compiler.codegen.grid.row_sums import Place, Terms, write_row_sums
from compiler.codegen.tile.positions import row_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.iteration import space_of
from compiler.codegen.tir.tir import Block, Operands, Point, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.errors import InternalError
from compiler.graph import TensorType
from compiler.kernels.access import identity
from compiler.kernels.spec import GatherSpec
from compiler.targets import GridTarget


def emit(spec: GatherSpec, target: GridTarget, threads: int) -> Grid:
    """A gather or scatter-add."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "gather":
        _gather(grid, spec)
    elif spec.kind == "scatter_add":
        write_row_sums(grid, sums_of(spec, target), _terms(spec))
    else:
        raise InternalError(f"no gather kernel of kind {spec.kind!r}")
    return grid


def _gather(grid: Grid, spec: GatherSpec) -> None:
    def emit_item(here: Here, block: Block, number: Value) -> None:
        (table, index), (output,) = here.operands.inputs, here.operands.outputs
        outer, j, column = place_of(block, number, (spec.outer, spec.count, spec.inner))
        row = row_of(block, spec.rows, index, j)
        source = (outer * spec.rows + row) * spec.inner + column
        block.store(output, number, tir.load(table, source))

    size = spec.outer * spec.count * spec.inner
    if size:
        grid.each(size, ITEMS, emit_item)


def _terms(spec: GatherSpec) -> Terms:
    """The gradients of the positions that name a row, and the epilogue of their sum."""
    rows = spec.outer * spec.rows
    table = identity(TensorType(spec.dtype, (rows, spec.inner)))
    exprs = (spec.epilogue, *spec.extra_outputs)
    space = space_of((rows, spec.inner), (*spec.epilogue_inputs, *(table for _ in exprs)))

    def term(block: Block, operands: Operands, place: Place, position: Value) -> Value:
        return tir.load(operands.inputs[1], (place.outer * spec.count + position) * spec.inner + place.column)

    def finish(block: Block, operands: Operands, place: Place, total: Value) -> None:
        epilogue_operands = replace(operands, inputs=operands.inputs[2:])
        point = Point((place.outer * spec.rows + place.row, place.column))
        write_outputs(block, space, epilogue_operands, exprs, point, rank=2, first=(total,))

    return Terms(ELEMENT_TYPES[spec.dtype].tir, lambda operands: operands.inputs[0], term, finish, spec.skips)

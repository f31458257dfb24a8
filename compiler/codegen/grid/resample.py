"""Resampling along an axis: an item for each result, and for each gradient of a source element."""

from __future__ import annotations

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.grid.resample_plan import sums_of, workspace_bytes
from compiler.codegen.grid.row_sums import Place, Terms, write_row_sums
from compiler.codegen.tile.positions import row_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Operands, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ResampleSpec
from compiler.targets import GridTarget


def emit(spec: ResampleSpec, target: GridTarget, threads: int) -> Grid:
    """A resampling kernel."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    if spec.kind == "gradient":
        write_row_sums(grid, sums_of(spec, target), _terms(spec))
    else:
        _forward(grid, spec)
    return grid


def _forward(grid: Grid, spec: ResampleSpec) -> None:
    """The taps of a result, one after the other."""
    element = ELEMENT_TYPES[spec.dtype].tir

    def emit_item(here: Here, block: Block, number: Value) -> None:
        (source, index, weight), (output,) = here.operands.inputs, here.operands.outputs
        outer, j, column = place_of(block, number, (spec.outer, spec.count, spec.inner))
        total = block.local(1, element, "total")
        block.store(total, 0, tir.literal(0, element))

        def add(inner: Block, tap: Value) -> None:
            entry = inner.let(tap * spec.count + j, "entry")
            row = row_of(inner, spec.rows, index, entry)
            value = tir.load(source, (outer * spec.rows + row) * spec.inner + column)
            inner.store(total, 0, tir.load(total, 0) + value * tir.load(weight, entry))

        block.loop(spec.taps, add, name="tap")
        block.store(output, number, tir.load(total, 0))

    size = spec.outer * spec.count * spec.inner
    if size:
        grid.each(size, ITEMS, emit_item)


def _terms(spec: ResampleSpec) -> Terms:
    """Returns the terms of a row's gradient: what the table entries that name the row give it of the results'
    gradients.
    """

    def term(block: Block, operands: Operands, place: Place, position: Value) -> Value:
        d_y, _, weight = operands.inputs
        _, j = tir.divide(block, position, spec.count)
        source = (place.outer * spec.count + j) * spec.inner + place.column
        return tir.load(d_y, source) * tir.load(weight, position)

    def finish(block: Block, operands: Operands, place: Place, total: Value) -> None:
        into = (place.outer * spec.rows + place.row) * spec.inner + place.column
        block.store(operands.outputs[0], into, total)

    return Terms(ELEMENT_TYPES[spec.dtype].tir, lambda operands: operands.inputs[1], term, finish)

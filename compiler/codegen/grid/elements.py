"""Elements picked and put: an item for each result that looks for what goes there, or for each column of them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from compiler.codegen.grid.elements_plan import MOST_LOOKING, index_extents, sums_of, workspace_bytes
from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.grid.row_sums import Place, Terms, write_row_sums
from compiler.codegen.grid.row_sums_plan import MOST_LOOKED_AT
from compiler.codegen.tile.positions import row_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import extreme
from compiler.codegen.tir.tir import Block, Buffer, Operands, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ElementsSpec
from compiler.targets import GridTarget


def emit(spec: ElementsSpec, target: GridTarget, threads: int) -> Grid:
    """A kernel that picks or puts elements."""
    grid = Grid(spec, workspace_bytes(spec, target, threads))
    sums, kernel = sums_of(spec, target), _Elements(spec)
    if spec.kind == "gather":
        kernel.gather(grid)
    elif sums is not None:
        write_row_sums(grid, sums, kernel.terms())
    else:
        kernel.scatter(grid)
    return grid


class _Elements:
    """Writes the launches of one kernel. Positions are int32."""

    def __init__(self, spec: ElementsSpec) -> None:
        self.spec = spec
        self.element = "int64" if spec.kind == "last" else ELEMENT_TYPES[spec.dtype].tir
        index = index_extents(spec)
        self.outer, self.inner = index if spec.kind == "last" else (spec.outer, spec.inner)

    def _row(self, block: Block, index: Buffer, outer: Value, j: Value, column: Value) -> Value:
        """The row that the index of an element names."""
        spec = self.spec
        place = outer * spec.count + j if spec.per_outer else j
        return row_of(block, spec.rows, index, place * spec.inner + column if spec.per_inner else place)

    def gather(self, grid: Grid) -> None:
        """An item for each element."""
        spec = self.spec

        def emit_item(here: Here, block: Block, number: Value) -> None:
            (x, index), (y,) = here.operands.inputs, here.operands.outputs
            outer, j, column = place_of(block, number, (spec.outer, spec.count, spec.inner))
            row = self._row(block, index, outer, j, column)
            block.store(y, number, tir.load(x, (outer * spec.rows + row) * spec.inner + column))

        size = spec.outer * spec.count * spec.inner
        if size:
            grid.each(size, ITEMS, emit_item)

    def terms(self) -> Terms:
        """The updates that go to a row."""
        spec = self.spec

        def term(block: Block, operands: Operands, place: Place, position: Value) -> Value:
            return tir.load(operands.inputs[1], (place.outer * spec.count + position) * spec.inner + place.column)

        def finish(block: Block, operands: Operands, place: Place, total: Value) -> None:
            into = (place.outer * spec.rows + place.row) * spec.inner + place.column
            block.store(operands.outputs[0], into, total)

        return Terms(self.element, lambda operands: operands.inputs[0], term, finish)

    # ------------------------------------------------------------------------------------------------------ putting

    def scatter(self, grid: Grid) -> None:
        """Emits a scatter: every result looks for what goes to it; where that is too much, columns are filled position
        by position.
        """
        columns = self.outer * self.inner
        size = columns * self.spec.rows
        if not size:
            return
        if self.spec.count <= MOST_LOOKED_AT or size <= MOST_LOOKING:
            grid.each(size, ITEMS, self.look)
            return
        grid.each(size, ITEMS, self.begin)
        grid.each(columns, ITEMS, self.put)

    def _start(self, operands: Operands, flat: Value) -> Value:
        """Returns the initial value of a result, before anything is written there."""
        if self.spec.kind in ("max", "mul"):
            return tir.load(operands.inputs[0], flat)
        return tir.literal(0, self.element)

    def begin(self, here: Here, block: Block, number: Value) -> None:
        """A result to which nothing has gone."""
        block.store(here.operands.outputs[0], number, self._start(here.operands, number))

    def look(self, here: Here, block: Block, number: Value) -> None:
        """Computes one result from all positions in order."""
        spec, (y,), index = self.spec, here.operands.outputs, self._index(here.operands)
        outer, output_row, column = place_of(block, number, (self.outer, spec.rows, self.inner))
        total = block.local(1, self.element, "total")
        block.store(total, 0, self._start(here.operands, number))

        def compare(inner: Block, j: Value) -> None:
            row = self._row(inner, index, outer, j, column)
            inner.when(
                tirx.EQ(row, output_row), lambda b: self._combine(b, here, total, tir.index(0), (outer, j, column))
            )

        block.loop(spec.count, compare, name="j")
        block.store(y, number, tir.load(total, 0))

    def put(self, here: Here, block: Block, number: Value) -> None:
        """Puts all positions of one column in order, into results that no other item reads or writes."""
        spec, (y,), index = self.spec, here.operands.outputs, self._index(here.operands)
        outer, column = tir.divide(block, number, self.inner)

        def put_row(inner: Block, j: Value) -> None:
            row = self._row(inner, index, outer, j, column)
            into = inner.let((outer * spec.rows + row) * self.inner + column, "into")
            self._combine(inner, here, y, into, (outer, j, column))

        block.loop(spec.count, put_row, name="j")

    def _index(self, operands: Operands) -> Buffer:
        return operands.inputs[0 if self.spec.kind in ("add", "last") else 1]

    def _combine(self, block: Block, here: Here, into: Buffer, flat: Value, at: tuple[Value, Value, Value]) -> None:
        """Combines the element at a position into an element of a buffer."""
        spec, (outer, j, column) = self.spec, at
        if spec.kind == "last":
            block.store(into, flat, tirx.Cast("int64", j + 1))
            return
        updates = here.operands.inputs[-1]
        update = block.let(tir.load(updates, (outer * spec.count + j) * spec.inner + column), "u")
        block.store(into, flat, _COMBINE[spec.kind](block.let(tir.load(into, flat), "old"), update))


_COMBINE: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "max": lambda x, y: extreme("max", x, y),
}

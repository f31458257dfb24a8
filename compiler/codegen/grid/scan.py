"""Running values along an axis: an item for each column, or a group where there are few."""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS
from compiler.codegen.grid.split import ENOUGH_ITEMS
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ScanSpec
from compiler.targets import GridTarget

_FEWEST_ROWS = 64
"""The number of rows below which an item adds them up faster than a group, whose items wait for each other."""


def emit(spec: ScanSpec, target: GridTarget, threads: int) -> Grid:
    """A running sum or a linear recurrence."""
    grid = Grid(spec)
    scan = _Scan(spec)
    columns = spec.outer * spec.inner
    if not columns * spec.rows:
        return grid
    if spec.kind == "sum" and spec.rows > _FEWEST_ROWS and columns * ITEMS <= ENOUGH_ITEMS:
        grid.launch(columns, target.items, scan.by_group)
    else:
        grid.each(columns, ITEMS, scan.by_item)
    return grid


class _Scan:
    """Writes one launch."""

    def __init__(self, spec: ScanSpec) -> None:
        self.spec, self.element = spec, ELEMENT_TYPES[spec.dtype].tir

    def _start(self, block: Block, number: Value) -> Value:
        """Returns where a column begins."""
        outer, column = tir.divide(block, number, self.spec.inner)
        return block.let(outer * (self.spec.rows * self.spec.inner) + column, "start")

    def _row(self, turn: Value) -> Value:
        """The row that comes in this turn."""
        return (self.spec.rows - 1) - turn if self.spec.reverse else turn

    def by_item(self, here: Here, block: Block, number: Value) -> None:
        """Row after row."""
        spec, (y,) = self.spec, here.operands.outputs
        start = self._start(block, number)
        running = block.local(1, self.element, "running")
        block.store(running, 0, tir.literal(0, self.element))

        def add_row(inner: Block, turn: Value) -> None:
            place = inner.let(start + self._row(turn) * spec.inner, "place")
            before = inner.let(tir.load(running, 0), "before")
            scaled = before * tir.load(here.operands.inputs[0], place) if spec.kind == "linear" else before
            inner.store(running, 0, scaled + tir.load(here.operands.inputs[-1], place))
            inner.store(y, place, before if spec.exclusive else tir.load(running, 0))

        block.loop(spec.rows, add_row, name="turn")

    def by_group(self, here: Here) -> None:
        """A tile of as many rows as the group has items after the other; within one, sums over shared memory."""
        spec, block, (x,), (y,) = self.spec, here.block, here.operands.inputs, here.operands.outputs
        start = self._start(block, here.group)
        running = block.local(1, self.element, "running")
        block.store(running, 0, tir.literal(0, self.element))
        shared = here.shared(here.items, self.element, "sums")
        shift = 1 if spec.exclusive else 0

        def tile(inner: Block, number: Value) -> None:
            turn = inner.let(number * here.items + here.item, "turn")
            in_range = tirx.And(tirx.LE(shift, turn), tirx.LT(turn, tir.index(spec.rows + shift)))
            term = tir.load(x, start + self._row(turn - shift) * spec.inner)
            element = inner.let(tirx.if_then_else(in_range, term, tir.literal(0, self.element)), "own")
            self._add_up(here, inner, shared, element)
            total = inner.let(tir.load(running, 0) + tir.load(shared, here.item), "total")
            inner.store(running, 0, tir.load(running, 0) + tir.load(shared, here.items - 1))
            here.barrier(inner)
            is_row = tirx.LT(turn, tir.index(spec.rows))
            inner.when(is_row, lambda body: body.store(y, start + self._row(turn) * spec.inner, total))

        block.loop(-(-spec.rows // here.items), tile, name="tile")

    def _add_up(self, here: Here, block: Block, shared: Buffer, element: Value) -> None:
        """Puts into each element the sum of its item's own value and all before, over distances that double."""
        block.store(shared, here.item, element)
        here.barrier(block)
        zero = tir.literal(0, self.element)

        def level(inner: Block, depth: Value) -> None:
            far = inner.let(tirx.shift_left(tir.index(1), depth), "far")
            before = tirx.if_then_else(tirx.LE(far, here.item), tir.load(shared, here.item - far), zero)
            before = inner.let(before, "before")
            here.barrier(inner)
            inner.store(shared, here.item, tir.load(shared, here.item) + before)
            here.barrier(inner)

        block.loop(here.items.bit_length() - 1, level, name="depth")

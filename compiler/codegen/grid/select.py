"""The positions of the largest (or smallest) elements along an axis.

The order of elements is total: of equal ones the earlier is better. So an element's place in the result is the number
of better ones; or, where few of many are wanted, a group looks for the best of those that are worse than the last.
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.grid.grid import Grid, Here
from compiler.codegen.grid.points import ITEMS, place_of
from compiler.codegen.tir import tir
from compiler.codegen.tir.scalar_math import is_nan
from compiler.codegen.tir.tir import Block, Buffer, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import SelectSpec
from compiler.targets import GridTarget

_ROWS_PER_SEARCH = 64
"""A search through all rows costs a group as much as comparing this many with all others."""
_NONE = -1
"""No row."""


def emit(spec: SelectSpec, target: GridTarget, threads: int) -> Grid:
    """A selection."""
    grid, select = Grid(spec), _Select(spec)
    lines = spec.outer * spec.inner
    if not lines * spec.rows * spec.count:
        return grid
    if spec.count * _ROWS_PER_SEARCH <= spec.rows:
        grid.launch(lines, ITEMS, select.search)
    else:
        grid.each(lines * spec.rows, ITEMS, select.rank)
    return grid


class _Select:
    """Writes one launch. Rows are int32."""

    def __init__(self, spec: SelectSpec) -> None:
        self.spec, self.is_real = spec, ELEMENT_TYPES[spec.dtype].is_real

    def _better(self, x: Value, row: Value, y: Value, other: Value) -> Value:
        """Whether x, in `row`, comes before y, in another."""
        high, low = (x, y) if self.spec.largest else (y, x)
        beats, ties = tirx.LT(low, high), tirx.EQ(x, y)
        if self.is_real:
            beats = tirx.Or(beats, tirx.And(is_nan(high), tirx.Not(is_nan(low))))
            ties = tirx.Or(ties, tirx.And(is_nan(x), is_nan(y)))
        return tirx.Or(beats, tirx.And(ties, tirx.LT(row, other)))

    def rank(self, here: Here, block: Block, number: Value) -> None:
        """An element counts those that are better."""
        spec, (x,), (y,) = self.spec, here.operands.inputs, here.operands.outputs
        outer, row, column = place_of(block, number, (spec.outer, spec.rows, spec.inner))
        start = block.let(outer * (spec.rows * spec.inner) + column, "start")
        element = block.let(tir.load(x, number), "own")
        place = block.local(1, "int32", "place")
        block.store(place, 0, tir.index(0))

        def compare(inner: Block, other: Value) -> None:
            value = inner.let(tir.load(x, start + other * spec.inner), "value")
            is_better = self._better(value, other, element, row)
            inner.when(is_better, lambda body: body.store(place, 0, tir.load(place, 0) + 1))

        block.loop(spec.rows, compare, name="other")

        def put(inner: Block) -> None:
            into = (outer * spec.count + tir.load(place, 0)) * spec.inner + column
            inner.store(y, into, tirx.Cast("int64", row))

        block.when(tirx.LT(tir.load(place, 0), tir.index(spec.count)), put)

    def search(self, here: Here) -> None:
        """A group finds the best row, then the best of those that come after it, and so on."""
        spec, block, (y,) = self.spec, here.block, here.operands.outputs
        outer, column = tir.divide(block, here.group, spec.inner)
        start = block.let(outer * (spec.rows * spec.inner) + column, "start")
        bests = here.shared(here.items, "int32", "bests")
        last = block.local(1, "int32", "last")
        block.store(last, 0, tir.index(_NONE))

        def turn(inner: Block, place: Value) -> None:
            inner.store(bests, here.item, self._best_of_own(here, inner, start, tir.load(last, 0)))
            here.barrier(inner)
            self._best_of_all(here, inner, start, bests)
            inner.store(last, 0, tir.load(bests, 0))
            here.barrier(inner)
            into = (outer * spec.count + place) * spec.inner + column
            is_first = tirx.EQ(here.item, tir.index(0))
            inner.when(is_first, lambda body: body.store(y, into, tirx.Cast("int64", tir.load(last, 0))))

        block.loop(spec.count, turn, name="place")

    def _before(self, here: Here, block: Block, start: Value, row: Value, other: Value) -> Value:
        """Whether a row of a line comes before another. Where one is none it says anything, but reads inside x."""
        (x,) = here.operands.inputs
        values = (
            block.let(tir.load(x, start + tirx.max(side, tir.index(0)) * self.spec.inner), "value")
            for side in (row, other)
        )
        return self._better(next(values), row, next(values), other)

    def _best_of_own(self, here: Here, block: Block, start: Value, last: Value) -> Value:
        """The best of every `items`-th row that comes after `last`, or none."""
        best = block.local(1, "int32", "best")
        block.store(best, 0, tir.index(_NONE))

        def look(inner: Block, turn: Value) -> None:
            row = inner.let(here.item + turn * here.items, "row")
            current_best = tir.load(best, 0)
            is_left = tirx.Or(tirx.EQ(last, _NONE), self._before(here, inner, start, last, row))
            wins = tirx.Or(tirx.EQ(current_best, _NONE), self._before(here, inner, start, row, current_best))
            inner.when(tirx.And(is_left, wins), lambda body: body.store(best, 0, row))

        turns = tirx.truncdiv(tir.index(self.spec.rows + here.items - 1) - here.item, tir.index(here.items))
        block.loop(block.let(turns, "turns"), look, name="turn")
        return tir.load(best, 0)

    def _best_of_all(self, here: Here, block: Block, start: Value, bests: Buffer) -> None:
        """The best of the group's bests, into the first."""

        def level(inner: Block, depth: Value) -> None:
            step = inner.let(tirx.shift_right(tir.index(here.items // 2), depth), "step")

            def halve(body: Block) -> None:
                current, other = (body.let(tir.load(bests, here.item + far), "best") for far in (0, step))
                wins = tirx.Or(tirx.EQ(current, _NONE), self._before(here, body, start, other, current))
                is_better = tirx.And(tirx.Not(tirx.EQ(other, _NONE)), wins)
                body.when(is_better, lambda better: better.store(bests, here.item, other))

            inner.when(tirx.LT(here.item, step), halve)
            here.barrier(inner)

        block.loop(here.items.bit_length() - 1, level, name="depth")

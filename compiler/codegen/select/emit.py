"""The positions of the largest (or smallest) elements: a heap of the best so far, then sorted in place.

The heap lies in the result and has the worst of the best at its root: O(rows log count). Of equal elements the earlier
one is better, so the order is total and the result does not depend on how the heap moved.
"""

from __future__ import annotations

from tvm import tirx

from compiler.codegen.select.plan import plan
from compiler.codegen.tir import tir
from compiler.codegen.tir.scalar_math import is_nan
from compiler.codegen.tir.tir import Block, Buffer, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import SelectSpec
from compiler.targets import CpuTarget


def emit(spec: SelectSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a selection."""
    operands = tir.declare(spec)
    body = tir.Block()
    kind = "parallel" if plan(spec, target, threads).parallel else "serial"

    def line(block: Block, turn: Value) -> None:
        outer, column = tir.divide(block, turn, spec.inner)
        _Line(spec, operands, block, outer, column).write(block)

    body.loop(spec.outer * spec.inner, line, kind=kind, name="line")
    return tir.finish(spec, operands, body)


class _Line:
    """A line along the axis. Places in the heap and rows are int32."""

    def __init__(self, spec: SelectSpec, operands: Operands, block: Block, outer: Value, column: Value) -> None:
        self.spec, (self.x,), (self.y,) = spec, operands.inputs, operands.outputs
        self.first_x = block.let(outer * (spec.rows * spec.inner) + column, "first_x")
        self.first_y = block.let(outer * (spec.count * spec.inner) + column, "first_y")
        self.is_real = ELEMENT_TYPES[spec.dtype].is_real

    def element(self, block: Block, row: Value) -> Value:
        """x in a row."""
        return block.let(tir.load(self.x, self.first_x + row * self.spec.inner), "x")

    def row_at(self, block: Block, place: Value) -> Value:
        """The row that a place of the heap holds."""
        return block.let(tirx.Cast("int32", tir.load(self.y, self.first_y + place * self.spec.inner)), "held")

    def hold(self, block: Block, place: Value, row: Value) -> None:
        """Puts a row into a place."""
        block.store(self.y, self.first_y + place * self.spec.inner, tirx.Cast("int64", row))

    def better(self, block: Block, row: Value, other: Value) -> Value:
        """Whether `row` comes before `other`."""
        x, y = self.element(block, row), self.element(block, other)
        high, low = (x, y) if self.spec.largest else (y, x)
        beats, ties = tirx.LT(low, high), tirx.EQ(x, y)
        if self.is_real:
            beats = tirx.Or(beats, tirx.And(is_nan(high), tirx.Not(is_nan(low))))
            ties = tirx.Or(ties, tirx.And(is_nan(x), is_nan(y)))
        return block.let(tirx.Or(beats, tirx.And(ties, tirx.LT(row, other))), "better")

    def write(self, block: Block) -> None:
        """The heap of the first rows, the better ones of the rest, and the order."""
        count = self.spec.count
        self.hole, self.going = block.local(1, "int32", "hole"), block.local(1, "int32", "going")
        block.loop(count, lambda b, place: self.hold(b, place, place), name="place")
        block.loop(count // 2, lambda b, turn: self.sink(b, (count // 2 - 1) - turn, tir.index(count)), name="turn")

        def rest(b: Block, turn: Value) -> None:
            row = b.let(turn + count, "row")

            def replace_worst(inner: Block) -> None:
                self.hold(inner, tir.index(0), row)
                self.sink(inner, tir.index(0), tir.index(count))

            b.when(self.better(b, row, self.row_at(b, tir.index(0))), replace_worst)

        block.loop(self.spec.rows - count, rest, name="rest")

        def order(b: Block, turn: Value) -> None:
            last = b.let((count - 1) - turn, "last")
            worst, moved = self.row_at(b, tir.index(0)), self.row_at(b, last)
            self.hold(b, last, worst)
            self.hold(b, tir.index(0), moved)
            self.sink(b, tir.index(0), last)

        block.loop(count - 1, order, name="order")

    def sink(self, block: Block, start: Value, size: Value) -> None:
        """Moves what lies at `start` down among the first `size` places until nothing worse is below it."""
        if self.spec.count == 1:
            return
        moving = self.row_at(block, start)
        block.store(self.hole, 0, start)
        block.store(self.going, 0, tir.index(1))
        turn = Block()
        here = turn.let(tir.load(self.hole, 0), "here")
        left = turn.let(here * 2 + 1, "left")
        turn.store(self.going, 0, tir.index(0))
        turn.when(tirx.LT(left, size), lambda b: self._step(b, here, left, size, moving))
        block.add(tirx.While(tirx.EQ(tir.load(self.going, 0), 1), turn.statement()))
        self.hold(block, tir.load(self.hole, 0), moving)

    def _step(self, block: Block, here: Value, left: Value, size: Value, moving: Value) -> None:
        """Lifts the worse child if it is worse than what moves."""
        child: Buffer = block.local(1, "int32", "child")
        block.store(child, 0, left)

        def compare(b: Block) -> None:
            is_worse = self.better(b, self.row_at(b, left), self.row_at(b, left + 1))
            b.when(is_worse, lambda inner: inner.store(child, 0, left + 1))

        block.when(tirx.LT(left + 1, size), compare)
        chosen = block.let(tir.load(child, 0), "chosen")
        row = self.row_at(block, chosen)

        def lift(b: Block) -> None:
            self.hold(b, here, row)
            b.store(self.hole, 0, chosen)
            b.store(self.going, 0, tir.index(1))

        block.when(self.better(block, moving, row), lift)

"""Resampling along an axis: every result is a weighted sum of a few rows, and every row's gradient one of results."""

from __future__ import annotations

from compiler.codegen.resample.plan import MOST_UNROLLED, ResamplePlan, plan
from compiler.codegen.tile.positions import Columns, column_tasks, fill, row_of, vectors
from compiler.codegen.tir import tir
from compiler.codegen.tir.tir import Block, Operands, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.movement import ResampleSpec
from compiler.targets import CpuTarget


def emit(spec: ResampleSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a resampling kernel."""
    operands = tir.declare(spec)
    body = tir.Block()
    kernel = _Resample(spec, operands, plan(spec, target, threads))
    if spec.kind == "gradient":
        kernel.gradient(body)
    else:
        kernel.forward(body)
    return tir.finish(spec, operands, body)


class _Resample:
    """Writes the loops of one kernel. Positions are int32."""

    def __init__(self, spec: ResampleSpec, operands: Operands, plan: ResamplePlan) -> None:
        self.spec, self.plan, self.axis = spec, plan, plan.axis
        (self.source, self.index, self.weight), (self.output,) = operands.inputs, operands.outputs
        self.element = ELEMENT_TYPES[spec.dtype].tir

    def forward(self, body: Block) -> None:
        """Computes one result row after the other, or all results of one column."""
        spec, kind = self.spec, "parallel" if self.axis.parallel else "serial"
        if self.plan.along_rows:
            body.loop(spec.outer, self.along_rows, kind=kind, name="outer")
        else:
            body.loop(spec.outer * spec.count, self.row, kind=kind, name="turn")

    def along_rows(self, block: Block, outer: Value) -> None:
        """Vectors of results, each with its own source rows and weights."""
        spec = self.spec

        def vector(inner: Block, j: Value, width: int, column: int) -> None:
            total: Value = None
            for tap in range(spec.taps):
                rows = row_of(inner, spec.rows, self.index, j + tap * spec.count, width)
                start = tir.broadcast(outer * (spec.rows * spec.inner) + column, width)
                flat = inner.let(rows * tir.literal(spec.inner, "int32", width) + start, "flat")
                weight = tir.load(self.weight, j + tap * spec.count, width)
                term = inner.let(tir.load_at(self.source, flat) * weight, "term")
                total = term if total is None else inner.let(total + term, "total")
            inner.store(self.output, (outer * spec.count + j) * spec.inner + column, total, spec.inner)

        for column in range(spec.inner):

            def each(inner: Block, j: Value, width: int, column: int = column) -> None:
                vector(inner, j, width, column)

            vectors(block, spec.count, self.axis.lanes, each)

    def row(self, block: Block, turn: Value) -> None:
        """Computes one result row: its few source rows added up in registers."""
        spec = self.spec
        outer, j = tir.divide(block, turn, spec.count)
        if spec.taps > MOST_UNROLLED:
            self.row_of_many(block, turn, outer, j)
            return
        taps = [self.tap(block, outer, j, tir.index(tap)) for tap in range(spec.taps)]

        def vector(inner: Block, i: Value, width: int) -> None:
            total: Value = None
            for start, weight in taps:
                term = tir.load(self.source, start + i, width) * tir.broadcast(weight, width)
                total = inner.let(term if total is None else total + term, "total")
            inner.store(self.output, turn * spec.inner + i, total)

        vectors(block, spec.inner, self.axis.lanes, vector)

    def row_of_many(self, block: Block, turn: Value, outer: Value, j: Value) -> None:
        """Computes one result row as `row` does, with a loop over the taps."""
        spec = self.spec

        def vector(inner: Block, i: Value, width: int) -> None:
            total = inner.local(width, self.element, "total")
            inner.store(total, 0, tir.literal(0, self.element, width))

            def add(b: Block, tap: Value) -> None:
                start, weight = self.tap(b, outer, j, tap)
                term = tir.load(self.source, start + i, width) * tir.broadcast(weight, width)
                b.store(total, 0, tir.load(total, 0, width) + term)

            inner.loop(spec.taps, add, name="tap")
            inner.store(self.output, turn * spec.inner + i, tir.load(total, 0, width))

        vectors(block, spec.inner, self.axis.lanes, vector)

    def tap(self, block: Block, outer: Value, j: Value, tap: Value) -> tuple[Value, Value]:
        """Returns where the source row of a tap begins, and its weight."""
        spec = self.spec
        place = block.let(tap * spec.count + j, "place")
        row = row_of(block, spec.rows, self.index, place)
        start = block.let((outer * spec.rows + row) * spec.inner, "start")
        return start, block.let(tir.load(self.weight, place), "weight")

    def gradient(self, body: Block) -> None:
        """Zeros, then every result's gradient added to its source rows; a thread owns whole columns."""
        spec = self.spec

        def clear(block: Block, place: Value, width: int) -> None:
            block.store(self.output, place, tir.literal(0, self.element, width))

        fill(body, spec.outer * spec.rows * spec.inner, self.axis, clear)

        def task(block: Block, outer: Value, columns: Columns) -> None:
            def add_position(inner: Block, j: Value) -> None:
                source = inner.let((outer * spec.count + j) * spec.inner, "source")
                inner.loop(spec.taps, lambda b, tap: self.add(b, outer, j, tap, source, columns), name="tap")

            block.loop(spec.count, add_position, name="j")

        column_tasks(body, spec.outer, spec.inner, self.axis, task)

    def add(self, block: Block, outer: Value, j: Value, tap: Value, source: Value, columns: Columns) -> None:
        """Adds one tap's share of a result's gradient, in some columns."""
        start, weight = self.tap(block, outer, j, tap)

        def each(inner: Block, i: Value, width: int) -> None:
            term = tir.load(self.source, source + i, width) * tir.broadcast(weight, width)
            inner.store(self.output, start + i, tir.load(self.output, start + i, width) + term)

        columns(block, each)

"""Reductions over any axes: column sums (vectors of results) and row sums (vectors of terms), split over threads.

Terms are added in blocks: a block's sum is formed in registers, block sums are added up in a second accumulator, and
parts that different threads summed are added last. The error is near that of pairwise summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx

from compiler.codegen.reduce.plan import COLUMN_VECTORS, ReducePlan, element_dtype, plan, workspace_bytes
from compiler.codegen.tir import tir
from compiler.codegen.tir.accumulate import Accumulators, combined, fold_lanes
from compiler.codegen.tir.expressions import Evaluator, spec_point
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Operands, Point, PrimFunc, Value
from compiler.element_types import ELEMENT_TYPES
from compiler.kernels.spec import ReduceSpec
from compiler.targets import CpuTarget

_ACCUMULATORS = 4
"""Independent additions in flight, to hide their latency."""


def emit(spec: ReduceSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of a reduction."""
    body = tir.Block()
    operands = tir.declare(spec, workspace_bytes(spec, target, threads))
    _Reduction(spec, operands, plan(spec, target, threads)).emit(body)
    return tir.finish(spec, operands, body)


class _Reduction:
    """Writes the loops of one plan."""

    def __init__(self, spec: ReduceSpec, operands: Operands, arranged: ReducePlan) -> None:
        self.spec, self.operands, self.plan, self.lanes = spec, operands, arranged, arranged.lanes
        self.space = arranged.space
        self.element = ELEMENT_TYPES[element_dtype(spec)].sum.tir
        self.origin = tir.Point(tuple(tir.index(0) for _ in self.space.extents))

    def emit(self, body: Block) -> None:
        """Emits all pieces of the results: blocks of columns (or single results), then, if split, the combining."""
        if not self.plan.columns:
            self._piece(body, start=0, blocks=1, vectors=1, width=1)
        else:
            block_width = self.lanes * COLUMN_VECTORS
            blocks, rest = divmod(self.plan.width, block_width)
            self._piece(body, start=0, blocks=blocks, vectors=COLUMN_VECTORS, width=self.lanes)
            full = rest // self.lanes
            self._piece(body, start=blocks * block_width, blocks=1, vectors=full, width=self.lanes)
            for start, width in chunks(self.plan.width, self.lanes):
                self._piece(body, start=start, blocks=1, vectors=1, width=width)
        if self.plan.parts > 1:
            self._combine(body)

    def _piece(self, body: Block, *, start: int, blocks: int, vectors: int, width: int) -> None:
        """`blocks` blocks of `vectors` vectors of results from column `start`, for every outer point and part."""
        if not blocks or not vectors:
            return
        rows, parts = self.plan.rows(), self.plan.parts

        def task(block: Block, number: Value) -> None:
            part, number = tir.divide(block, number, rows * blocks)
            row, column_block = tir.divide(block, number, blocks)
            point = self._outer_point(block, row)
            column = block.let(column_block * (vectors * width) + start, "column")
            if self.plan.columns:
                point = point.at(self.plan.vector, column)
            sums = self._sum(block, point, part, vectors, width)
            for place, value in enumerate(sums):
                self._deliver(block, point, row, part, place * width, value)

        kind = "parallel" if self.plan.parallel and rows * blocks * parts > 1 else "serial"
        body.loop(rows * blocks * parts, task, kind=kind, name="task")

    def _outer_point(self, block: Block, row: Value) -> Point:
        point = self.origin
        for axis in reversed(self.plan.outer):
            row, place = tir.divide(block, row, self.space.extents[axis])
            point = point.at(axis, place)
        return point

    # ------------------------------------------------------------------------------------------------------ summing

    def _sum(self, block: Block, point: Point, part: Value, vectors: int, width: int) -> list[Value]:
        """The terms of one part at `point`, combined: one value per vector (columns), or a single scalar."""
        lanes = width if self.plan.columns else self.lanes
        totals = Accumulators(block, self.spec.combine, self.element, vectors, lanes)
        ragged = [] if self.plan.columns else chunks(self.space.extents[self.plan.main], self.lanes)
        tails = [Accumulators(block, self.spec.combine, self.element, 1, wide) for _, wide in ragged]

        def turn(inner: Block, at: Point) -> None:
            self._main_axis(inner, at, part, totals)
            for (start, wide), tail in zip(ragged, tails, strict=True):
                self._tail(inner, at, part, start, wide, tail)

        self._nest(block, point, list(self.plan.rest), turn)
        if self.plan.columns:
            return [block.let(totals.get(number), "sum") for number in range(vectors)]
        value = fold_lanes(block, self.spec.combine, block.let(totals.get(0), "sum"))
        for tail in tails:
            folded = fold_lanes(block, self.spec.combine, block.let(tail.get(0), "sum"))
            value = block.let(combined(self.spec.combine, value, folded), "sum")
        return [value]

    def _nest(self, block: Block, point: Point, axes: Sequence[int], body: Callable[[Block, Point], None]) -> None:
        if not axes:
            body(block, point)
            return
        axis = axes[0]
        block.loop(
            self.space.extents[axis],
            lambda inner, i: self._nest(inner, point.at(axis, i), axes[1:], body),
            name=f"r{axis}",
        )

    def _main_axis(self, block: Block, point: Point, part: Value, totals: Accumulators) -> None:
        """The part's steps along the main axis, in blocks whose sums are formed apart and added to `totals`."""
        step = 1 if self.plan.columns else self.lanes
        steps = self.space.extents[self.plan.main] // step
        if not steps:
            return
        share = -(-steps // self.plan.parts)
        chains = max(1, _ACCUMULATORS // totals.count)
        size = max(chains, math.isqrt(share) // chains * chains)
        first = block.let(part * share, "first")
        count: Value = share
        if self.plan.parts > 1:
            count = block.let(tirx.max(tirx.min(share, steps - first), 0), "count")
        sums = Accumulators(block, self.spec.combine, self.element, totals.count * chains, totals.lanes)

        def add(inner: Block, place: Value, chain: int) -> None:
            self._add_terms(inner, point.at(self.plan.main, place * step), sums, chain * totals.count, totals.count)

        def one_block(inner: Block, number: Value) -> None:
            begin = inner.let(first + number * size, "begin")

            def turn(innermost: Block, i: Value) -> None:
                for chain in range(chains):
                    add(innermost, begin + i * chains + chain, chain)

            inner.loop(size // chains, turn, name="k")
            self._flush(inner, sums, totals)

        whole = count // size if isinstance(count, int) else block.let(tirx.truncdiv(count, size), "blocks")
        block.loop(whole, one_block, name="block")
        start = whole * size
        block.loop(count - start, lambda inner, i: add(inner, first + start + i, 0), name="k")
        self._flush(block, sums, totals)

    def _flush(self, block: Block, sums: Accumulators, totals: Accumulators) -> None:
        """Adds the block's sums to the totals and clears them."""
        for number in range(totals.count):
            chained = [block.let(sums.get(i), "s") for i in range(number, sums.count, totals.count)]
            value = chained[0]
            for other in chained[1:]:
                value = block.let(combined(self.spec.combine, value, other), "s")
            totals.add(block, number, value)
        sums.clear(block)

    def _add_terms(self, block: Block, point: Point, sums: Accumulators, first: int, count: int) -> None:
        """Adds one step: a vector of terms for each of `count` columns vectors (1 for row sums)."""
        axis = self.plan.vector
        for number in range(count):
            at = point.at(axis, point.axes[axis] + number * sums.lanes) if number else point
            sums.add(block, first + number, self._term(block, at.vector(axis, sums.lanes)))

    def _tail(self, block: Block, point: Point, part: Value, start: int, width: int, tail: Accumulators) -> None:
        """Adds what is left of a row after full vectors; the first part does so."""
        at = point.at(self.plan.main, start).vector(self.plan.main, width)
        if self.plan.parts == 1:
            tail.add(block, 0, self._term(block, at))
        else:
            block.when(tirx.EQ(part, 0), lambda inner: tail.add(inner, 0, self._term(inner, at)))

    def _term(self, block: Block, point: Point) -> Value:
        refs = [
            tir.read(block, buffer, access, point)
            for buffer, access in zip(self.operands.inputs, self.space.accesses[: len(self.spec.inputs)], strict=False)
        ]
        at = spec_point(self.space, len(self.spec.extents), point)
        return tir.broadcast(Evaluator(block, refs, point=at).value(self.spec.expr, self.element), point.lanes)

    # ------------------------------------------------------------------------------------------------------ results

    def _deliver(self, block: Block, point: Point, row: Value, part: Value, offset: int, value: Value) -> None:
        """A finished value to the output, or a part's value to the workspace."""
        at = self._result_point(point, offset, tir.lanes_of(value))
        if self.plan.parts == 1:
            self._finish(block, at, value)
            return
        column = at.axes[self.plan.vector] if self.plan.columns else tir.index(0)
        place = (part * self.plan.rows() + row) * self.plan.width + column
        block.store(self.operands.workspace, place, value)

    def _result_point(self, point: Point, offset: int, lanes: int) -> Point:
        if not self.plan.columns:
            return point
        axis = self.plan.vector
        moved = point.at(axis, point.axes[axis] + offset) if offset else point
        return moved.vector(axis, lanes)

    def _finish(self, block: Block, point: Point, value: Value) -> None:
        count = len(self.spec.inputs)
        refs = [block.let(value, "acc")]
        buffers = self.operands.inputs[count:]
        for buffer, access in zip(buffers, self.space.accesses[count + 1 :], strict=True):
            refs.append(tir.read(block, buffer, access, point))
        at = spec_point(self.space, len(self.spec.extents), point)
        element = ELEMENT_TYPES[self.spec.output.type.dtype].tir
        result = Evaluator(block, refs, point=at).value(self.spec.epilogue, element)
        tir.write(block, self.operands.outputs[0], self.space.accesses[count], point, result)

    def _combine(self, body: Block) -> None:
        """Adds up the parts of every result, in order."""
        rows, width = self.plan.rows(), self.plan.width

        def result(block: Block, row: Value, column: Value | int, lanes: int) -> None:
            total: Value = None
            for part in range(self.plan.parts):
                place = (row + part * rows) * width + column
                value = block.let(tir.load(self.operands.workspace, place, lanes), "part")
                total = value if total is None else block.let(combined(self.spec.combine, total, value), "sum")
            point = self._outer_point(block, row)
            if self.plan.columns:
                point = point.at(self.plan.vector, column).vector(self.plan.vector, lanes)
            self._finish(block, point, total)

        def one_row(block: Block, row: Value) -> None:
            if not self.plan.columns:
                result(block, row, 0, 1)
                return
            block.loop(width // self.lanes, lambda inner, v: result(inner, row, v * self.lanes, self.lanes), name="v")
            for start, lanes in chunks(width, self.lanes):
                result(block, row, start, lanes)

        body.loop(rows, one_row, name="row")

"""Element-wise kernels: merged axes, one vector loop innermost, parallel over what is outside it."""

from __future__ import annotations

import math

from compiler.codegen.map.plan import CHUNKS_PER_THREAD, PARALLEL_ELEMENTS, MapPlan, Piece, plan
from compiler.codegen.tir import tir
from compiler.codegen.tir.expressions import Evaluator, spec_point
from compiler.codegen.tir.iteration import chunks
from compiler.codegen.tir.tir import Block, Operands, Point, PrimFunc, Value
from compiler.kernels.spec import MapSpec
from compiler.targets import CpuTarget


def emit(spec: MapSpec, target: CpuTarget, threads: int) -> PrimFunc:
    """TIR of an element-wise kernel."""
    operands = tir.declare(spec)
    body = tir.Block()
    chosen = plan(spec, target, threads)
    for piece in chosen.pieces:
        _Region(spec, operands, chosen, piece).emit(body)
    return tir.finish(spec, operands, body)


class _Region:
    """A piece of the iteration space, in which every one-axis guard is settled.

    Loops, from the outside: axes up to `last`, vectors along the innermost axis, and, if `tiled`, the axis before it.
    """

    def __init__(self, spec: MapSpec, operands: Operands, plan: MapPlan, piece: Piece) -> None:
        self.spec, self.operands, self.threads, self.lanes = spec, operands, plan.threads, plan.lanes
        self.space, self.tiled = piece.space, piece.tiled
        self.last = len(self.space.extents) - 1 - self.tiled
        self.start = tir.Point(tuple(tir.index(0) for _ in self.space.extents))

    def emit(self, body: Block) -> None:
        """Emits all points of the region."""
        rows = math.prod(self.space.extents[: max(self.last, 0)])
        if not self.space.extents:
            self._point(body, self.start)
        elif self.space.size < PARALLEL_ELEMENTS or self.threads == 1:
            self._rows(body, self.start, 0, parallel=False)
        elif rows >= 2 * self.threads:
            self._parallel_rows(body)
        else:
            self._rows(body, self.start, 0, parallel=True)

    def _parallel_rows(self, body: Block) -> None:
        """Fuses as few outer axes as give every thread several turns, and runs them in parallel."""
        fused, turns = 0, 1
        while turns < CHUNKS_PER_THREAD * self.threads and fused < self.last:
            turns *= self.space.extents[fused]
            fused += 1

        def turn(block: Block, position: Value) -> None:
            point, rest = self.start, position
            for axis in reversed(range(1, fused)):
                rest, place = tir.divide(block, rest, self.space.extents[axis])
                point = point.at(axis, place)
            point = point.at(0, rest)
            self._rows(block, point, fused, parallel=False)

        body.loop(turns, turn, kind="parallel", name="turn")

    def _rows(self, body: Block, point: Point, axis: int, *, parallel: bool) -> None:
        if axis == self.last:
            self._row(body, point, parallel=parallel)
            return
        body.loop(
            self.space.extents[axis],
            lambda block, i: self._rows(block, point.at(axis, i), axis + 1, parallel=parallel),
            name=f"i{axis}",
        )

    def _row(self, body: Block, point: Point, *, parallel: bool) -> None:
        """The innermost axis: full vectors, then what is left in narrower ones."""
        axis = len(self.space.extents) - 1
        extent = self.space.extents[axis]
        vectors = extent // self.lanes
        block_vectors = vectors // (CHUNKS_PER_THREAD * self.threads) if parallel else 0

        def vector(block: Block, number: Value, first: Value | None = None) -> None:
            place = number * self.lanes if first is None else (first * block_vectors + number) * self.lanes
            self._tile(block, point.at(axis, place).vector(axis, self.lanes))

        covered = 0
        if block_vectors:
            turns = vectors // block_vectors
            body.loop(
                turns,
                lambda turn, t: turn.loop(block_vectors, lambda b, v: vector(b, v, t), name="v"),
                kind="parallel",
                name="turn",
            )
            covered = turns * block_vectors
        body.loop(vectors - covered, lambda b, v: vector(b, v + covered), name="v")
        for start, width in chunks(extent, self.lanes):
            self._tile(body, point.at(axis, start).vector(axis, width))

    def _tile(self, body: Block, point: Point) -> None:
        """Emits one vector, or one for each position of the tile axis."""
        if not self.tiled:
            self._point(body, point)
            return
        axis = len(self.space.extents) - 2
        body.loop(self.space.extents[axis], lambda block, i: self._point(block, point.at(axis, i)), name="tile")

    def _point(self, body: Block, point: Point) -> None:
        """Emits everything at one point (or vector of points): all reads, all expressions, then all writes."""
        count = len(self.spec.inputs)
        refs = [
            tir.read(body, buffer, access, point)
            for buffer, access in zip(self.operands.inputs, self.space.accesses, strict=False)
        ]
        evaluator = Evaluator(body, refs, point=spec_point(self.space, len(self.spec.extents), point))
        outputs = self.space.accesses[count:]
        values = [
            body.let(tir.broadcast(evaluator.value(expr, access.type.element.tir_value), point.lanes), "y")
            for expr, access in zip(self.spec.exprs, outputs, strict=True)
        ]
        for buffer, access, value in zip(self.operands.outputs, outputs, values, strict=True):
            tir.write(body, buffer, access, point, value)

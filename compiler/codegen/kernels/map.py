"""Element-wise kernels: merged axes, one vector loop innermost, parallel over what is outside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.codegen.iteration import Space, chunks, indexed_axes, merge, regions, reorder, space_of
from compiler.kernel_spec import MapSpec
from compiler.targets import Target

if TYPE_CHECKING:
    from compiler.codegen.tir import Block, Operands, Point, PrimFunc, Value

PARALLEL_ELEMENTS = 16384
"""Fewer points than this are not worth waking other threads for."""
_MOST_REGIONS = 32
_CHUNKS_PER_THREAD = 4


def workspace_bytes(spec: MapSpec, target: Target, threads: int) -> int:
    """None is needed."""
    return 0


def arrange(space: Space, spec: MapSpec) -> Space:
    """Axes in the order of the first output's memory, unit ones dropped, even neighbours merged."""
    pinned = indexed_axes(*spec.exprs)
    strides = space.accesses[len(spec.inputs)].strides
    order = sorted(range(len(space.extents)), key=lambda axis: -abs(strides[axis]))
    kept = [axis for axis in order if space.extents[axis] > 1 or axis in pinned]
    return merge(reorder(space, kept or order[:1]), pinned) if order else space


def emit(spec: MapSpec, target: Target, threads: int) -> PrimFunc:
    """TIR of an element-wise kernel."""
    from compiler.codegen import tir

    operands = tir.declare(spec)
    body = tir.Block()
    for region in regions(space_of(spec.extents, spec.inputs + spec.outputs), _MOST_REGIONS):
        if region.size:
            _Region(spec, operands, arrange(region, spec), target, threads).emit(body)
    return tir.finish(spec, operands, body)


class _Region:
    """One piece of the iteration space in which every one-axis guard is settled."""

    def __init__(self, spec: MapSpec, operands: Operands, space: Space, target: Target, threads: int) -> None:
        from compiler.codegen import tir

        self.spec, self.operands, self.target, self.threads = spec, operands, target, threads
        self.space = space
        self.buffers = operands.inputs + operands.outputs
        self.lanes = target.lanes
        self.start = tir.Point(tuple(tir.index(0) for _ in space.extents))

    def emit(self, body: Block) -> None:
        """All points of the region."""
        outer = self.space.extents[:-1]
        rows = 1
        for extent in outer:
            rows *= extent
        if not self.space.extents:
            self._point(body, self.start)
        elif self.space.size < PARALLEL_ELEMENTS or self.threads == 1:
            self._rows(body, self.start, 0, parallel=False)
        elif rows >= 2 * self.threads:
            self._parallel_rows(body)
        else:
            self._rows(body, self.start, 0, parallel=True)

    def _parallel_rows(self, body: Block) -> None:
        """Fuse as few outer axes as give every thread several turns, and run them in parallel."""
        from compiler.codegen import tir

        fused, turns = 0, 1
        while turns < _CHUNKS_PER_THREAD * self.threads and fused < len(self.space.extents) - 1:
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
        if axis == len(self.space.extents) - 1:
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
        block_vectors = vectors // (_CHUNKS_PER_THREAD * self.threads) if parallel else 0

        def vector(block: Block, number: Value, first: Value | None = None) -> None:
            place = number * self.lanes if first is None else (first * block_vectors + number) * self.lanes
            self._point(block, point.at(axis, place).vector(axis, self.lanes))

        done = 0
        if block_vectors:
            turns = vectors // block_vectors
            body.loop(
                turns,
                lambda turn, t: turn.loop(block_vectors, lambda b, v: vector(b, v, t), name="v"),
                kind="parallel",
                name="turn",
            )
            done = turns * block_vectors
        body.loop(vectors - done, lambda b, v: vector(b, v + done), name="v")
        for start, width in chunks(extent, self.lanes):
            self._point(body, point.at(axis, start).vector(axis, width))

    def _point(self, body: Block, point: Point) -> None:
        """Everything at one point (or vector of points): all reads, all expressions, then all writes."""
        from compiler.codegen import tir
        from compiler.codegen.expressions import Evaluator, spec_point

        count = len(self.spec.inputs)
        refs = [
            tir.read(body, buffer, access, point)
            for buffer, access in zip(self.operands.inputs, self.space.accesses, strict=False)
        ]
        evaluator = Evaluator(body, refs, point=spec_point(self.space, len(self.spec.extents), point))
        outputs = self.space.accesses[count:]
        values = [
            body.let(tir.broadcast(evaluator.value(expr, _element(access.type.dtype)), point.lanes), "y")
            for expr, access in zip(self.spec.exprs, outputs, strict=True)
        ]
        for buffer, access, value in zip(self.operands.outputs, outputs, values, strict=True):
            tir.write(body, buffer, access, point, value)


def _element(dtype: str) -> str:
    from compiler.codegen import tir

    return "bool" if dtype == "bool" else tir.STORAGE[dtype]

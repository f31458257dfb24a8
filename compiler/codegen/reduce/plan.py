"""The schedule of a reduction: along which axis vectors run, and into how many parts threads share it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from compiler.codegen.tile.precision import loop_precision
from compiler.codegen.tir.iteration import FlatAccess, Space, expression_dtype, indexed_axes, merge, reorder, space_of
from compiler.element_types import ELEMENT_TYPES, SCRATCH, DType
from compiler.kernels.spec import ReduceSpec
from compiler.targets import CpuTarget

_PARALLEL_ELEMENTS = 16384
COLUMN_VECTORS = 4
"""Vectors of results that one pass over the reduced axes forms side by side."""
_TASKS_PER_THREAD = 2
_LEAST_SPLIT = 32
"""Fewest steps along the main reduced axis that make a part of its own."""


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """The plan of a reduction. Axes of `space` are the kept ones, then the reduced ones.

    `vector` is the axis that vectors run along; `main` the reduced axis that is blocked and split into `parts`
    (it is `vector` itself for row sums). `width` is the extent of the vector axis if it is kept, else 1. `lanes` sums
    fill a vector register.
    """

    space: Space
    kept_rank: int
    vector: int
    main: int
    parts: int
    lanes: int
    parallel: bool

    @property
    def columns(self) -> bool:
        """Whether vectors hold different results (the vector axis is kept)."""
        return self.vector < self.kept_rank

    @property
    def width(self) -> int:
        """Results along the vector axis."""
        return self.space.extents[self.vector] if self.columns else 1

    @property
    def outer(self) -> tuple[int, ...]:
        """Kept axes other than the vector axis."""
        return tuple(axis for axis in range(self.kept_rank) if axis != self.vector)

    @property
    def rest(self) -> tuple[int, ...]:
        """Reduced axes other than the main one."""
        return tuple(axis for axis in range(self.kept_rank, len(self.space.extents)) if axis != self.main)

    def rows(self) -> int:
        """Points of the outer axes."""
        return math.prod(self.space.extents[axis] for axis in self.outer)


def plan(spec: ReduceSpec, target: CpuTarget, threads: int) -> ReducePlan:
    """Arrange the axes and decide along which to vectorise and how many parts to sum apart."""
    space, kept_rank = arrange(spec)
    vector = vector_axis(space, kept_rank, largest(space, spec))
    reduced = range(kept_rank, len(space.extents))
    main = vector if vector >= kept_rank else max(reduced, key=lambda axis: (space.extents[axis], axis))
    lanes = loop_precision((element_dtype(spec),), target).sum_lanes
    arranged = ReducePlan(space, kept_rank, vector, main, 1, lanes, threads > 1 and space.size >= _PARALLEL_ELEMENTS)
    return replace(arranged, parts=_parts(spec, arranged, threads))


def arrange(spec: ReduceSpec) -> tuple[Space, int]:
    """Axes sorted (kept ones as the output lies, reduced ones as the largest input does) and merged; the kept count."""
    space = space_of(spec.extents, (*spec.inputs, spec.output, *spec.epilogue_inputs))
    pinned = indexed_axes(spec.expr, spec.epilogue)
    output = space.accesses[len(spec.inputs)].strides
    reading = largest(space, spec).strides
    live = [axis for axis in range(len(spec.extents)) if spec.extents[axis] > 1 or axis in pinned]
    kept_axes = sorted((axis for axis in live if output[axis]), key=lambda axis: -abs(output[axis]))
    reduced = sorted((axis for axis in live if not output[axis]), key=lambda axis: -abs(reading[axis]))
    if not reduced:  # nothing left to add up: keep one axis of one turn
        reduced = [axis for axis in spec.reduced if axis not in live][:1]
    merged = merge(reorder(space, kept_axes + reduced), pinned)
    return merged, sum(1 for stride in merged.accesses[len(spec.inputs)].strides if stride)


def largest(space: Space, spec: ReduceSpec) -> FlatAccess:
    """The input with most elements: its layout decides."""
    return max(space.accesses[: len(spec.inputs)] or space.accesses, key=lambda access: access.type.size)


def vector_axis(space: Space, kept_rank: int, reading: FlatAccess) -> int:
    """The axis along which the largest input is contiguous; else the longest kept one, else the longest of all."""
    axes = range(len(space.extents))
    for axis in axes:
        if reading.strides[axis] == 1 and space.extents[axis] > 1:
            return axis
    return max(range(kept_rank) or axes, key=lambda axis: space.extents[axis])


def _parts(spec: ReduceSpec, arranged: ReducePlan, threads: int) -> int:
    """Returns the number of parts that the main reduced axis is split into, so that each thread has work."""
    space, lanes = arranged.space, arranged.lanes
    if not arranged.parallel or not ELEMENT_TYPES[element_dtype(spec)].is_real:
        return 1
    columns = -(-arranged.width // (lanes * COLUMN_VECTORS)) if arranged.columns else 1
    tasks = arranged.rows() * columns
    if tasks >= _TASKS_PER_THREAD * threads:
        return 1
    steps = space.extents[arranged.main] // (1 if arranged.columns else lanes)
    parts = -(-2 * _TASKS_PER_THREAD * threads // tasks)
    return max(1, min(parts, steps // _LEAST_SPLIT))


def element_dtype(spec: ReduceSpec) -> DType:
    """The type of the terms; they are combined as `ElementType.sum` says."""
    return expression_dtype(spec.expr, [access.type.dtype for access in spec.inputs]) or "f32"


def workspace_bytes(spec: ReduceSpec, target: CpuTarget, threads: int) -> int:
    """Partial results of all parts; 0 if the reduction is not split."""
    arranged = plan(spec, target, threads)
    results = arranged.rows() * arranged.width
    return SCRATCH.item_bytes * arranged.parts * results if arranged.parts > 1 else 0

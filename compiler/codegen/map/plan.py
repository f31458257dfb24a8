"""The walk of an element-wise kernel over its points: merged axes, one vector loop innermost, tiles where it
transposes.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.tile.precision import LINE_BYTES, loop_precision
from compiler.codegen.tir.iteration import Space, indexed_axes, merge, regions, reorder, space_of, split, subspace
from compiler.kernels.spec import MapSpec
from compiler.targets import CpuTarget

PARALLEL_ELEMENTS = 16384
"""Fewer points than this are not worth waking other threads for."""
CHUNKS_PER_THREAD = 4
_MOST_REGIONS = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Points in which every one-axis guard is settled. `tiled`: the axis before the last is a tile of a transpose."""

    space: Space
    tiled: bool


@dataclass(frozen=True, slots=True)
class MapPlan:
    """The schedule of one kernel: its pieces one after the other, `lanes` points at a time."""

    lanes: int
    threads: int
    pieces: tuple[Piece, ...]


def plan(spec: MapSpec, target: CpuTarget, threads: int) -> MapPlan:
    """The schedule from the target's figures."""
    accesses = spec.inputs + spec.outputs
    precision = loop_precision((access.type.dtype for access in accesses), target)
    spaces = [region for region in regions(space_of(spec.extents, accesses), _MOST_REGIONS) if region.size]
    narrowest = min((access.type.element.item_bytes for access in accesses if access.type.element.is_real), default=4)
    line = LINE_BYTES // narrowest
    pieces = [piece for space in spaces for piece in tiles(arrange(space, spec), spec, line)]
    return MapPlan(precision.lanes, threads, tuple(pieces))


def workspace_bytes(spec: MapSpec, target: CpuTarget, threads: int) -> int:
    """Returns 0: no workspace is needed."""
    return 0


def arrange(space: Space, spec: MapSpec) -> Space:
    """Axes in the order of the first output's memory, unit ones dropped, even neighbours merged."""
    pinned = indexed_axes(*spec.exprs)
    strides = space.accesses[len(spec.inputs)].strides
    order = sorted(range(len(space.extents)), key=lambda axis: -abs(strides[axis]))
    remaining = [axis for axis in order if space.extents[axis] > 1 or axis in pinned]
    return merge(reorder(space, remaining or order[:1]), pinned) if order else space


def transposed_axis(space: Space, spec: MapSpec) -> int | None:
    """The axis along which an input is contiguous that jumps along the innermost axis; None if there is none."""
    pinned = indexed_axes(*spec.exprs)
    guarded = {axis for access in space.accesses for guard in access.guards for axis, _ in guard.terms}
    inner = len(space.extents) - 1
    for access in space.accesses[: len(spec.inputs)]:
        if access.never or abs(access.strides[inner]) <= 1:
            continue
        for axis in range(inner):
            free = axis not in guarded and space.origins[axis] not in pinned
            if access.strides[axis] == 1 and space.extents[axis] > 1 and free:
                return axis
    return None


def tiles(space: Space, spec: MapSpec, line: int) -> list[Piece]:
    """A transposing space in pieces whose last axis but one is a short piece of the input's contiguous axis.

    Looping over that piece inside the vector loop uses every element of the cache lines (of `line` elements) that a
    vector touches.
    """
    axis = transposed_axis(space, spec) if space.extents else None
    if axis is None:
        return [Piece(space, tiled=False)]
    extent = space.extents[axis]
    tile = min(line, extent)
    whole = extent - extent % tile
    pieces = [(0, whole, tile)] + ([(whole, extent, extent - whole)] if whole < extent else [])
    result = []
    for start, stop, size in pieces:
        bounds = [(0, other) for other in space.extents]
        bounds[axis] = (start, stop)
        piece = subspace(space, bounds)
        result.append(Piece(split(piece, axis, size, len(space.extents) - 1), tiled=True))
    return result

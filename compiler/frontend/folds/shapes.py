"""The ways in which ONNX states shapes: reshape targets, axes, slice bounds, split sizes. All results are static."""

from __future__ import annotations

from math import prod

from compiler.errors import ModelShapeError
from compiler.frontend.call import Call


def reshape_target(call: Call, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The output shape of Reshape (0 copies an extent, -1 is inferred) and Flatten."""
    if call.node.op_type == "Flatten":
        axis = call.attributes.integer("axis", 1)
        if not -len(shape) <= axis <= len(shape):
            raise ModelShapeError(f"axis {axis} of a tensor of rank {len(shape)}", where=call.node.where)
        axis += len(shape) if axis < 0 else 0
        return (prod(shape[:axis]), prod(shape[axis:]))
    target = list(call.integers(1, "the target shape"))
    if not call.attributes.integer("allowzero", 0):
        for position, extent in enumerate(target):
            if extent == 0 and position >= len(shape):
                raise ModelShapeError(f"target {target} copies axis {position} of {list(shape)}", where=call.node.where)
            target[position] = shape[position] if extent == 0 else extent
    return _inferred(call, target, shape)


def _inferred(call: Call, target: list[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    fixed = prod(extent for extent in target if extent != -1)
    if target.count(-1) == 1 and fixed > 0 and prod(shape) % fixed == 0:
        target[target.index(-1)] = prod(shape) // fixed
    if min(target, default=0) < 0 or prod(target) != prod(shape):
        raise ModelShapeError(
            f"{list(shape)} does not reshape to {target}",
            where=call.node.where,
            hint="if a dimension was exported as a fixed number, export it as dynamic",
        )
    return tuple(target)


def squeeze_axes(call: Call, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The output shape of Squeeze."""
    if call.has(1):
        axes = call.axes(call.integers(1, "the axes"), len(shape))
    else:
        axes = tuple(i for i, extent in enumerate(shape) if extent == 1)
    for axis in axes:
        if shape[axis] != 1:
            raise ModelShapeError(f"cannot squeeze axis {axis} of {list(shape)}", where=call.node.where)
    return tuple(extent for i, extent in enumerate(shape) if i not in axes)


def unsqueezed(call: Call, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The output shape of Unsqueeze."""
    axes = call.integers(1, "the axes")
    rank = len(shape) + len(axes)
    places = call.axes(axes, rank)
    rest = iter(shape)
    return tuple(1 if i in places else next(rest) for i in range(rank))


def slice_bounds(call: Call, shape: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """(axis, start, stop, step) of Slice, clamped to the shape; a negative step may stop at -1 (before the first)."""
    starts, stops = call.integers(1, "the starts"), call.integers(2, "the ends")
    axes = call.integers(3, "the axes") if call.has(3) else tuple(range(len(starts)))
    steps = call.integers(4, "the steps") if call.has(4) else (1,) * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps):
        call.fail("starts, ends, axes and steps differ in length")
    bounds = []
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        place = call.axis(axis, len(shape))
        if step == 0:
            call.fail("step 0")
        bounds.append((place, *slice(start, stop, step).indices(shape[place])))
    return bounds


def split_sizes(call: Call, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """(axis, extents of the parts) of Split."""
    axis = call.axis(call.attributes.integer("axis", 0), len(shape))
    call.attributes.ignore("num_outputs")
    count = len(call.node.outputs)
    if call.has(1):
        sizes = call.integers(1, "the sizes")
    else:
        part = -(-shape[axis] // count)
        sizes = tuple(min(part, shape[axis] - i * part) for i in range(count))
    if sum(sizes) != shape[axis] or min(sizes) < 0 or len(sizes) != count:
        raise ModelShapeError(f"axis {axis} of {list(shape)} does not split into {list(sizes)}", where=call.node.where)
    return axis, sizes

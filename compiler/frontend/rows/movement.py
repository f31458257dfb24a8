"""Import rows: reshapes, transposes, slices, joins and lookups."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Known, Operand
from compiler.frontend.shapes import reshape_target, slice_bounds, split_sizes, squeeze_axes, unsqueezed
from compiler.graph import Array
from compiler.values import Value


def _reshape(call: Call) -> Operand:
    return call.reshape(call.value(0), reshape_target(call, call.shape(0)))


def _squeeze(call: Call) -> Operand:
    return call.reshape(call.value(0), squeeze_axes(call, call.shape(0)))


def _unsqueeze(call: Call) -> Operand:
    return call.reshape(call.value(0), unsqueezed(call, call.shape(0)))


def _transpose(call: Call) -> Operand:
    perm = call.attributes.integers("perm") or tuple(reversed(range(call.rank(0))))
    if sorted(perm) != list(range(call.rank(0))):
        call.fail(f"perm {list(perm)} is not a permutation of {call.rank(0)} axes")
    return call.transpose(call.value(0), perm)


def _expand(call: Call) -> Operand:
    target = np.broadcast_shapes(call.shape(0), call.integers(1, "the target shape"))
    value = call.value(0)
    return value if call.shape_of(value) == target else call.emit("broadcast_to", value, shape=target)


def _tile(call: Call) -> Operand:
    """[a, b] tiled (r, s) = [a, b] seen as [1, a, 1, b], broadcast to [r, a, s, b], seen as [r a, s b]."""
    repeats = call.integers(1, "the repeats")
    shape = call.shape(0)
    if len(repeats) != len(shape) or min(repeats, default=1) < 1:
        call.fail(f"repeats {list(repeats)} do not fit rank {len(shape)}")
    repeated = [i for i, count in enumerate(repeats) if count > 1]
    value = call.value(0)
    # One axis at a time keeps the rank within its limit.
    for axis in repeated:
        have = call.shape_of(value)
        spread = call.reshape(value, (*have[:axis], 1, *have[axis:]))
        spread = call.emit("broadcast_to", spread, shape=(*have[:axis], repeats[axis], *have[axis:]))
        value = call.reshape(spread, (*have[:axis], have[axis] * repeats[axis], *have[axis + 1 :]))
    return value


def cut(call: Call, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """value[..., start:stop:step, ...] along one axis."""
    return call.cut(value, axis, start, stop, step)


def _slice(call: Call) -> Operand:
    value = call.value(0)
    for axis, start, stop, step in slice_bounds(call, call.shape(0)):
        picked = np.arange(start, stop, step)
        if picked.size == 0:
            call.fail(f"slice {start}:{stop}:{step} of axis {axis} is empty", "a run-time tensor needs an element")
        if step == 1:
            value = cut(call, value, axis, start, stop)
        else:
            # A lookup has a gradient for every step, negative ones included.
            value = call.emit("gather", value, call.constant(picked.astype(np.int64)), axis=axis)
    return value


def _split(call: Call) -> tuple[Operand, ...]:
    axis, sizes = split_sizes(call, call.shape(0))
    value = call.value(0)
    ends = np.cumsum(sizes).tolist()
    return tuple(cut(call, value, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


def _concat(call: Call) -> Operand:
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    values = [call.value(i) for i in range(len(call.operands)) if call.shape(i)[axis] > 0]
    return values[0] if len(values) == 1 else call.emit("concat", *values, axis=axis)


def _pad(call: Call) -> Operand:
    mode = call.attributes.text("mode", "constant")
    if mode != "constant":
        call.unsupported(f"mode {mode!r} is not supported", "use constant padding")
    shape = call.shape(0)
    axes = call.axes_in_order(call.integers(3, "the axes"), len(shape)) if call.has(3) else tuple(range(len(shape)))
    pads = call.integers(1, "the pads")
    if len(pads) != 2 * len(axes):
        call.fail(f"{len(pads)} pads for {len(axes)} axes")
    before, after = [0] * len(shape), [0] * len(shape)
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    return _padded(call, before, after, _pad_value(call))


def _pad_value(call: Call) -> float:
    return float(call.array(2, "the padding value").reshape(-1)[0]) if call.has(2) else 0.0


def _padded(call: Call, before: list[int], after: list[int], fill: float) -> Value:
    value = call.value(0)
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        value = cut(call, value, axis, max(-first, 0), call.shape_of(value)[axis] - max(-last, 0))
    widths = tuple(max(width, 0) for width in before), tuple(max(width, 0) for width in after)
    if not any((*widths[0], *widths[1])):
        return value
    return call.emit("pad", value, before=widths[0], after=widths[1], value=fill)


def _gather(call: Call) -> Operand:
    """Lookup along one axis; the rows of a float initializer are an embedding."""
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    index = _checked_index(call, call.shape(0)[axis])
    if isinstance(index, Known) and index.array.ndim == 0:
        value = cut(call, call.value(0), axis, *_one(int(index.array), call.shape(0)[axis]))
        return call.reshape(value, [extent for i, extent in enumerate(call.shape(0)) if i != axis])
    table = call.known(0)
    if table is not None and table.source and table.array.ndim == 2 and axis == 0:
        value = call.scope.parameter(table, (0, 1), kind="weight")
    else:
        value = call.value(0)
    return call.emit("gather", value, call.scope.value(index), axis=axis)


def _one(index: int, extent: int) -> tuple[int, int]:
    start = index % extent
    return start, start + 1


def _checked_index(call: Call, extent: int) -> Operand:
    index = call.operand(1)
    call.require_dtype(1, ("i64", "i32"))
    if isinstance(index, Known) and index.array.size:
        low, high = int(index.array.min()), int(index.array.max())
        if not -extent <= low <= high < extent:
            call.fail(f"index {low if low < -extent else high} of an axis of extent {extent}")
    return index


def _gather_nd(call: Call) -> Operand:
    """Indices [..., k] into the first k axes: those are flattened, and the index with them."""
    if call.attributes.integer("batch_dims", 0):
        call.unsupported("batch_dims is not supported")
    shape, index_shape = call.shape(0), call.shape(1)
    depth = index_shape[-1]
    if not 1 <= depth <= len(shape):
        call.fail(f"indices of depth {depth} into rank {len(shape)}")
    flat = call.reshape(call.value(0), (prod(shape[:depth]), *shape[depth:]))
    strides = np.asarray([prod(shape[i + 1 : depth]) for i in range(depth)], np.int64)
    return call.emit("gather", flat, _flat_index(call, strides, np.asarray(shape[:depth])), axis=0)


def _flat_index(call: Call, strides: Array, extents: Array) -> Value:
    known = call.known(1)
    if known is not None:
        wrapped = np.where(known.array < 0, known.array + extents, known.array)
        if bool(((wrapped < 0) | (wrapped >= extents)).any()):
            call.fail(f"an index lies outside {extents.tolist()}")
        return call.constant((wrapped * strides).sum(axis=-1).astype(np.int64))
    call.require_dtype(1, ("i64",))
    index = call.value(1)
    negative = call.emit("less", index, call.scalar(0, index))
    wrapped_value = call.emit(
        "where", negative, call.emit("add", index, call.constant(extents.astype(np.int64))), index
    )
    last = len(call.shape_of(index)) - 1
    total: Value | None = None
    for column, stride in enumerate(strides.tolist()):
        one = cut(call, wrapped_value, last, column, column + 1)
        one = call.reshape(one, call.shape_of(one)[:-1])
        one = call.emit("mul", one, call.scalar(stride, one)) if stride != 1 else one
        total = call.emit("add", total, one) if total is not None else one
    assert total is not None
    return total


def _gather_elements(call: Call) -> Operand:
    """y[i, j] = data[index[i, j], j] (axis 0): a lookup in the flattened data."""
    shape, index_shape = call.shape(0), call.shape(1)
    axis = call.axis(call.attributes.integer("axis", 0), len(shape))
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    grid = np.indices(index_shape, sparse=True)
    base = sum((grid[i] * strides[i] for i in range(len(shape)) if i != axis), np.zeros((), np.int64))
    flat = call.reshape(call.value(0), (prod(shape),))
    index = _checked_index(call, shape[axis])
    if isinstance(index, Known):
        wrapped = np.where(index.array < 0, index.array + shape[axis], index.array)
        chosen = call.constant(np.asarray(wrapped * strides[axis] + base, np.int64))
    else:
        chosen = _run_time_elements(call, shape[axis], strides[axis], np.asarray(base, np.int64))
    return call.emit("gather", flat, chosen, axis=0)


def _run_time_elements(call: Call, extent: int, stride: int, base: Array) -> Value:
    call.require_dtype(1, ("i64",))
    index = call.value(1)
    negative = call.emit("less", index, call.scalar(0, index))
    wrapped = call.emit("where", negative, call.emit("add", index, call.scalar(extent, index)), index)
    return call.emit("add", call.emit("mul", wrapped, call.scalar(stride, index)), call.constant(base))


def _trilu(call: Call) -> Operand:
    """The upper or lower triangle: the rest becomes zero."""
    call.require_dtype(0, REAL)
    offset = int(call.array(1, "the diagonal").reshape(-1)[0]) if call.has(1) else 0
    shape = call.shape(0)
    if len(shape) < 2:
        call.fail("needs a matrix")
    ones = np.ones(shape[-2:], bool)
    keep = np.triu(ones, offset) if call.attributes.integer("upper", 1) else np.tril(ones, offset)
    value = call.value(0)
    return call.emit("where", call.constant(keep), value, call.scalar(0.0, value))


def _depth_to_space(call: Call) -> Operand:
    """Source: ONNX DepthToSpace, modes DCR and CRD."""
    block = call.attributes.integer("blocksize", 1)
    n, c, h, w = _image(call, block > 0)
    mode = call.attributes.text("mode", "DCR")
    if c % (block * block):
        call.fail(f"{c} channels do not split into blocks of {block}")
    rest = c // (block * block)
    split = (n, block, block, rest, h, w) if mode == "DCR" else (n, rest, block, block, h, w)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    moved = call.transpose(call.reshape(call.value(0), split), perm)
    return call.reshape(moved, (n, rest, h * block, w * block))


def _space_to_depth(call: Call) -> Operand:
    block = call.attributes.integer("blocksize", 1)
    n, c, h, w = _image(call, block > 0)
    if h % block or w % block:
        call.fail(f"{h} x {w} does not split into blocks of {block}")
    split = (n, c, h // block, block, w // block, block)
    moved = call.transpose(call.reshape(call.value(0), split), (0, 3, 5, 1, 2, 4))
    return call.reshape(moved, (n, c * block * block, h // block, w // block))


def _image(call: Call, valid: bool) -> tuple[int, int, int, int]:
    shape = call.shape(0)
    if len(shape) != 4 or not valid:
        call.fail("needs a tensor [N, C, H, W] and a positive block size")
    return (shape[0], shape[1], shape[2], shape[3])


ROWS: Mapping[str, Rule] = {
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}

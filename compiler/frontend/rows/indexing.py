"""Import rows: elements and slices picked and put by index.

Source: ONNX Gather, GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter, OneHot, Compress,
ReverseSequence. Of several updates of one place without a reduction the last one counts, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.element_types import ELEMENT_TYPES, NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.references import advice
from compiler.frontend.folds.sizes import sized
from compiler.frontend.pieces import checked_index
from compiler.frontend.scope import KnownOperand, Operand
from compiler.graph import Array
from compiler.values import Value

SCATTER_REDUCE = "aten.scatter_reduce.two"
EMBEDDING = "aten.embedding.default"
"""PyTorch's call, whose third argument is the row of padding: it never learns. (ONNX's Gather cannot say so.)"""

# ------------------------------------------------------------------------------------------------------------ picking


def _gather(call: Call) -> Operand:
    """Lookup along one axis; the rows of a float initializer are an embedding."""
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    index = checked_index(call, 1, call.shape(0)[axis])
    if isinstance(index, KnownOperand) and index.array.ndim == 0:
        value = call.cut(call.value(0), axis, *_one(int(index.array), call.shape(0)[axis]))
        return call.reshape(value, [extent for i, extent in enumerate(call.shape(0)) if i != axis])
    table = call.known_operand(0)
    if table is not None and table.source and table.array.ndim == 2 and axis == 0:
        value = call.scope.parameter(table, (0, 1), kind="weight")
        padding = call.node.call.number(2) if call.node.torch_op == EMBEDDING else None
        if padding is not None and 0 <= padding < table.array.shape[0]:
            return call.emit("embedding", value, call.scope.value(index), padding=padding)
    else:
        value = call.value(0)
    return call.emit("gather", value, call.scope.value(index), axis=axis)


def _one(index: int, extent: int) -> tuple[int, int]:
    start = index % extent
    return start, start + 1


def _gather_elements(call: Call) -> Operand:
    """y[i, j] = data[index[i, j], j] (axis 0); the index may be shorter along other axes."""
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    index = call.scope.value(checked_index(call, 1, call.shape(0)[axis]))
    data = _shortened(call, call.value(0), call.shape_of(index), axis)
    return call.emit("gather_elements", data, index, axis=axis)


def _shortened(call: Call, data: Value, shape: tuple[int, ...], axis: int) -> Value:
    """The part of the data that an index of `shape` can name."""
    if len(shape) != len(call.shape_of(data)):
        call.fail(f"indices of shape {list(shape)} for data of shape {list(call.shape_of(data))}")
    for other, extent in enumerate(shape):
        if other != axis:
            data = call.cut(data, other, 0, extent)
    return data


@dataclass(frozen=True, slots=True)
class _Slices:
    """Indices [batch ..., n ..., depth] into data: `index` [batch, n] names slices of `inner` elements."""

    index: Value | Array
    batch: int
    rows: int
    count: int
    inner: int
    picked: tuple[int, ...]
    """Shape of what the indices name."""


def _slices(call: Call, batch_dims: int) -> _Slices:
    shape, index_shape = call.shape(0), call.shape(1)
    if not 0 <= batch_dims < min(len(shape), len(index_shape)) or shape[:batch_dims] != index_shape[:batch_dims]:
        call.fail(f"batch_dims {batch_dims} of data {list(shape)} and indices {list(index_shape)}")
    depth = index_shape[-1]
    if not 1 <= depth <= len(shape) - batch_dims:
        call.fail(f"indices of depth {depth} into rank {len(shape) - batch_dims}")
    indexed_extents = shape[batch_dims : batch_dims + depth]
    strides = np.asarray([prod(indexed_extents[i + 1 :]) for i in range(depth)], np.int64)
    batch, rest = prod(shape[:batch_dims]), shape[batch_dims + depth :]
    flat = _flat_index(call, strides, np.asarray(indexed_extents))
    count = prod(index_shape[batch_dims:-1])
    return _Slices(flat, batch, prod(indexed_extents), count, prod(rest), (*index_shape[:-1], *rest))


def _gather_nd(call: Call) -> Operand:
    """Indices [..., k] into the first k axes after the batch: those are flattened, and the index with them."""
    slices = _slices(call, call.attributes.integer("batch_dims", 0))
    if slices.batch == 1:
        flat = call.reshape(call.value(0), (slices.rows, slices.inner))
        gathered = call.emit("gather", flat, _index_view(call, slices.index, (slices.count,)), axis=0)
    else:
        data = call.reshape(call.value(0), (slices.batch, slices.rows, slices.inner))
        index = _index_view(call, slices.index, (slices.batch, slices.count, 1))
        gathered = call.emit("gather_elements", data, index, axis=1)
    return call.reshape(gathered, slices.picked)


def _index_view(call: Call, index: Value | Array, shape: tuple[int, ...]) -> Value:
    """An index in another shape; a known one stays a constant."""
    return call.reshape(index, shape) if isinstance(index, Value) else call.constant(index.reshape(shape))


def _flat_index(call: Call, strides: Array, extents: Array) -> Value | Array:
    constant = call.known_operand(1)
    if constant is not None:
        wrapped = np.where(constant.array < 0, constant.array + extents, constant.array)
        if bool(((wrapped < 0) | (wrapped >= extents)).any()):
            call.fail(f"an index lies outside {extents.tolist()}")
        return np.asarray((wrapped * strides).sum(axis=-1), np.int64)
    call.require_dtype(1, ("i64",))
    if len(strides) == 1:
        return call.reshape(call.value(1), call.shape(1)[:-1])
    wrapped_value = _from_front(call, call.value(1), extents)
    last = len(call.shape_of(wrapped_value)) - 1
    total: Value | None = None
    for column, stride in enumerate(strides.tolist()):
        offset = call.cut(wrapped_value, last, column, column + 1)
        offset = call.reshape(offset, call.shape_of(offset)[:-1])
        offset = call.emit("mul", offset, call.scalar(stride, offset)) if stride != 1 else offset
        total = call.emit("add", total, offset) if total is not None else offset
    assert total is not None
    return total


def _from_front(call: Call, index: Value, extents: Array) -> Value:
    """Run-time indices with negative ones counted from the front."""
    negative = call.emit("less", index, call.scalar(0, index))
    count = call.constant(extents.astype(np.int64))
    return call.emit("where", negative, call.emit("add", index, count), index)


# ------------------------------------------------------------------------------------------------------------ putting

Scatter = Callable[[Call, Value, Value, Value, int], Value]
"""(call, data, index, updates, axis) -> data with updates; the index has extent 1 where it is the same for all."""


def _overwrite(call: Call, data: Value, index: Value, updates: Value, axis: int) -> Value:
    """Writes to each place its last update, if it has one."""
    rows = call.shape_of(data)[axis]
    _warn_of_repeats(call, call.scope.builder.arrays.get(index), axis, rows)
    last_writers = call.emit("last_writer", index, axis=axis, rows=rows)
    is_unwritten = call.emit("less", last_writers, call.scalar(1, last_writers))
    writer = call.emit("sub", last_writers, call.scalar(1, last_writers))
    latest = call.emit("gather_elements", updates, _at_least_zero(call, writer), axis=axis)
    return call.emit("where", is_unwritten, data, latest)


def _warn_of_repeats(call: Call, index: Array | None, axis: int, rows: int) -> None:
    """Warns where known updates overwrite each other: some exporters write sums so."""
    if index is None:
        return
    ordered = np.sort(np.where(index < 0, index + rows, index), axis=axis)
    if bool((np.diff(ordered, axis=axis) == 0).any()):
        call.scope.warn(
            "model.repeated_positions",
            "several updates go to one place, and no reduction says what becomes of them: the last one counts",
            where=call.node.where,
            hint=advice("sums", call.scope.producer),
        )


def _at_least_zero(call: Call, value: Value) -> Value:
    zero = call.scalar(0, value)
    return call.emit("where", call.emit("less", value, zero), zero, value)


def _add(call: Call, data: Value, index: Value, updates: Value, axis: int) -> Value:
    rows = call.shape_of(data)[axis]
    total = _total_of_runs(call, index, updates, rows) if axis == 0 else None
    if total is None:
        total = call.emit("scatter_elements_add", index, updates, axis=axis, rows=rows)
    constant = call.known_operand(0)
    empty = constant is not None and not constant.trainable and not constant.array.any()
    return total if empty else call.emit("add", data, total)


def _total_of_runs(call: Call, index: Value, updates: Value, rows: int) -> Value | None:
    """The sums, where known positions are 0, 0, 0, 1, 1, 1 ... (bags of one size): sums over an axis."""
    positions, shape = call.scope.builder.arrays.get(index), call.shape_of(updates)
    if positions is None or positions.size != shape[0] or shape[0] % rows:
        return None
    if not np.array_equal(positions.reshape(-1), np.arange(shape[0]) // (shape[0] // rows)):
        return None
    runs = call.reshape(updates, (rows, shape[0] // rows, *shape[1:]))
    return call.emit("reduce_sum", runs, axes=(1,), keepdims=False)


def _combining(op: str) -> Scatter:
    return lambda call, data, index, updates, axis: call.emit(op, data, index, updates, axis=axis)


def _min(call: Call, data: Value, index: Value, updates: Value, axis: int) -> Value:
    turned = [call.emit("neg", value) for value in (data, updates)]
    return call.emit("neg", call.emit("scatter_elements_max", turned[0], index, turned[1], axis=axis))


_SCATTERS: Mapping[str, Scatter] = {
    "none": _overwrite,
    "add": _add,
    "max": _combining("scatter_elements_max"),
    "min": _min,
    "mul": _combining("scatter_elements_mul"),
}


def _reduction(call: Call) -> Scatter:
    name = call.attributes.text("reduction", "none")
    if name not in _SCATTERS:
        call.fail(f"reduction {name!r} is not part of the standard")
    if name != "none":
        call.require_dtype(0, NUMERIC)
    return _SCATTERS[name]


def _scatter_elements(call: Call) -> Operand:
    """Updates of the shape of the indices; those may be shorter than the data along other axes."""
    if call.node.torch_op == SCATTER_REDUCE and "mean" in call.node.call.written:
        call.unsupported(
            "PyTorch's exporter writes scatter_reduce(..., 'mean') as something else",
            "add with scatter_add, and divide by the number of updates",
        )
    axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
    index = call.scope.value(checked_index(call, 1, call.shape(0)[axis]))
    data, shape = call.value(0), call.shape_of(index)
    updates = _shortened(call, call.value(2), shape, axis)
    part = _shortened(call, data, shape, axis)
    updated = _reduction(call)(call, part, index, updates, axis)
    return _put_back(call, data, updated, axis)


def _put_back(call: Call, data: Value, part: Value, axis: int) -> Value:
    """The data with its first elements along other axes replaced."""
    whole = call.shape_of(data)
    for other in range(len(whole)):
        have = call.shape_of(part)
        if have[other] == whole[other]:
            continue
        rest = call.cut(data, other, have[other], whole[other])
        for inner in range(other + 1, len(whole)):
            rest = call.cut(rest, inner, 0, have[inner])
        part = call.emit("concat", part, rest, axis=other)
    return part


def _scatter_nd(call: Call) -> Operand:
    """Updates [..., slice]; the slices that indices name lie one behind the other."""
    slices = _slices(call, 0)
    data = call.reshape(call.value(0), (slices.rows, slices.inner))
    updates = call.reshape(call.value(2), (slices.count, slices.inner))
    index = _index_view(call, slices.index, (slices.count, 1))
    return call.reshape(_reduction(call)(call, data, index, updates, 0), call.shape(0))


def _tensor_scatter(call: Call) -> Operand:
    """A cache [batch, ..., length, ...] whose elements from a sample's position on are replaced."""
    shape, updates = call.shape(0), call.value(1)
    axis = call.axis(call.attributes.integer("axis", -2), len(shape))
    mode = call.attributes.text("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        call.fail(f"axis {axis} with mode {mode!r} is not part of the standard")
    count = call.shape(1)[axis]
    steps = np.arange(count, dtype=np.int64)
    if call.has(2):
        _check_places(call, 2, shape[axis] - (count if mode == "linear" else 1), "first positions")
        starts = call.reshape(call.value(2), (shape[0], 1))
        index = call.emit("add", starts, call.constant(steps[None]))
    else:
        index = call.constant(np.broadcast_to(steps, (shape[0], count)).copy())
    if mode == "circular":
        over = call.emit("less_equal", call.scalar(shape[axis], index), index)
        index = call.emit("where", over, call.emit("sub", index, call.scalar(shape[axis], index)), index)
    inner = prod(shape[axis + 1 :])
    between = prod(shape[1:axis])
    flat = call.reshape(call.value(0), (shape[0], between, shape[axis], inner))
    wide = call.emit("broadcast_to", call.reshape(index, (shape[0], 1, count, 1)), shape=(shape[0], between, count, 1))
    put = _overwrite_rows(call, flat, wide, call.reshape(updates, (shape[0], between, count, inner)))
    return call.reshape(put, shape)


def _check_places(call: Call, index: int, most: int, meaning: str) -> None:
    """Refuses known numbers that are not from 0 to `most`."""
    constant = call.known_operand(index)
    if constant is not None and not ((constant.array >= 0) & (constant.array <= most)).all():
        call.fail(f"{meaning} {constant.array.reshape(-1)[:8].tolist()}", f"they are from 0 to {most}")


def _overwrite_rows(call: Call, data: Value, index: Value, updates: Value) -> Value:
    return _overwrite(call, data, index, updates, 2)


# ------------------------------------------------------------------------------------------- made of positions


def _one_hot(call: Call) -> Operand:
    """[... depth ...]: the second value where the index is, the first elsewhere; indices out of range are nowhere."""
    call.require_dtype(0, ("i64", "i32", "f32"))
    depth = int(call.array(1, "the depth").reshape(-1)[0])
    shape = call.shape(0)
    axis = call.axis(call.attributes.integer("axis", -1), len(shape) + 1)
    if depth < 1:
        call.fail(f"depth {depth}", "a run-time tensor needs at least 1 element")
    index = call.reshape(call.value(0), (*shape[:axis], 1, *shape[axis:]))
    if call.dtype(0) != "i64":
        index = call.emit("cast", index, to="i64")
    index = _from_front(call, index, np.asarray(depth))
    sized(call, (depth,))
    line = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(len(shape) + 1)])
    values = call.value(2)
    off, on = (call.reshape(call.cut(values, 0, i, i + 1), ()) for i in range(2))
    return call.emit("where", call.emit("equal", index, call.constant(line)), on, off)


def _compress(call: Call) -> Operand:
    """The elements where a known condition holds."""
    keep = np.flatnonzero(call.array(1, "the condition"))
    axis = call.attributes.integer("axis", 0) if "axis" in call.attributes else None
    flat = call.reshape(call.value(0), (prod(call.shape(0)),)) if axis is None else call.value(0)
    along = 0 if axis is None else call.axis(axis, call.rank(0))
    if keep.size == 0 or int(keep.max()) >= call.shape_of(flat)[along]:
        call.fail(
            f"the condition picks {keep.size} of {call.shape_of(flat)[along]} elements", "it must pick some of them"
        )
    return call.emit("gather", flat, call.constant(keep.astype(np.int64)), axis=along)


def _reverse_sequence(call: Call) -> Operand:
    """The first elements of each sample in reverse order, as many as its length says."""
    shape = call.shape(0)
    time, batch = call.attributes.integer("time_axis", 0), call.attributes.integer("batch_axis", 1)
    if {time, batch} != {0, 1} or len(shape) < 2:
        call.fail(f"time axis {time} and batch axis {batch}", "they are 0 and 1")
    place = np.arange(shape[time], dtype=np.int64).reshape([-1 if i == time else 1 for i in range(2)])
    _check_places(call, 1, shape[time], "lengths")
    lengths = call.reshape(call.value(1), [shape[batch] if i == batch else 1 for i in range(2)])
    steps = call.constant(place)
    mirrored = call.emit("sub", call.emit("sub", lengths, call.scalar(1, lengths)), steps)
    index = call.emit("where", call.emit("less", steps, lengths), mirrored, steps)
    data = call.reshape(call.value(0), (*shape[:2], prod(shape[2:])))
    index = call.reshape(index, (*shape[:2], 1))
    if time == 0:
        index = call.emit("broadcast_to", index, shape=call.shape_of(data))
    return call.reshape(call.emit("gather_elements", data, index, axis=time), shape)


def _eye_like(call: Call) -> Operand:
    """Ones on a diagonal; only the shape of the operand matters."""
    rows, columns = call.shape(0)
    code = call.attributes.integer("dtype", 0)
    element = call.dtype(0) if not code else {1: "f32", 6: "i32", 7: "i64", 9: "bool"}.get(code)
    if element not in (*REAL, "i32", "i64", "bool"):
        call.unsupported(f"element type {code} is not supported", "export the model in float32")
    diagonal = np.eye(rows, columns, call.attributes.integer("k", 0))
    return call.emit("identity", call.constant(diagonal.astype(ELEMENT_TYPES[str(element)].numpy)))


ROWS: Mapping[str, Rule] = {
    "Compress": _compress,
    "EyeLike": _eye_like,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}

"""Shapes, and elements moved or repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.folds.shapes import reshape_target, slice_bounds, split_sizes, squeeze_axes, unsqueezed
from compiler.frontend.folds.sizes import Fold, sized
from compiler.frontend.folds.types import shape_vector
from compiler.graph import Array


def _constant_of_shape(call: Call, x: Sequence[Array]) -> Array:
    value = call.attributes.tensor("value")
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)
    return np.full(sized(call, [int(extent) for extent in x[0]]), fill[0], fill.dtype)


def _range(call: Call, x: Sequence[Array]) -> Array:
    start, limit, delta = (array.reshape(-1)[0] for array in x)
    if delta == 0:
        call.fail("step 0")
    count = max(ceil((float(limit) - float(start)) / float(delta)), 0)
    sized(call, (count,))
    return np.asarray(start + np.arange(count) * delta).astype(x[0].dtype)


def _expand(call: Call, x: Sequence[Array]) -> Array:
    shape = np.broadcast_shapes(x[0].shape, tuple(int(extent) for extent in x[1]))
    return np.broadcast_to(x[0], sized(call, shape)).copy()


def _tile(call: Call, x: Sequence[Array]) -> Array:
    repeats = [int(count) for count in x[1]]
    sized(call, [extent * count for extent, count in zip(x[0].shape, repeats, strict=True)])
    return np.tile(x[0], repeats)


def _concat(call: Call, x: Sequence[Array]) -> Array:
    return np.concatenate(list(x), axis=call.attributes.integer("axis", 0))


def _slice(call: Call, x: Sequence[Array]) -> Array:
    index = [slice(None)] * x[0].ndim
    for axis, start, stop, step in slice_bounds(call, x[0].shape):
        # A stop of -1 after clamping means "before the first element", which NumPy spells None.
        index[axis] = slice(start, stop if stop >= 0 else None, step)
    return x[0][tuple(index)]


def _split(call: Call, x: Sequence[Array]) -> tuple[Array, ...]:
    axis, sizes = split_sizes(call, x[0].shape)
    return tuple(np.split(x[0], np.cumsum(sizes)[:-1], axis=axis))


def _transpose(call: Call, x: Sequence[Array]) -> Array:
    return x[0].transpose(call.attributes.integers("perm"))


def _trilu(call: Call, x: Sequence[Array]) -> Array:
    offset = int(x[1].reshape(-1)[0]) if len(x) > 1 else 0
    return np.triu(x[0], offset) if call.attributes.integer("upper", 1) else np.tril(x[0], offset)


def _shape(call: Call, x: Sequence[Array]) -> Array:
    return shape_vector(call, x[0].shape)


FOLDS: Mapping[str, Fold] = {
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": lambda call, x: x[0].reshape(reshape_target(call, x[0].shape)),
    "Range": _range,
    "Reshape": lambda call, x: x[0].reshape(reshape_target(call, x[0].shape)),
    "Shape": _shape,
    "Size": lambda call, x: np.asarray(x[0].size, np.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": lambda call, x: x[0].reshape(squeeze_axes(call, x[0].shape)),
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": lambda call, x: x[0].reshape(unsqueezed(call, x[0].shape)),
}

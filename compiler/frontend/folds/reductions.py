"""Sums and other reductions over axes, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.folds.sizes import Fold, sized
from compiler.graph import Array


def _reduce(function: Callable[..., Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        axes = tuple(int(axis) for axis in x[1]) if len(x) > 1 else call.attributes.integers("axes")
        keep = bool(call.attributes.integer("keepdims", 1))
        untouched = bool(call.attributes.integer("noop_with_empty_axes", 0))
        if untouched and not axes:
            return x[0]
        chosen = call.axes(axes, x[0].ndim) if axes else None
        return np.asarray(function(x[0], axis=chosen, keepdims=keep)).astype(x[0].dtype, copy=False)

    return fold


def _matmul(call: Call, x: Sequence[Array]) -> Array:
    left = x[0].shape if x[0].ndim > 1 else (1, *x[0].shape)
    right = x[1].shape if x[1].ndim > 1 else (*x[1].shape, 1)
    sized(call, (*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1]))
    y = np.matmul(x[0], x[1])
    return np.asarray(y + x[2] if len(x) > 2 else y)  # a bias that the plan asks for


def _arg_max(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    keep = bool(call.attributes.integer("keepdims", 1))
    if not call.attributes.integer("select_last_index", 0):
        return np.asarray(np.argmax(x[0], axis=axis, keepdims=keep), np.int64)
    from_end = np.argmax(np.flip(x[0], axis), axis=axis, keepdims=keep)
    return np.asarray(x[0].shape[axis] - 1 - from_end, np.int64)


FOLDS: Mapping[str, Fold] = {
    "ArgMax": _arg_max,
    "MatMul": _matmul,
    "ReduceMax": _reduce(np.max),
    "ReduceMean": _reduce(np.mean),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
}

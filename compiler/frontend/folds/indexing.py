"""Elements picked, or put, by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.folds.sizes import Fold, sized
from compiler.graph import Array


def _gather(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    sized(call, [*x[0].shape[:axis], *x[1].shape, *x[0].shape[axis + 1 :]])
    return np.take(x[0], x[1], axis=axis)


def _gather_elements(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    cut = tuple(slice(None) if i == axis else slice(extent) for i, extent in enumerate(x[1].shape))
    return np.take_along_axis(x[0][cut], x[1], axis=axis)


def _gather_nd(call: Call, x: Sequence[Array]) -> Array:
    if call.attributes.integer("batch_dims", 0):
        call.unsupported("batch_dims is not supported")
    sized(call, [*x[1].shape[:-1], *x[0].shape[x[1].shape[-1] :]])
    return np.asarray(x[0][tuple(np.moveaxis(x[1], -1, 0))])


def _scatter_nd(call: Call, x: Sequence[Array]) -> Array:
    if call.attributes.text("reduction", "none") != "none":
        call.unsupported("a reduction is not supported")
    result = x[0].copy()
    result[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return result


FOLDS: Mapping[str, Fold] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda call, x: np.asarray(np.nonzero(x[0]), np.int64),
    "ScatterND": _scatter_nd,
}

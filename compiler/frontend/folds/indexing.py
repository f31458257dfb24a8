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
    batch, index = call.attributes.integer("batch_dims", 0), x[1]
    sized(call, [*index.shape[:-1], *x[0].shape[batch + index.shape[-1] :]])
    batch_indices = np.indices(index.shape[:-1], sparse=True)[:batch] if batch else ()
    return np.asarray(x[0][(*batch_indices, *np.moveaxis(index, -1, 0))])


_COMBINE: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _put(call: Call, data: Array, place: tuple[Array, ...], updates: Array) -> Array:
    """The data with updates, the last one of a place, or all of them combined."""
    reduction = call.attributes.text("reduction", "none")
    result = data.copy()
    if reduction == "none":
        result[place] = updates
    elif reduction in _COMBINE:
        _COMBINE[reduction].at(result, place, updates)
    else:
        call.fail(f"reduction {reduction!r} is not part of the standard")
    return result


def _scatter_nd(call: Call, x: Sequence[Array]) -> Array:
    return _put(call, x[0], tuple(np.moveaxis(x[1], -1, 0)), x[2])


def _scatter_elements(call: Call, x: Sequence[Array]) -> Array:
    axis = call.axis(call.attributes.integer("axis", 0), x[0].ndim)
    grids: Sequence[Array] = np.indices(x[1].shape, sparse=True)
    return _put(call, x[0], tuple(x[1] if i == axis else grid for i, grid in enumerate(grids)), x[2])


def _compress(call: Call, x: Sequence[Array]) -> Array:
    axis = call.attributes.integer("axis", 0) if "axis" in call.attributes else None
    return np.compress(x[1].astype(bool), x[0], axis=axis)


def _unique(call: Call, x: Sequence[Array]) -> tuple[Array, ...]:
    """The distinct elements (or slices), in order or as they come first, and where they are."""
    axis = call.attributes.integer("axis", 0) if "axis" in call.attributes else None
    along = None if axis is None else call.axis(axis, x[0].ndim)
    values, first, inverse, counts = np.unique(x[0], True, True, True, axis=along)
    inverse = inverse.reshape(-1)
    if not call.attributes.integer("sorted", 1):
        order = np.argsort(first, kind="stable")
        values, first, counts = np.take(values, order, axis=along or 0), first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return values, *(part.astype(np.int64) for part in (first, inverse, counts))


def _top_k(call: Call, x: Sequence[Array]) -> tuple[Array, ...]:
    call.attributes.ignore("sorted")
    axis, count = call.axis(call.attributes.integer("axis", -1), x[0].ndim), int(x[1].reshape(-1)[0])
    if not 0 <= count <= x[0].shape[axis]:
        call.fail(f"k is {count}, axis {axis} has {x[0].shape[axis]} elements")
    order = np.argsort(x[0], axis=axis, kind="stable")
    if call.attributes.integer("largest", 1):
        turned = np.argsort(np.flip(x[0], axis), axis=axis, kind="stable")
        order = x[0].shape[axis] - 1 - np.flip(turned, axis)
    index = np.take(order, np.arange(count), axis=axis).astype(np.int64)
    return np.take_along_axis(x[0], index, axis), index


def _running(call: Call, x: Sequence[Array], function: np.ufunc) -> Array:
    """Running sums or products, from either end, with or without the element itself."""
    axis = call.axis(int(x[1].reshape(-1)[0]), x[0].ndim)
    exclusive, reverse = (bool(call.attributes.integer(name, 0)) for name in ("exclusive", "reverse"))
    turned = np.flip(x[0], axis) if reverse else x[0]
    result = function.accumulate(turned, axis=axis, dtype=x[0].dtype)
    if exclusive:
        start = np.full_like(np.take(result, [0], axis), function.identity)
        result = np.concatenate([start, np.take(result, np.arange(result.shape[axis] - 1), axis)], axis)
    return np.asarray(np.flip(result, axis) if reverse else result)


FOLDS: Mapping[str, Fold] = {
    "Compress": _compress,
    "CumProd": lambda call, x: _running(call, x, np.multiply),
    "CumSum": lambda call, x: _running(call, x, np.add),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda call, x: np.asarray(np.nonzero(x[0]), np.int64),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
    "Unique": _unique,
}

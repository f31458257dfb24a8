"""Import rows: where the largest and smallest elements are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.pieces import over_axis
from compiler.frontend.scope import Operand
from compiler.values import Value


def _arg(*, largest: bool) -> Rule:
    """The first place of the extreme (or the last): the smallest position that does not lose against it."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, NUMERIC)
        x = call.value(0)
        if not largest:
            # Of integers, -1 - x: unlike -x it turns the order of all of them.
            x = call.emit("neg", x) if call.dtype(0) in REAL else call.emit("sub", call.scalar(-1, x), x)
        axis = call.axis(call.attributes.integer("axis", 0), call.rank(0))
        last = bool(call.attributes.integer("select_last_index", 0))
        keep = bool(call.attributes.integer("keepdims", 1))
        place = _place(call, x, axis, last=last)
        shape = call.shape(0)
        kept_shape = tuple(1 if i == axis else extent for i, extent in enumerate(shape))
        dropped = tuple(extent for i, extent in enumerate(shape) if i != axis)
        return call.emit("cast", call.reshape(place, kept_shape if keep else dropped), to="i64")

    return rule


def _place(call: Call, x: Value, axis: int, *, last: bool) -> Value:
    """Position of the maximum along the axis, which stays as a unit axis; a NaN is larger than all."""
    loses = _loses(call, x, call.emit("reduce_max", x, axes=(axis,), keepdims=True))
    rank, extent = len(call.shape_of(x)), call.shape_of(x)[axis]
    rising = np.arange(extent, dtype=np.int32)
    order = rising if last else rising[::-1].copy()
    ranks = call.constant(order.reshape([extent if i == axis else 1 for i in range(rank)]))
    hits = call.emit("where", loses, call.scalar(-1, ranks), ranks)
    position = call.emit("reduce_max", hits, axes=(axis,), keepdims=True)
    return position if last else call.emit("sub", call.scalar(extent - 1, position), position)


def _loses(call: Call, x: Value, top: Value) -> Value:
    below = call.emit("less", x, top)
    if call.scope.builder.types[x].dtype not in REAL:
        return below
    number = call.emit("not", call.emit("is_nan", x))
    return call.emit("or", below, call.emit("and", call.emit("is_nan", top), number))


def _hardmax(call: Call, x: Value, axis: int) -> Value:
    """1 at the first maximum along the axis, 0 elsewhere; no gradient."""
    shape = call.shape_of(x)
    place = _place(call, x, axis, last=False)
    positions = np.arange(shape[axis], dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return call.emit("cast", call.emit("equal", call.constant(positions), place), to=call.dtype(0))


ROWS: Mapping[str, Rule] = {"ArgMax": _arg(largest=True), "ArgMin": _arg(largest=False), "Hardmax": over_axis(_hardmax)}

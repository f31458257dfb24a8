"""Import rows: the largest and smallest elements in order, and running sums and products.

Source: ONNX TopK, CumSum, CumProd. Values keep their gradient: they are picked at the positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


def _top_k(call: Call) -> tuple[Operand, ...]:
    call.require_dtype(0, NUMERIC)
    shape = call.shape(0)
    axis = call.axis(call.attributes.integer("axis", -1), len(shape))
    call.attributes.ignore("sorted")  # sorted is one of the orders that unsorted leaves open
    count = int(call.array(1, "k").reshape(-1)[0])
    if not 1 <= count <= shape[axis]:
        call.fail(f"k is {count}, axis {axis} has {shape[axis]} elements")
    largest = bool(call.attributes.integer("largest", 1))
    index = call.emit("top_k", call.value(0), axis=axis, k=count, largest=largest)
    return call.emit("gather_elements", call.value(0), index, axis=axis), index


def _running(call: Call) -> tuple[int, bool, bool]:
    """(axis, exclusive, reverse); the axis is an operand."""
    axis = call.axis(int(call.array(1, "the axis").reshape(-1)[0]), call.rank(0))
    exclusive, reverse = (bool(call.attributes.integer(name, 0)) for name in ("exclusive", "reverse"))
    return axis, exclusive, reverse


def _cumulative_sum(call: Call) -> Operand:
    call.require_dtype(0, NUMERIC)
    axis, exclusive, reverse = _running(call)
    return call.emit("cumulative_sum", call.value(0), axis=axis, exclusive=exclusive, reverse=reverse)


def _cumulative_product(call: Call) -> Operand:
    """y[j] = x[j] y[j - 1] from y[0] = x[0]: a linear recurrence, whose gradient is right where x is zero."""
    call.require_dtype(0, REAL)
    axis, exclusive, reverse = _running(call)
    x, shape = call.value(0), call.shape(0)
    if exclusive:
        x = _moved_on(call, x, axis, reverse)
    first = np.zeros([shape[i] if i == axis else 1 for i in range(len(shape))], bool)
    first[tuple(-1 if reverse and i == axis else 0 for i in range(len(shape)))] = True
    start = call.emit("where", call.constant(first), x, call.scalar(0.0, x))
    return call.emit("linear_scan", x, start, axis=axis, reverse=reverse)


def _moved_on(call: Call, x: Value, axis: int, reverse: bool) -> Value:
    """Moves every element on by one along the axis; a one comes in."""
    extent = call.shape_of(x)[axis]
    before, after = [0] * len(call.shape_of(x)), [0] * len(call.shape_of(x))
    (after if reverse else before)[axis] = 1
    padded = call.emit("pad", x, before=tuple(before), after=tuple(after), value=1.0)
    return call.cut(padded, axis, int(reverse), extent + int(reverse))


ROWS: Mapping[str, Rule] = {
    "CumProd": _cumulative_product,
    "CumSum": _cumulative_sum,
    "TopK": _top_k,
}

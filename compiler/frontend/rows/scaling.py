"""Import rows: values divided by what lies around them: LRN, LpNormalization, MeanVarianceNormalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


def _local_response(call: Call) -> Operand:
    """y = x / (bias + alpha / size * sum of squares)^beta, the sum over `size` channels around each (axis 1).

    The sum is an average pool along the channels, which counts its zero padding. Source: ONNX LRN (13).
    """
    call.require_dtype(0, REAL)
    shape, size = call.shape(0), call.attributes.integer("size", 1)
    alpha, beta = call.attributes.number("alpha", 1e-4), call.attributes.number("beta", 0.75)
    if len(shape) < 2 or size < 1:
        call.fail(f"averages {size} channels of {list(shape)}; it needs [N, C, ...] and a size of 1 or more")
    x, before = call.value(0), (size - 1) // 2
    square = call.reshape(call.emit("mul", x, x), (shape[0], shape[1], 1, prod(shape[2:])))
    pads = (before, 0, size - 1 - before, 0)
    mean = call.emit("average_pool", square, kernel=(size, 1), strides=(1, 1), pads=pads, count_pads=True)
    mean = call.reshape(mean, shape)
    base = call.emit("mul", mean, call.scalar(alpha, mean))
    base = call.emit("add", base, call.scalar(call.attributes.number("bias", 1.0), base))
    return call.emit("mul", x, call.emit("pow", base, call.scalar(-beta, base)))


def _to_length_one(call: Call) -> Operand:
    """x divided by its p-norm along an axis; where that is 0, zeros, through which no gradient goes.

    Source: ONNX LpNormalization (22; before, what a norm of 0 gives was left open).
    """
    call.require_dtype(0, REAL)
    p, axis = call.attributes.integer("p", 2), call.axis(call.attributes.integer("axis", -1), call.rank(0))
    if p not in (1, 2):
        call.fail(f"p is {p}, it is 1 or 2")
    x = call.value(0)
    terms = call.emit("abs", x) if p == 1 else call.emit("mul", x, x)
    total = call.emit("reduce_sum", terms, axes=(axis,), keepdims=True)
    vanishes = call.emit("equal", total, call.scalar(0.0, total))
    # 1 in place of 0 before the division, not after it: 0 / 0 in the branch that is not taken has a NaN gradient.
    safe = call.emit("where", vanishes, call.scalar(1.0, total), total)
    factor = call.emit("reciprocal" if p == 1 else "rsqrt", safe)
    return call.emit("mul", x, call.emit("where", vanishes, call.scalar(0.0, total), factor))


def _mean_variance(call: Call) -> Operand:
    """(x - mean) / deviation over `axes`, which are moved to the end. Source: ONNX MeanVarianceNormalization (13).

    ONNX adds 1e-9 to the deviation, here its square to the variance: the same but where the deviation is as small.
    """
    call.require_dtype(0, REAL)
    shape, attribute = call.shape(0), call.attributes.integers("axes")
    axes = call.axes(attribute if attribute is not None else (0, 2, 3), len(shape))
    if not axes:
        call.fail("it names no axes")
    return over_axes(call, call.value(0), axes, epsilon=1e-18)


def over_axes(call: Call, x: Value, axes: Sequence[int], *, epsilon: float) -> Value:
    """x brought to mean 0 and variance 1 over some axes together."""
    shape = call.shape_of(x)
    remaining = [axis for axis in range(len(shape)) if axis not in axes]
    perm = [*remaining, *axes]
    moved = call.transpose(x, perm)
    rows = [shape[axis] for axis in remaining]
    flat = call.emit("normalize", call.reshape(moved, (*rows, prod(shape[axis] for axis in axes))), epsilon=epsilon)
    back = call.reshape(flat, call.shape_of(moved))
    return call.transpose(back, [perm.index(axis) for axis in range(len(shape))])


ROWS: Mapping[str, Rule] = {
    "LRN": _local_response,
    "LpNormalization": _to_length_one,
    "MeanVarianceNormalization": _mean_variance,
}

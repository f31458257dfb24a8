"""Weights of four bits, two in a byte, widened where they are read.

    dequantize_int4    W = s q: along a new axis, q[0] is the low and q[1] the high number of each byte p,
                       p = 16 high + low, both from -7 to 7
A byte holds a number of the first half of a tensor's channels and the one in the same place of the second half, so no
two lanes of a vector share a byte, and arithmetic parts them: high is p / 16 to the nearest whole number, which no low
one moves.
Source: signed four-bit integers by groups, arXiv 2210.17323 (GPTQ), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.access import Access, axis, broadcast, identity
from compiler.kernels.expressions import Binary, Const, Index, Ref, Select, Unary, add, mul, sub
from compiler.kernels.spec import MapSpec
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    broadcast_shape,
    elementwise_cost,
    integer,
)

LEVELS = 7
"""The largest number of four bits: the smallest is its opposite, so that nothing is shifted."""
_BASE = 16.0
"""The number of times that a high number is counted."""
_VALUES = ("whole:119", "positive")


def paired(whole: Array, along: int) -> Array:
    """Whole numbers from -7 to 7, 2 n of them along an axis -> n bytes: each half's number in the same place."""
    low, high = np.split(whole.astype(np.int8), 2, along)
    return np.asarray(np.int8(_BASE) * high + low, np.int8)


def _evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    pairs, scales = inputs
    high = np.floor(pairs / np.float32(_BASE) + np.float32(0.5))
    return (np.stack((pairs - np.float32(_BASE) * high, high), integer(attrs, "axis")) * scales,)


def _infer(inputs: Types, attrs: Attrs) -> Types:
    (pairs, scales), along = inputs, integer(attrs, "axis")
    shape = (*pairs.shape[:along], 2, *pairs.shape[along:])
    if broadcast_shape(shape, scales.shape) != shape:
        raise ModelShapeError(f"scales {scales} do not broadcast to the numbers of {pairs}, two in each")
    return (TensorType(pairs.dtype, shape),)


def _lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    (pairs, scales), along, shape = inputs, integer(attrs, "axis"), outputs[0].shape
    both = Access(pairs, tuple(axis(i) for i in range(len(shape)) if i != along))
    high = Unary("floor", add(mul(Ref(0), Const(1 / _BASE)), Const(0.5)))
    number = Select(Binary("lt", Index(along), Const(1)), sub(Ref(0), mul(Const(_BASE), high)), high)
    return MapSpec(shape, (both, broadcast(scales, shape)), (identity(outputs[0]),), (mul(number, Ref(1)),))


def _onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out, pairs, along = OnnxWriter(node.output), node.inputs[0], integer(node.attrs, "axis")
    high = out.add("Floor", out.add("Add", out.add("Mul", pairs, out.scalar(1 / _BASE)), out.scalar(0.5)))
    low = out.add("Sub", pairs, out.add("Mul", high, out.scalar(_BASE)))
    halves = [out.add("Unsqueeze", half, out.ints(along)) for half in (low, high)]
    out.add("Mul", out.add("Concat", *halves, axis=along), node.inputs[1], output=node.output)
    return out.nodes


DEQUANTIZE_INT4 = Operator(
    name="dequantize_int4",
    attributes=("axis",),
    infer=_infer,
    evaluate=_evaluate,
    grad=NotDifferentiable("only weights that never learn are held in four bits"),
    cost=elementwise_cost(6),
    lower=_lower,
    to_onnx=_onnx,
    examples=(
        Example((TensorType("f32", (3, 4, 5)), TensorType("f32", (3, 1, 2, 5))), {"axis": 2}, _VALUES),
        Example((TensorType("f32", (6, 2, 8)), TensorType("f32", (2, 6, 2, 1))), {"axis": 0}, _VALUES),
    ),
)

"""Softmax over the last axis, and its gradient.

    softmax          y = exp(x - max x) / sum           d_x = y (d_y - sum(y d_y))
    safe_softmax     the same, and 0 in a row that is -inf throughout
    log_softmax      y = x - max x - log sum exp        d_x = d_y - exp(y) sum(d_y)
Source: ONNX Softmax, LogSoftmax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.expressions import Binary, Const, Ref, Select, Stat, Unary, mul, sub
from compiler.kernels.spec import RowSpec
from compiler.ops.record import Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, reading_cost
from compiler.ops.rows import SECOND, Stage, over_rows, same_type

_X = TensorType("f32", (2, 3, 5))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def _softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = Unary("exp", sub(Ref(0), Stat(0)))
    return over_rows(inputs, outputs[0], (("max", Ref(0)), ("sum", shifted)), Binary("div", shifted, Stat(1)))


def _softmax_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    y, d_y = inputs
    total = np.where(d_y == 0, 0, y * d_y).sum(axis=-1, keepdims=True)
    return (np.where(d_y == total, 0, y * (d_y - total)),)


def _softmax_grad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    """Zero where nothing comes back, though y may be NaN: a guard behind the softmax put something in its place."""
    zero = Const(0.0)
    term = Select(Binary("eq", Ref(1), zero), zero, mul(Ref(0), Ref(1)))
    rest = sub(Ref(1), Stat(0))
    return over_rows(inputs, outputs[0], (("sum", term),), Select(Binary("eq", rest, zero), zero, mul(Ref(0), rest)))


def _softmax_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    (y, d_y), zero = node.inputs, out.scalar(0.0)
    term = out.add("Where", out.add("Equal", d_y, zero), zero, out.add("Mul", y, d_y))
    rest = out.add("Sub", d_y, out.add("ReduceSum", term, out.ints(-1), keepdims=1))
    out.add("Where", out.add("Equal", rest, zero), zero, out.add("Mul", y, rest), output=node.output)
    return out.nodes


SOFTMAX = Operator(
    name="softmax",
    attributes=(),
    infer=same_type,
    evaluate=lambda inputs, attrs: (softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_softmax_lower,
    to_onnx=lambda node, types: [OnnxNode("Softmax", node.inputs, node.outputs, {"axis": -1})],
    examples=(Example((_X,)),),
)

LOWEST = float(np.finfo(np.float32).min)
"""Stands for the maximum of a row that is -inf throughout, so that nothing is inf - inf."""


def _safe_softmax(x: Array) -> Array:
    shifted = np.exp(x - np.maximum(x.max(axis=-1, keepdims=True), x.dtype.type(LOWEST)))
    return np.asarray(shifted / np.maximum(shifted.sum(axis=-1, keepdims=True), 0.5))


def _safe_softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = Unary("exp", sub(Ref(0), Binary("max", Stat(0), Const(LOWEST))))
    # A row's largest element adds 1 to the sum; only one that is -inf throughout comes below 1/2.
    weights = Binary("div", shifted, Binary("max", Stat(1), Const(0.5)))
    return over_rows(inputs, outputs[0], (("max", Ref(0)), ("sum", shifted)), weights)


def _safe_softmax_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    top = out.add("Max", out.add("ReduceMax", node.inputs[0], out.ints(-1), keepdims=1), out.scalar(LOWEST))
    shifted = out.add("Exp", out.add("Sub", node.inputs[0], top))
    total = out.add("Max", out.add("ReduceSum", shifted, out.ints(-1), keepdims=1), out.scalar(0.5))
    out.add("Div", shifted, total, output=node.output)
    return out.nodes


SAFE_SOFTMAX = Operator(
    name="safe_softmax",
    attributes=(),
    infer=same_type,
    evaluate=lambda inputs, attrs: (_safe_softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_safe_softmax_lower,
    to_onnx=_safe_softmax_onnx,
    examples=(Example((_X,)),),
)

SOFTMAX_GRAD = Operator(
    name="softmax_grad",
    attributes=(),
    infer=same_type,
    evaluate=_softmax_grad_evaluate,
    grad=SECOND,
    cost=reading_cost(4),
    lower=_softmax_grad_lower,
    to_onnx=_softmax_grad_onnx,
    examples=(Example((_X, _X), values=("unit",)),),
)

# ------------------------------------------------------------------------------------------------------- log_softmax


def log_softmax(x: Array) -> Array:
    """Its logarithm, without taking one of a small number."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _log_softmax_lower(inputs: Types, outputs: Types, attrs: Attrs) -> RowSpec:
    shifted = sub(Ref(0), Stat(0))
    stages: tuple[Stage, ...] = (("max", Ref(0)), ("sum", Unary("exp", shifted)))
    return over_rows(inputs, outputs[0], stages, sub(shifted, Unary("log", Stat(1))))


def _log_softmax_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    y, d_y = inputs
    return (d_y - np.exp(y) * d_y.sum(axis=-1, keepdims=True),)


def _log_softmax_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    y, d_y = node.inputs
    total = out.add("ReduceSum", d_y, out.ints(-1), keepdims=1)
    out.add("Sub", d_y, out.add("Mul", out.add("Exp", y), total), output=node.output)
    return out.nodes


LOG_SOFTMAX = Operator(
    name="log_softmax",
    attributes=(),
    infer=same_type,
    evaluate=lambda inputs, attrs: (log_softmax(inputs[0]),),
    grad=lambda b, node, d, wanted: (b.emit("log_softmax_grad", node.output, d),),
    cost=reading_cost(20),
    lower=_log_softmax_lower,
    to_onnx=lambda node, types: [OnnxNode("LogSoftmax", node.inputs, node.outputs, {"axis": -1})],
    examples=(Example((_X,)),),
)

LOG_SOFTMAX_GRAD = Operator(
    name="log_softmax_grad",
    attributes=(),
    infer=same_type,
    evaluate=_log_softmax_grad_evaluate,
    grad=SECOND,
    cost=reading_cost(15),
    lower=lambda inputs, outputs, attrs: over_rows(
        inputs, outputs[0], (("sum", Ref(1)),), sub(Ref(1), mul(Unary("exp", Ref(0)), Stat(0)))
    ),
    to_onnx=_log_softmax_grad_onnx,
    examples=(Example((_X, _X)),),
)

SOFTMAX_OPERATORS = (SOFTMAX, SAFE_SOFTMAX, SOFTMAX_GRAD, LOG_SOFTMAX, LOG_SOFTMAX_GRAD)

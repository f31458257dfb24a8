"""Element-wise operators: those of one number, of two, clip, cast and where, and those that are singular."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import InternalError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Select, Unary
from compiler.kernels.spec import MapSpec
from compiler.ops.binary import BINARY_OPERATORS
from compiler.ops.broadcasting import pointwise, sum_to
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    broadcast_shape,
    elementwise_cost,
    number,
    text,
)
from compiler.ops.singular import SINGULAR
from compiler.ops.unary import UNARY_OPERATORS
from compiler.values import Value

_VECTOR = TensorType("f32", (2, 3, 5))
_ROW = TensorType("f32", (3, 1))
_BOOL = TensorType("bool", (2, 3, 5))


def _same(inputs: Types, attrs: Attrs) -> Types:
    return (inputs[0],)


def _clip_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    # Strictly inside, as hardtanh and ReLU6 define it; the output tells as much as the input and is kept anyway.
    low, high = number(node.attrs, "low"), number(node.attrs, "high")
    zero, d_x = b.constant(0.0), d_output
    if low != -np.inf:
        d_x = b.emit("where", b.emit("less", b.constant(low), node.output), d_x, zero)
    if high != np.inf:
        d_x = b.emit("where", b.emit("less", node.output, b.constant(high)), d_x, zero)
    return (d_x,)


def _clip_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    low, high = number(node.attrs, "low"), number(node.attrs, "high")
    bounds = ["" if np.isinf(bound) else out.scalar(bound) for bound in (low, high)]
    out.add("Clip", node.inputs[0], *bounds, output=node.output)
    return out.nodes


def _clip_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    expr: Expr = Ref(0)
    if number(attrs, "low") != -np.inf:
        expr = Binary("max", expr, Const(number(attrs, "low")))
    if number(attrs, "high") != np.inf:
        expr = Binary("min", expr, Const(number(attrs, "high")))
    return pointwise(inputs, outputs[0], expr)


CLIP = Operator(
    name="clip",
    attributes=("low", "high"),
    infer=_same,
    evaluate=lambda inputs, attrs: (np.clip(inputs[0], number(attrs, "low"), number(attrs, "high")),),
    grad=_clip_grad,
    cost=elementwise_cost(2),
    lower=_clip_lower,
    to_onnx=_clip_onnx,
    examples=(Example((_VECTOR,), {"low": 0.0, "high": 0.9}), Example((_VECTOR,), {"low": -0.5, "high": np.inf})),
)


def _cast_infer(inputs: Types, attrs: Attrs) -> Types:
    kind = text(attrs, "to")
    if kind not in ELEMENT_TYPES:
        raise InternalError(f"cast to {kind!r}")
    return (TensorType(kind, inputs[0].shape),)  # type: ignore[arg-type]


def _cast_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    element = ELEMENT_TYPES[text(attrs, "to")]
    # A float64 evaluation stays float64: a real type means "the real type of this run".
    if element.is_real and inputs[0].dtype == np.float64:
        return (inputs[0],)
    return (inputs[0].astype(element.numpy),)


def _cast_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    real = b.types[node.inputs[0]].element.is_real and b.types[node.output].element.is_real
    return (d_output if real else None,)


CAST = Operator(
    name="cast",
    attributes=("to",),
    infer=_cast_infer,
    evaluate=_cast_evaluate,
    grad=_cast_grad,
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], Unary(f"to_{outputs[0].dtype}", Ref(0))),
    to_onnx=lambda node, types: [
        OnnxNode("Cast", node.inputs, node.outputs, {"to": ELEMENT_TYPES[text(node.attrs, "to")].onnx})
    ],
    examples=(Example((_VECTOR,), {"to": "f32"}),),
)


def _where_infer(inputs: Types, attrs: Attrs) -> Types:
    return (TensorType(inputs[1].dtype, broadcast_shape(*(tensor.shape for tensor in inputs))),)


def _where_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    cond, x, y = node.inputs
    zero = b.constant(0.0)
    d_x = sum_to(b, b.emit("where", cond, d_output, zero), b.shape(x)) if wanted[1] else None
    d_y = sum_to(b, b.emit("where", cond, zero, d_output), b.shape(y)) if wanted[2] else None
    return (None, d_x, d_y)


WHERE = Operator(
    name="where",
    attributes=(),
    infer=_where_infer,
    evaluate=lambda inputs, attrs: (np.where(inputs[0], inputs[1], inputs[2]),),
    grad=_where_grad,
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], Select(Ref(0), Ref(1), Ref(2))),
    to_onnx=lambda node, types: [OnnxNode("Where", node.inputs, node.outputs)],
    examples=(Example((_BOOL, _VECTOR, _ROW), values=("bool",)),),
)

ELEMENTWISE = (*UNARY_OPERATORS, CLIP, CAST, *BINARY_OPERATORS, WHERE, *SINGULAR)

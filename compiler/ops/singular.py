"""Functions whose slope the chain rule does not give everywhere, because a step of it is infinite: what PyTorch gives.

    safe_power    y = x^q of the sum or the terms of a norm, q < 1, x >= 0
                  d_x = d_y q x^(q - 1), and 0 where x = 0: the least of the slopes that a norm has there
    atan_ratio    z = atan(y / x)
                  d_y = d_z x / (x^2 + y^2),  d_x = -d_z y / (x^2 + y^2), and both 0 where x = y = 0
Source: torch.linalg.vector_norm, torch.std and torch.atan2, whose gradients are these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary
from compiler.kernels.spec import MapSpec
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
)
from compiler.values import Value

_VECTOR, _ROW = TensorType("f32", (2, 3, 5)), TensorType("f32", (3, 1))


def _zero_where(b: Emitter, vanishing: Value, otherwise: Value) -> Value:
    zero = b.constant(0.0)
    return b.emit("where", b.emit("equal", vanishing, zero), zero, otherwise)


# ------------------------------------------------------------------------------------------------------- safe_power


def _power_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (np.power(inputs[0], inputs[0].dtype.type(number(attrs, "exponent"))),)


def _power_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, exponent = node.inputs[0], number(node.attrs, "exponent")
    scaled = b.emit("mul", d_output, b.constant(exponent))
    if exponent == 0.5:
        return (_zero_where(b, x, b.emit("div", scaled, node.output)),)
    return (_zero_where(b, x, b.emit("mul", scaled, b.emit("pow", x, b.constant(exponent - 1)))),)


def _power_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    exponent = number(attrs, "exponent")
    expr: Expr = Unary("sqrt", Ref(0)) if exponent == 0.5 else Binary("pow", Ref(0), Const(exponent))
    return pointwise(inputs, outputs[0], expr)


def _power_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out, exponent = OnnxWriter(node.output), number(node.attrs, "exponent")
    if exponent == 0.5:
        out.add("Sqrt", node.inputs[0], output=node.output)
    else:
        out.add("Pow", node.inputs[0], out.scalar(exponent), output=node.output)
    return out.nodes


SAFE_POWER = Operator(
    name="safe_power",
    attributes=("exponent",),
    infer=lambda inputs, attrs: (inputs[0],),
    evaluate=_power_evaluate,
    grad=_power_grad,
    cost=elementwise_cost(30),
    lower=_power_lower,
    to_onnx=_power_onnx,
    examples=(
        Example((_VECTOR,), {"exponent": 0.5}, values=("positive",)),
        Example((_VECTOR,), {"exponent": 1 / 3}, values=("positive",)),
        Example((_VECTOR,), {"exponent": -1.0}, values=("positive",)),
    ),
)

# ------------------------------------------------------------------------------------------------------- atan_ratio


def _ratio_infer(inputs: Types, attrs: Attrs) -> Types:
    y, x = inputs
    return (TensorType(y.dtype, broadcast_shape(y.shape, x.shape)),)


def _ratio_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (np.arctan(inputs[0] / inputs[1]),)


def _ratio_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    y, x = node.inputs
    square = b.emit("add", b.emit("mul", x, x), b.emit("mul", y, y))
    share = _zero_where(b, square, b.emit("div", d_output, square))
    d_y = sum_to(b, b.emit("mul", share, x), b.shape(y)) if wanted[0] else None
    d_x = sum_to(b, b.emit("neg", b.emit("mul", share, y)), b.shape(x)) if wanted[1] else None
    return (d_y, d_x)


def _ratio_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    out.add("Atan", out.add("Div", *node.inputs), output=node.output)
    return out.nodes


ATAN_RATIO = Operator(
    name="atan_ratio",
    attributes=(),
    infer=_ratio_infer,
    evaluate=_ratio_evaluate,
    grad=_ratio_grad,
    cost=elementwise_cost(29),
    lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], Unary("atan", Binary("div", Ref(0), Ref(1)))),
    to_onnx=_ratio_onnx,
    examples=(Example((_VECTOR, _ROW), values=("normal", "positive")),),
)

SINGULAR = (SAFE_POWER, ATAN_RATIO)

"""Functions of one number: arithmetic, activations, logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.element_types import DType
from compiler.errors import InternalError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary
from compiler.ops import scalar_forms
from compiler.ops.broadcasting import pointwise
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    elementwise_cost,
)
from compiler.values import Value

Gradient = Callable[[Emitter, Value, Value, Value], Value]
Evaluate = Callable[[Array], Array]

_DETACHED = NotDifferentiable("its author has cut the gradient off here")
_VECTOR = TensorType("f32", (2, 3, 5))
_BOOL = TensorType("bool", (2, 3, 5))


def _unary(
    name: str,
    evaluate: Evaluate,
    grad: Gradient | NotDifferentiable,
    onnx: str | Callable[[OnnxWriter, str, str], str],
    *,
    flops: int = 1,
    expr: Expr | None = None,
    values: str = "normal",
    tensor: TensorType = _VECTOR,
    result: DType | None = None,
) -> Operator:
    """A record for `y = f(x)`; `grad(emitter, x, y, d_y)` returns d_x."""
    body = expr if expr is not None else Unary(name, Ref(0))

    def infer(inputs: Types, attrs: Attrs) -> Types:
        return (TensorType(result or inputs[0].dtype, inputs[0].shape),)

    def rule(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        if isinstance(grad, NotDifferentiable):
            raise InternalError(f"{name} has no gradient")
        return (grad(b, node.inputs[0], node.output, d_output),)

    def to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
        out = OnnxWriter(node.output)
        if isinstance(onnx, str):
            out.add(onnx, node.inputs[0], output=node.output)
        else:
            onnx(out, node.inputs[0], node.output)
        return out.nodes

    return Operator(
        name=name,
        attributes=(),
        infer=infer,
        evaluate=lambda inputs, attrs: (np.asarray(evaluate(inputs[0])),),
        grad=grad if isinstance(grad, NotDifferentiable) else rule,
        cost=elementwise_cost(flops),
        lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], body),
        to_onnx=to_onnx,
        examples=(Example((tensor,), values=(values,)),),
    )


def _erf(x: Array) -> Array:
    from math import erf

    return np.asarray(np.vectorize(erf, otypes=[x.dtype])(x))


def _sigmoid(x: Array) -> Array:
    half = np.asarray(0.5, x.dtype)
    return np.asarray(half * (np.tanh(half * x) + 1))


def _d_erf(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    square = b.emit("mul", x, x)
    bell = b.emit("exp", b.emit("neg", square))
    return b.emit("mul", b.emit("mul", d_y, b.constant(2 / np.sqrt(np.pi))), bell)


def _d_tanh(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    slope = b.emit("sub", b.constant(1.0), b.emit("mul", y, y))
    return b.emit("mul", d_y, slope)


def _d_sigmoid(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    slope = b.emit("mul", y, b.emit("sub", b.constant(1.0), y))
    return b.emit("mul", d_y, slope)


def _d_rsqrt(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    cube = b.emit("mul", y, b.emit("mul", y, y))
    return b.emit("mul", b.emit("mul", d_y, b.constant(-0.5)), cube)


def _onnx_rsqrt(out: OnnxWriter, x: str, output: str) -> str:
    return out.add("Reciprocal", out.add("Sqrt", x), output=output)


def _relu_mask(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    positive = b.emit("less", b.constant(0.0), y)
    return b.emit("where", positive, d_y, b.constant(0.0))


def _one_plus_square(b: Emitter, x: Value) -> Value:
    return b.emit("add", b.constant(1.0), b.emit("mul", x, x))


def _one_minus_square(b: Emitter, x: Value) -> Value:
    """(1 - x) (1 + x), which loses nothing near the ends."""
    one = b.constant(1.0)
    return b.emit("mul", b.emit("sub", one, x), b.emit("add", one, x))


def _d_asin(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    return b.emit("mul", d_y, b.emit("rsqrt", _one_minus_square(b, x)))


def _d_acosh(b: Emitter, x: Value, y: Value, d_y: Value) -> Value:
    one = b.constant(1.0)
    below, above = b.emit("rsqrt", b.emit("sub", x, one)), b.emit("rsqrt", b.emit("add", x, one))
    return b.emit("mul", b.emit("mul", d_y, below), above)


def _log1p_onnx(out: OnnxWriter, x: str, output: str) -> str:
    return out.add("Log", out.add("Add", x, out.scalar(1.0)), output=output)


def _expm1_onnx(out: OnnxWriter, x: str, output: str) -> str:
    return out.add("Sub", out.add("Exp", x), out.scalar(1.0), output=output)


_FLAT = NotDifferentiable("piecewise constant: the derivative is zero almost everywhere")
_LOGIC = NotDifferentiable("boolean values have no derivative")

UNARY_OPERATORS = (
    _unary("neg", np.negative, lambda b, x, y, d: b.emit("neg", d), "Neg"),
    _unary("abs", np.abs, lambda b, x, y, d: b.emit("mul", d, b.emit("sign", x)), "Abs"),
    _unary("exp", np.exp, lambda b, x, y, d: b.emit("mul", d, y), "Exp", flops=12),
    _unary("log", np.log, lambda b, x, y, d: b.emit("div", d, x), "Log", flops=15, values="positive"),
    _unary(
        "sqrt",
        np.sqrt,
        lambda b, x, y, d: b.emit("div", b.emit("mul", d, b.constant(0.5)), y),
        "Sqrt",
        flops=4,
        values="positive",
    ),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), _d_rsqrt, _onnx_rsqrt, flops=6, values="positive"),
    _unary(
        "reciprocal",
        lambda x: 1 / x,
        lambda b, x, y, d: b.emit("neg", b.emit("mul", d, b.emit("mul", y, y))),
        "Reciprocal",
        flops=4,
        values="positive",
    ),
    _unary("tanh", np.tanh, _d_tanh, "Tanh", flops=20),
    _unary("sigmoid", _sigmoid, _d_sigmoid, "Sigmoid", flops=16),
    _unary("erf", _erf, _d_erf, "Erf", flops=25),
    _unary(
        "relu",
        lambda x: np.maximum(x, 0),
        _relu_mask,
        "Relu",
        expr=Binary("max", Ref(0), Const(0.0)),
    ),
    _unary("floor", np.floor, _FLAT, "Floor"),
    _unary("sign", np.sign, _FLAT, "Sign"),
    _unary("sin", np.sin, lambda b, x, y, d: b.emit("mul", d, b.emit("cos", x)), "Sin", flops=20),
    _unary("cos", np.cos, lambda b, x, y, d: b.emit("neg", b.emit("mul", d, b.emit("sin", x))), "Cos", flops=20),
    _unary(
        "expm1",
        np.expm1,
        lambda b, x, y, d: b.emit("mul", d, b.emit("add", y, b.constant(1.0))),
        _expm1_onnx,
        flops=30,
        expr=scalar_forms.EXPM1,
    ),
    _unary(
        "log1p",
        np.log1p,
        lambda b, x, y, d: b.emit("div", d, b.emit("add", b.constant(1.0), x)),
        _log1p_onnx,
        flops=25,
        expr=scalar_forms.LOG1P,
        values="positive",
    ),
    _unary(
        "sinh",
        np.sinh,
        lambda b, x, y, d: b.emit("mul", d, b.emit("cosh", x)),
        "Sinh",
        flops=40,
        expr=scalar_forms.SINH,
    ),
    _unary(
        "cosh",
        np.cosh,
        lambda b, x, y, d: b.emit("mul", d, b.emit("sinh", x)),
        "Cosh",
        flops=30,
        expr=scalar_forms.COSH,
    ),
    _unary("asin", np.arcsin, _d_asin, "Asin", flops=30, expr=scalar_forms.ASIN, values="inner"),
    _unary(
        "acos",
        np.arccos,
        lambda b, x, y, d: b.emit("neg", _d_asin(b, x, y, d)),
        "Acos",
        flops=30,
        expr=scalar_forms.ACOS,
        values="inner",
    ),
    _unary("atan", np.arctan, lambda b, x, y, d: b.emit("div", d, _one_plus_square(b, x)), "Atan", flops=25),
    _unary(
        "asinh",
        np.arcsinh,
        lambda b, x, y, d: b.emit("mul", d, b.emit("rsqrt", _one_plus_square(b, x))),
        "Asinh",
        flops=45,
        expr=scalar_forms.ASINH,
    ),
    _unary("acosh", np.arccosh, _d_acosh, "Acosh", flops=45, expr=scalar_forms.ACOSH, values="above one"),
    _unary(
        "atanh",
        np.arctanh,
        lambda b, x, y, d: b.emit("div", d, _one_minus_square(b, x)),
        "Atanh",
        flops=40,
        expr=scalar_forms.ATANH,
        values="inner",
    ),
    _unary("round", np.round, _FLAT, "Round", flops=8, expr=scalar_forms.ROUND),
    _unary("not", np.logical_not, _LOGIC, "Not", values="bool", tensor=_BOOL),
    _unary("is_nan", np.isnan, _LOGIC, "IsNaN", result="bool"),
    _unary("identity", lambda x: x.copy(), lambda b, x, y, d: d, "Identity", flops=0, expr=Ref(0)),
    _unary("detach", lambda x: x.copy(), _DETACHED, "Identity", flops=0, expr=Ref(0)),
)

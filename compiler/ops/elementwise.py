"""Element-wise operators: arithmetic, comparison, selection and activation, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.errors import InternalError
from compiler.graph import NUMPY_DTYPE, Array, Attrs, DType, Node, TensorType
from compiler.kernels.spec import Binary, Const, Expr, MapSpec, Ref, Select, Unary
from compiler.ops.access import broadcast, identity
from compiler.ops.emitter import Emitter, Grads
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
    number,
    text,
)
from compiler.values import Value

Gradient = Callable[[Emitter, Value, Value, Value], Value]
Evaluate = Callable[[Array], Array]

_VECTOR = TensorType("f32", (2, 3, 5))
_ROW = TensorType("f32", (3, 1))
_BOOL = TensorType("bool", (2, 3, 5))


def sum_to(b: Emitter, value: Value, shape: tuple[int, ...]) -> Value:
    """Sum a gradient over the axes along which its operand was broadcast."""
    have = b.shape(value)
    if have == shape:
        return value
    lead = len(have) - len(shape)
    padded = (1,) * lead + shape
    axes = tuple(i for i, (got, want) in enumerate(zip(have, padded, strict=True)) if want == 1 and got != 1)
    total = b.emit("reduce_sum", value, axes=axes, keepdims=True) if axes else value
    return total if b.shape(total) == shape else b.emit("reshape", total, shape=shape)


def _map(inputs: Types, output: TensorType, expr: Expr) -> MapSpec:
    reads = tuple(broadcast(tensor, output.shape) for tensor in inputs)
    return MapSpec(output.shape, reads, (identity(output),), (expr,))


def _same(inputs: Types, attrs: Attrs) -> Types:
    return (inputs[0],)


# ------------------------------------------------------------------------------------------------------------- unary


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
        lower=lambda inputs, outputs, attrs: _map(inputs, outputs[0], body),
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
    _unary("not", np.logical_not, _LOGIC, "Not", values="bool", tensor=_BOOL),
    _unary("is_nan", np.isnan, _LOGIC, "IsNaN", result="bool"),
    _unary("identity", lambda x: x.copy(), lambda b, x, y, d: d, "Identity", flops=0, expr=Ref(0)),
)

# ---------------------------------------------------------------------------------------------------- clip and cast


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
    return _map(inputs, outputs[0], expr)


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

_ONNX_TYPE = {"f32": 1, "i64": 7, "i32": 6, "bool": 9}


def _cast_infer(inputs: Types, attrs: Attrs) -> Types:
    kind = text(attrs, "to")
    if kind not in NUMPY_DTYPE:
        raise InternalError(f"cast to {kind!r}")
    return (TensorType(kind, inputs[0].shape),)  # type: ignore[arg-type]


def _cast_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    kind = text(attrs, "to")
    # A float64 evaluation stays float64: "f32" means "the real type of this run".
    if kind == "f32" and inputs[0].dtype == np.float64:
        return (inputs[0],)
    return (inputs[0].astype(NUMPY_DTYPE[kind]),)


def _cast_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    real = b.types[node.inputs[0]].dtype == "f32" and b.types[node.output].dtype == "f32"
    return (d_output if real else None,)


CAST = Operator(
    name="cast",
    attributes=("to",),
    infer=_cast_infer,
    evaluate=_cast_evaluate,
    grad=_cast_grad,
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: _map(inputs, outputs[0], Unary(f"to_{outputs[0].dtype}", Ref(0))),
    to_onnx=lambda node, types: [
        OnnxNode("Cast", node.inputs, node.outputs, {"to": _ONNX_TYPE[text(node.attrs, "to")]})
    ],
    examples=(Example((_VECTOR,), {"to": "f32"}),),
)

# ------------------------------------------------------------------------------------------------------------ binary


BinaryOneSided = Callable[[Emitter, Value, Value, Value, Value], Value]
"""(emitter, x, y, z, d_z) -> the gradient of one operand, before it is summed to the operand's shape."""


def _binary_infer(result: DType | None) -> Callable[[Types, Attrs], Types]:
    def infer(inputs: Types, attrs: Attrs) -> Types:
        x, y = inputs
        return (TensorType(result or x.dtype, broadcast_shape(x.shape, y.shape)),)

    return infer


def _binary(
    name: str,
    evaluate: Callable[[Array, Array], Array],
    grads: tuple[BinaryOneSided, BinaryOneSided] | NotDifferentiable,
    onnx: str,
    *,
    scalar: str = "",
    result: DType | None = None,
    values: tuple[str, ...] = (),
    tensors: tuple[TensorType, TensorType] = (_VECTOR, _ROW),
    flops: int = 1,
) -> Operator:
    """A record for `z = f(x, y)`; each of `grads` maps (emitter, x, y, z, d_z) to one operand's gradient."""

    def rule(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        if isinstance(grads, NotDifferentiable):
            raise InternalError(f"{name} has no gradient")
        x, y = node.inputs
        sides = zip((x, y), grads, wanted, strict=True)
        return [
            sum_to(b, one_sided(b, x, y, node.output, d_output), b.shape(operand)) if want else None
            for operand, one_sided, want in sides
        ]

    return Operator(
        name=name,
        attributes=(),
        infer=_binary_infer(result),
        evaluate=lambda inputs, attrs: (np.asarray(evaluate(inputs[0], inputs[1])),),
        grad=grads if isinstance(grads, NotDifferentiable) else rule,
        cost=elementwise_cost(flops),
        lower=lambda inputs, outputs, attrs: _map(inputs, outputs[0], Binary(scalar or name, Ref(0), Ref(1))),
        to_onnx=lambda node, types: [OnnxNode(onnx, node.inputs, node.outputs)],
        examples=(Example(tensors, values=values),),
    )


def _d_div_y(b: Emitter, x: Value, y: Value, z: Value, d: Value) -> Value:
    return b.emit("neg", b.emit("div", b.emit("mul", d, z), y))


def _d_pow_x(b: Emitter, x: Value, y: Value, z: Value, d: Value) -> Value:
    """d y x^(y - 1); 0 where y = 0, also at x = 0."""
    lower = b.emit("pow", x, b.emit("sub", y, b.constant(1.0)))
    slope = b.emit("where", b.emit("equal", y, b.constant(0.0)), b.constant(0.0), b.emit("mul", y, lower))
    return b.emit("mul", d, slope)


def _d_pow_y(b: Emitter, x: Value, y: Value, z: Value, d: Value) -> Value:
    """d x^y log x; 0 where x = 0 and y >= 0, the limit."""
    flat = b.emit("and", b.emit("equal", x, b.constant(0.0)), b.emit("less_equal", b.constant(0.0), y))
    slope = b.emit("where", flat, b.constant(0.0), b.emit("mul", z, b.emit("log", x)))
    return b.emit("mul", d, slope)


def _where_less(b: Emitter, low: Value, high: Value, d: Value) -> Value:
    """`d` where `low` < `high`, and half of it where they are equal, as in torch.maximum."""
    half = b.emit("where", b.emit("equal", low, high), b.emit("mul", d, b.constant(0.5)), b.constant(0.0))
    return b.emit("where", b.emit("less", low, high), d, half)


_BOOL_ROW = TensorType("bool", (3, 1))
_COMPARE = NotDifferentiable("comparisons are piecewise constant")

BINARY_OPERATORS = (
    _binary("add", np.add, (lambda b, x, y, z, d: d, lambda b, x, y, z, d: d), "Add"),
    _binary("sub", np.subtract, (lambda b, x, y, z, d: d, lambda b, x, y, z, d: b.emit("neg", d)), "Sub"),
    _binary(
        "mul",
        np.multiply,
        (lambda b, x, y, z, d: b.emit("mul", d, y), lambda b, x, y, z, d: b.emit("mul", d, x)),
        "Mul",
    ),
    _binary(
        "div",
        np.divide,
        (lambda b, x, y, z, d: b.emit("div", d, y), _d_div_y),
        "Div",
        values=("normal", "positive"),
        flops=4,
    ),
    _binary(
        "maximum",
        np.maximum,
        (
            lambda b, x, y, z, d: _where_less(b, y, x, d),
            lambda b, x, y, z, d: _where_less(b, x, y, d),
        ),
        "Max",
        scalar="max",
    ),
    _binary(
        "minimum",
        np.minimum,
        (
            lambda b, x, y, z, d: _where_less(b, x, y, d),
            lambda b, x, y, z, d: _where_less(b, y, x, d),
        ),
        "Min",
        scalar="min",
    ),
    _binary("pow", np.power, (_d_pow_x, _d_pow_y), "Pow", values=("positive", "positive"), flops=30),
    _binary("less", np.less, _COMPARE, "Less", scalar="lt", result="bool"),
    _binary("less_equal", np.less_equal, _COMPARE, "LessOrEqual", scalar="le", result="bool"),
    _binary("equal", np.equal, _COMPARE, "Equal", scalar="eq", result="bool"),
    _binary("and", np.logical_and, _LOGIC, "And", values=("bool", "bool"), tensors=(_BOOL, _BOOL_ROW)),
    _binary("or", np.logical_or, _LOGIC, "Or", values=("bool", "bool"), tensors=(_BOOL, _BOOL_ROW)),
)

# ------------------------------------------------------------------------------------------------------------- where


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
    lower=lambda inputs, outputs, attrs: _map(inputs, outputs[0], Select(Ref(0), Ref(1), Ref(2))),
    to_onnx=lambda node, types: [OnnxNode("Where", node.inputs, node.outputs)],
    examples=(Example((_BOOL, _VECTOR, _ROW), values=("bool",)),),
)

ELEMENTWISE = (*UNARY_OPERATORS, CLIP, CAST, *BINARY_OPERATORS, WHERE)

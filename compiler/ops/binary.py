"""Functions of two numbers, with NumPy broadcasting: arithmetic, comparison, logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.element_types import DType
from compiler.errors import InternalError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.expressions import Binary, Ref
from compiler.ops.broadcasting import pointwise, sum_to
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
)
from compiler.values import Value

BinaryOneSided = Callable[[Emitter, Value, Value, Value, Value], Value]
"""(emitter, x, y, z, d_z) -> the gradient of one operand, before it is summed to the operand's shape."""

ToOnnx = Callable[[NamedNode, Mapping[str, TensorType]], Sequence[OnnxNode]]

_VECTOR = TensorType("f32", (2, 3, 5))
_ROW = TensorType("f32", (3, 1))
_BOOL = TensorType("bool", (2, 3, 5))
_LOGIC = NotDifferentiable("boolean values have no derivative")


def _binary_infer(result: DType | None) -> Callable[[Types, Attrs], Types]:
    def infer(inputs: Types, attrs: Attrs) -> Types:
        x, y = inputs
        return (TensorType(result or x.dtype, broadcast_shape(x.shape, y.shape)),)

    return infer


def _binary(
    name: str,
    evaluate: Callable[[Array, Array], Array],
    grads: tuple[BinaryOneSided, BinaryOneSided] | NotDifferentiable,
    onnx: str | ToOnnx,
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
        lower=lambda inputs, outputs, attrs: pointwise(inputs, outputs[0], Binary(scalar or name, Ref(0), Ref(1))),
        to_onnx=_plain_onnx(onnx) if isinstance(onnx, str) else onnx,
        examples=(Example(tensors, values=values),),
    )


def _divide(x: Array, y: Array) -> Array:
    """The quotient; that of integers is towards zero, and 0 over 0."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    return np.asarray(np.floor_divide(x - np.fmod(x, y), y))


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


def _d_mod_y(b: Emitter, x: Value, y: Value, z: Value, d: Value) -> Value:
    """-d (x - z) / y: how often the divisor was taken away."""
    return b.emit("neg", b.emit("mul", d, b.emit("div", b.emit("sub", x, z), y)))


def _plain_onnx(op_type: str) -> ToOnnx:
    return lambda node, types: [OnnxNode(op_type, node.inputs, node.outputs)]


def _mod_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    """Returns nodes of a remainder with the sign of the divisor, which older runtimes give for integers only:
    fmod(fmod(x, y) + y, y).
    """
    if not types[node.output].element.is_real:
        return [OnnxNode("Mod", node.inputs, node.outputs)]
    out, y = OnnxWriter(node.output), node.inputs[1]
    rest = out.add("Mod", *node.inputs, fmod=1)
    out.add("Mod", out.add("Add", rest, y), y, output=node.output, fmod=1)
    return out.nodes


def _where_less(b: Emitter, low: Value, high: Value, d: Value) -> Value:
    """`d` where `low` < `high`, and half of it where they are equal, as in torch.maximum."""
    half = b.emit("where", b.emit("equal", low, high), b.emit("mul", d, b.constant(0.5)), b.constant(0.0))
    return b.emit("where", b.emit("less", low, high), d, half)


def _bound_grads(*, low: bool) -> tuple[BinaryOneSided, BinaryOneSided]:
    """Returns the gradients of x and of a bound y: `d` is the bound's where x is beyond it, and x's elsewhere, on the
    bound too.
    """

    def beyond(b: Emitter, x: Value, y: Value) -> Value:
        return b.emit("less", x, y) if low else b.emit("less", y, x)

    return (
        lambda b, x, y, z, d: b.emit("where", beyond(b, x, y), b.constant(0.0), d),
        lambda b, x, y, z, d: b.emit("where", beyond(b, x, y), d, b.constant(0.0)),
    )


_BITS = NotDifferentiable("bits have no derivative")
_WHOLE = (TensorType("i64", (2, 3, 5)), TensorType("i64", (3, 1)))
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
        _divide,
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
    _binary("at_least", np.maximum, _bound_grads(low=True), "Max", scalar="max"),
    _binary("at_most", np.minimum, _bound_grads(low=False), "Min", scalar="min"),
    _binary("pow", np.power, (_d_pow_x, _d_pow_y), "Pow", values=("positive", "positive"), flops=30),
    _binary(
        "mod",
        np.mod,
        (lambda b, x, y, z, d: d, _d_mod_y),
        _mod_onnx,
        values=("normal", "positive"),
        flops=16,
    ),
    _binary(
        "fmod",
        np.fmod,
        (lambda b, x, y, z, d: d, _d_mod_y),
        lambda node, types: [OnnxNode("Mod", node.inputs, node.outputs, {"fmod": 1})],
        values=("normal", "positive"),
        flops=12,
    ),
    _binary("bit_and", np.bitwise_and, _BITS, "BitwiseAnd", tensors=_WHOLE),
    _binary("bit_or", np.bitwise_or, _BITS, "BitwiseOr", tensors=_WHOLE),
    _binary("bit_xor", np.bitwise_xor, _BITS, "BitwiseXor", tensors=_WHOLE),
    _binary("less", np.less, _COMPARE, "Less", scalar="lt", result="bool"),
    _binary("less_equal", np.less_equal, _COMPARE, "LessOrEqual", scalar="le", result="bool"),
    _binary("equal", np.equal, _COMPARE, "Equal", scalar="eq", result="bool"),
    _binary("and", np.logical_and, _LOGIC, "And", values=("bool", "bool"), tensors=(_BOOL, _BOOL_ROW)),
    _binary("or", np.logical_or, _LOGIC, "Or", values=("bool", "bool"), tensors=(_BOOL, _BOOL_ROW)),
)

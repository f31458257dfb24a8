"""Import rows: arithmetic, comparison, logic, casts and selection."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.element_types import ELEMENT_TYPES, EMITTED, NUMERIC, REAL, emitted_of_onnx
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.torch_record import DETACH
from compiler.frontend.pieces import from_left
from compiler.frontend.scope import KnownOperand, Operand, Scope
from compiler.values import Value


def unary(op: str) -> Rule:
    """ONNX operator that is one of ours on float input."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        return call.emit(op, call.value(0))

    return rule


def _number(op: str) -> Rule:
    """ONNX operator that is one of ours on floats and integers."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, NUMERIC)
        return call.emit(op, call.value(0))

    return rule


def _not(call: Call) -> Operand:
    call.require_dtype(0, ("bool",))
    return call.emit("not", call.value(0))


def _binary(op: str, *, swap: bool = False, dtypes: tuple[str, ...] = NUMERIC, negate: bool = False) -> Rule:
    def rule(call: Call) -> Operand:
        _same_dtype(call, dtypes)
        x, y = call.value(0), call.value(1)
        result = call.emit(op, y, x) if swap else call.emit(op, x, y)
        return call.emit("not", result) if negate else result

    return rule


def _same_dtype(call: Call, allowed: tuple[str, ...]) -> None:
    call.require_dtype(0, allowed)
    first, second = call.dtype(0), call.dtype(1)
    if first != second:
        call.fail(f"its operands have types {first} and {second}; ONNX wants one type")


def _sum(call: Call) -> Operand:
    return from_left(call, "add")


def _mean(call: Call) -> Operand:
    total = from_left(call, "add")
    return call.emit("mul", total, call.scalar(1 / len(call.operands), total))


def _add(call: Call) -> Operand:
    """Add; a parameter added to a contraction is that layer's bias."""
    _same_dtype(call, NUMERIC)
    for position in (0, 1):
        other, constant = call.operand(1 - position), call.known_operand(position)
        if isinstance(other, Value) and constant is not None and constant.source:
            return call.emit("add", other, add_operand(call.scope, other, constant))
    return call.emit("add", call.value(0), call.value(1))


def add_operand(scope: Scope, other: Value, constant: KnownOperand) -> Value:
    """The graph value of a float initializer that is added to `other`: a bias if it spans at most one axis.

    A matrix (position embedding) is a weight. The bias of a contraction belongs to that contraction's layer.
    """
    layer = scope.bias_of.pop(other, "")
    one_axis = sum(extent > 1 for extent in constant.array.shape) <= 1
    if not one_axis or (constant.array.size == 1 and not layer):
        return scope.value(constant)
    outer, scope.builder.layer = scope.builder.layer, layer or scope.builder.layer
    name = scope.parameter(constant, range(constant.array.ndim), kind="bias")
    scope.builder.layer = outer
    return name


def _mul(call: Call) -> Operand:
    _same_dtype(call, NUMERIC)
    return call.emit("mul", call.value(0), call.value(1))


def _cast(call: Call) -> Operand:
    call.attributes.ignore("saturate", "round_mode")
    element = emitted_of_onnx(call.attributes.integer("to", 0))
    return _cast_to(call, element.name if element is not None else "")


def _cast_like(call: Call) -> Operand:
    call.attributes.ignore("saturate", "round_mode")
    return _cast_to(call, call.dtype(1))


def _cast_to(call: Call, target: str) -> Operand:
    if target not in ELEMENT_TYPES or not ELEMENT_TYPES[target].is_emitted:
        supported = ", ".join(row.label for row in EMITTED)
        call.unsupported(f"a cast at run time goes to {supported}", "export the model in float32")
    return call.operand(0) if call.dtype(0) == target else call.emit("cast", call.value(0), to=target)


def _where(call: Call) -> Operand:
    call.require_dtype(0, ("bool",))
    if call.dtype(1) != call.dtype(2):
        call.fail(f"its branches have types {call.dtype(1)} and {call.dtype(2)}; ONNX wants one type")
    return call.emit("where", call.value(0), call.value(1), call.value(2))


def _xor(call: Call) -> Operand:
    call.require_dtype(0, ("bool",))
    x, y = call.value(0), call.value(1)
    either, both = call.emit("or", x, y), call.emit("and", x, y)
    return call.emit("and", either, call.emit("not", both))


def _ceil(call: Call) -> Operand:
    call.require_dtype(0, REAL)
    return call.emit("neg", call.emit("floor", call.emit("neg", call.value(0))))


def _equal(call: Call) -> Operand:
    if call.dtype(0) == "bool":
        return call.emit("not", _xor_value(call))
    return _binary("equal")(call)  # type: ignore[return-value]


def _xor_value(call: Call) -> Value:
    result = _xor(call)
    assert isinstance(result, Value)
    return result


def _identity(call: Call) -> Operand:
    """Identity disappears, unless PyTorch's exporter wrote it for `detach()`."""
    operand = call.operand(0)
    learns = isinstance(operand, Value) or bool(operand.source or operand.behind)
    if call.node.torch_op == DETACH and learns and call.dtype(0) in REAL:
        return call.emit("detach", call.value(0))
    return operand


ROWS: Mapping[str, Rule] = {
    "Abs": _number("abs"),
    "Add": _add,
    "And": _binary("and", dtypes=("bool",)),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Ceil": _ceil,
    "Cos": unary("cos"),
    "Div": _binary("div"),
    "Equal": _equal,
    "Erf": unary("erf"),
    "Exp": unary("exp"),
    "Floor": unary("floor"),
    "Greater": _binary("less", swap=True),
    "GreaterOrEqual": _binary("less_equal", swap=True),
    "Identity": _identity,
    "IsNaN": unary("is_nan"),
    "Less": _binary("less"),
    "LessOrEqual": _binary("less_equal"),
    "Log": unary("log"),
    "Mean": _mean,
    "Mul": _mul,
    "Neg": _number("neg"),
    "Not": _not,
    "Or": _binary("or", dtypes=("bool",)),
    "Reciprocal": unary("reciprocal"),
    "Relu": _number("relu"),
    "Sigmoid": unary("sigmoid"),
    "Sign": _number("sign"),
    "Sin": unary("sin"),
    "Sqrt": unary("sqrt"),
    "Sub": _binary("sub"),
    "Sum": _sum,
    "Tanh": unary("tanh"),
    "Where": _where,
    "Xor": _xor,
}

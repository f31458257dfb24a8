"""Import rows: trigonometric and hyperbolic functions, rounding, and the activations that came late to ONNX."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.rows.elementwise import unary
from compiler.frontend.scope import Operand
from compiler.values import Value


def _tan(call: Call) -> Operand:
    """sin x / cos x."""
    call.require_dtype(0, REAL)
    x = call.value(0)
    return call.emit("div", call.emit("sin", x), call.emit("cos", x))


def _is_inf(call: Call) -> Operand:
    call.require_dtype(0, REAL)
    positive, negative = (bool(call.attributes.integer(f"detect_{side}", 1)) for side in ("positive", "negative"))
    x = call.value(0)
    if positive and negative:
        return call.emit("equal", call.emit("abs", x), call.scalar(np.inf, x))
    if not positive and not negative:
        return call.emit("less", x, x)
    return call.emit("equal", x, call.scalar(np.inf if positive else -np.inf, x))


def _shrink(call: Call) -> Operand:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    call.require_dtype(0, REAL)
    bias, bound = call.attributes.number("bias", 0.0), call.attributes.number("lambd", 0.5)
    x = call.value(0)
    above = call.emit("where", _less(call, bound, x), _shifted(call, x, -bias), call.scalar(0.0, x))
    below = call.emit("less", x, call.scalar(-bound, x))
    return call.emit("where", below, _shifted(call, x, bias), above)


def _less(call: Call, bound: float, x: Value) -> Value:
    return call.emit("less", call.scalar(bound, x), x)


def _shifted(call: Call, x: Value, amount: float) -> Value:
    return call.emit("add", x, call.scalar(amount, x)) if amount else x


def _swish(call: Call) -> Operand:
    """x sigmoid(alpha x)."""
    call.require_dtype(0, REAL)
    alpha, x = call.attributes.number("alpha", 1.0), call.value(0)
    inner = x if alpha == 1 else call.emit("mul", x, call.scalar(alpha, x))
    return call.emit("mul", x, call.emit("sigmoid", inner))


ROWS: Mapping[str, Rule] = {
    "Acos": unary("acos"),
    "Acosh": unary("acosh"),
    "Asin": unary("asin"),
    "Asinh": unary("asinh"),
    "Atan": unary("atan"),
    "Atanh": unary("atanh"),
    "Cosh": unary("cosh"),
    "IsInf": _is_inf,
    "Round": unary("round"),
    "Shrink": _shrink,
    "Sinh": unary("sinh"),
    "Swish": _swish,
    "Tan": _tan,
}

"""Import rows: activations, as compositions of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


def _of(function: Callable[[Call, Value], Value]) -> Rule:
    """A row for an activation of one float operand."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        return function(call, call.value(0))

    return rule


def _scaled(call: Call, x: Value, factor: float) -> Value:
    return call.emit("mul", x, call.scalar(factor, x))


def _shifted(call: Call, x: Value, amount: float) -> Value:
    return call.emit("add", x, call.scalar(amount, x))


def _gelu(call: Call, x: Value) -> Value:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) in place of erf.

    Source: ONNX Gelu, opset 20.
    """
    if call.attributes.text("approximate", "none") == "tanh":
        cube = call.emit("mul", x, call.emit("mul", x, x))
        inner = _scaled(call, call.emit("add", x, _scaled(call, cube, 0.044715)), sqrt(2 / pi))
        bell = call.emit("tanh", inner)
    else:
        bell = call.emit("erf", _scaled(call, x, 1 / sqrt(2)))
    return call.emit("mul", _scaled(call, x, 0.5), _shifted(call, bell, 1.0))


def _hard_sigmoid(call: Call, x: Value) -> Value:
    """clip(alpha x + beta, 0, 1)."""
    alpha, beta = call.attributes.number("alpha", 0.2), call.attributes.number("beta", 0.5)
    return call.emit("clip", _shifted(call, _scaled(call, x, alpha), beta), low=0.0, high=1.0)


def _hard_swish(call: Call, x: Value) -> Value:
    """x clip(x / 6 + 1/2, 0, 1)."""
    gate = call.emit("clip", _shifted(call, _scaled(call, x, 1 / 6), 0.5), low=0.0, high=1.0)
    return call.emit("mul", x, gate)


def _leaky_relu(call: Call, x: Value) -> Value:
    return _by_sign(call, x, x, _scaled(call, x, call.attributes.number("alpha", 0.01)))


def _elu(call: Call, x: Value) -> Value:
    """x for x > 0, else alpha (exp(x) - 1)."""
    return _by_sign(call, x, x, _scaled(call, _exp_minus_one(call, x), call.attributes.number("alpha", 1.0)))


def _celu(call: Call, x: Value) -> Value:
    """x for x > 0, else alpha (exp(x / alpha) - 1)."""
    alpha = call.attributes.number("alpha", 1.0)
    if alpha == 0:
        call.fail("alpha is 0")
    return _by_sign(call, x, x, _scaled(call, _exp_minus_one(call, _scaled(call, x, 1 / alpha)), alpha))


def _selu(call: Call, x: Value) -> Value:
    """gamma (x for x > 0, else alpha (exp(x) - 1))."""
    alpha = call.attributes.number("alpha", 1.67326319217681884765625)
    gamma = call.attributes.number("gamma", 1.05070102214813232421875)
    return _scaled(call, _by_sign(call, x, x, _scaled(call, _exp_minus_one(call, x), alpha)), gamma)


def _exp_minus_one(call: Call, x: Value) -> Value:
    # Clamped at zero: the branch is only taken below it, and an overflow there would turn the gradient into NaN.
    return call.emit("expm1", _at_most_zero(call, x))


def _at_most_zero(call: Call, x: Value) -> Value:
    """min(x, 0) with the slope 1 at zero, the side that ONNX and PyTorch give zero to."""
    zero = call.scalar(0.0, x)
    return call.emit("where", call.emit("less", zero, x), zero, x)


def _by_sign(call: Call, x: Value, positive: Value, negative: Value) -> Value:
    return call.emit("where", call.emit("less", call.scalar(0.0, x), x), positive, negative)


def _softplus(call: Call, x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)); at zero the slope is the maximum's, 1/2 (a ReLU's is 0)."""
    small = call.emit("exp", call.emit("neg", call.emit("abs", x)))
    above = call.emit("maximum", x, call.scalar(0.0, x))
    return call.emit("add", above, call.emit("log1p", small))


def _mish(call: Call, x: Value) -> Value:
    """x tanh(softplus(x))."""
    return call.emit("mul", x, call.emit("tanh", _softplus(call, x)))


def _softsign(call: Call, x: Value) -> Value:
    """x / (1 + |x|)."""
    return call.emit("div", x, _shifted(call, call.emit("abs", x), 1.0))


def _thresholded_relu(call: Call, x: Value) -> Value:
    alpha = call.scalar(call.attributes.number("alpha", 1.0), x)
    return call.emit("where", call.emit("less", alpha, x), x, call.scalar(0.0, x))


def _p_relu(call: Call) -> Operand:
    """x for x >= 0, else slope x; the slope learns."""
    call.require_dtype(0, REAL)
    x = call.value(0)
    below = call.emit("mul", _at_most_zero(call, x), call.parameter_input(1, "weight"))
    return call.emit("add", call.emit("relu", x), below)


ROWS: Mapping[str, Rule] = {
    "Celu": _of(_celu),
    "Elu": _of(_elu),
    "Gelu": _of(_gelu),
    "HardSigmoid": _of(_hard_sigmoid),
    "HardSwish": _of(_hard_swish),
    "LeakyRelu": _of(_leaky_relu),
    "Mish": _of(_mish),
    "PRelu": _p_relu,
    "Selu": _of(_selu),
    "Softplus": _of(_softplus),
    "Softsign": _of(_softsign),
    "ThresholdedRelu": _of(_thresholded_relu),
}

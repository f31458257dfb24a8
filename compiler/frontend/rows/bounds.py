"""Import row: Clip."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import ELEMENT_TYPES, NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value

_LOW, _HIGH = 1, 2


def _clip(call: Call) -> Operand:
    """min(max(x, low), high): in one operator as far as bounds of floats are known; ReLU when it is one."""
    call.require_dtype(0, NUMERIC)
    if call.dtype(0) not in REAL or any(call.has(i) and call.known(i) is None for i in (_LOW, _HIGH)):
        return _by_comparison(call)
    low, high = _bound(call, _LOW, -np.inf), _bound(call, _HIGH, np.inf)
    x = call.value(0)
    if (low, high) == (-np.inf, np.inf):
        return x
    return call.emit("relu", x) if (low, high) == (0.0, np.inf) else call.emit("clip", x, low=low, high=high)


def _bound(call: Call, index: int, default: float) -> float:
    if not call.has(index):
        return default
    array = call.array(index, "the bound")
    if array.size != 1 or bool(np.isnan(array).any()):
        call.fail(f"bound {index} must be one number")
    bound = float(array.reshape(-1)[0])
    # Exporters write "no bound" as the largest float.
    return default if abs(bound) >= float(np.finfo(np.float32).max) and np.sign(bound) == np.sign(default) else bound


def _by_comparison(call: Call) -> Operand:
    """At a bound the slope is x's, outside the bound's own, as PyTorch's `clamp` with tensors has it."""
    x = call.value(0)
    for index in (_LOW, _HIGH):
        if call.has(index):
            bound = _one(call, index)
            beyond = call.emit("less", x, bound) if index == _LOW else call.emit("less", bound, x)
            x = call.emit("where", beyond, bound, x)
    return x


def _one(call: Call, index: int) -> Value:
    if call.dtype(index) != call.dtype(0):
        call.fail(f"bound {index} has type {call.dtype(index)}, the input {call.dtype(0)}; ONNX wants one type")
    if call.known(index) is not None:
        array = call.array(index, "the bound").reshape(-1)
        if array.size == 1:
            return call.constant(array.reshape(()).astype(ELEMENT_TYPES[call.dtype(0)].numpy))
    bound = call.value(index)
    if call.scope.builder.types[bound].size != 1:
        call.fail(f"bound {index} must be one number")
    return call.reshape(bound, ())


ROWS: Mapping[str, Rule] = {"Clip": _clip}

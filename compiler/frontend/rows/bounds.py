"""Import rows: Clip, Max and Min.

On a bound that is a number the slope is 0, as ReLU6's and, from 2.14 on, that of PyTorch's `clamp`; or that inside, of
calls of `clamp` whose record says so. On a bound that is computed or learns, it is x's, as `clamp`'s. `maximum` and
`minimum` are no bounds: equal operands share.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import ELEMENT_TYPES, NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.torch_record import CLAMPS
from compiler.frontend.pieces import from_left
from compiler.frontend.scope import Operand
from compiler.values import Value

_LOW, _HIGH = 1, 2


def _clip(call: Call) -> Operand:
    """min(max(x, low), high): in one operator as far as bounds of floats are known; ReLU when it is one."""
    call.require_dtype(0, NUMERIC)
    present = [index for index in (_LOW, _HIGH) if call.has(index)]
    if call.dtype(0) not in REAL or any(call.known_operand(index) is None or _learns(call, index) for index in present):
        return _by_comparison(call)
    return _between(call, _bound(call, _LOW, -np.inf), _bound(call, _HIGH, np.inf))


def _between(call: Call, low: float, high: float) -> Value:
    x = call.value(0)
    if _clamp(call) in call.scope.inside:
        x = x if low == -np.inf else call.emit("at_least", x, call.scalar(low, x))
        return x if high == np.inf else call.emit("at_most", x, call.scalar(high, x))
    if (low, high) == (-np.inf, np.inf):
        return x
    return call.emit("relu", x) if (low, high) == (0.0, np.inf) else call.emit("clip", x, low=low, high=high)


def _clamp(call: Call) -> str:
    """The operator of PyTorch's that bounds, if this call came from one: `aten.clamp`, without its overload."""
    function = call.node.torch_op.rpartition(".")[0]
    return function if function in CLAMPS else ""


def _learns(call: Call, index: int) -> bool:
    """Whether the file itself calls a value a parameter, or computes it from one."""
    bound = call.known_operand(index)
    return bound is not None and not {bound.source, *bound.behind}.isdisjoint(call.scope.recorded)


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
    """Computes a bound so that at it the slope is x's, and outside it the bound's own, as PyTorch's `clamp` with
    tensors has it.
    """
    x = call.value(0)
    for index, op in ((_LOW, "at_least"), (_HIGH, "at_most")):
        if call.has(index):
            x = call.emit(op, x, _scalar_bound(call, index))
    return x


def _scalar_bound(call: Call, index: int) -> Value:
    if call.dtype(index) != call.dtype(0):
        call.fail(f"bound {index} has type {call.dtype(index)}, the input {call.dtype(0)}; ONNX wants one type")
    if call.known_operand(index) is not None and not _learns(call, index):
        array = call.array(index, "the bound").reshape(-1)
        if array.size == 1:
            return call.constant(array.reshape(()).astype(ELEMENT_TYPES[call.dtype(0)].numpy))
    bound = call.value(index)
    if call.scope.builder.types[bound].size != 1:
        call.fail(f"bound {index} must be one number")
    return call.reshape(bound, ())


def _max(call: Call) -> Operand:
    """The largest; of a call of `clamp`, x with a lower bound."""
    if not _clamp(call) or len(call.operands) != 2:
        return from_left(call, "maximum")
    low = _number(call)
    return call.emit("at_least", call.value(0), call.value(1)) if low is None else _between(call, low, np.inf)


def _min(call: Call) -> Operand:
    """The smallest; of a call of `clamp`, x with an upper bound."""
    if not _clamp(call) or len(call.operands) != 2:
        return from_left(call, "minimum")
    high = _number(call)
    return call.emit("at_most", call.value(0), call.value(1)) if high is None else _between(call, -np.inf, high)


def _number(call: Call) -> float | None:
    """The bound of a float, in operand 1, if it is a number that no parameter stands behind."""
    for index in (0, 1):
        call.require_dtype(index, NUMERIC)
    bound = call.known_operand(1)
    if bound is None or bound.trainable or call.dtype(0) not in REAL:
        return None
    if bound.array.size != 1 or bound.array.ndim > call.rank(0) or bool(np.isnan(bound.array).any()):
        return None
    return float(bound.array.reshape(-1)[0])


ROWS: Mapping[str, Rule] = {"Clip": _clip, "Max": _max, "Min": _min}

"""Element-wise arithmetic, comparisons and logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.folds.sizes import Fold, broadcasting, like_first, sized, variadic
from compiler.graph import Array


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    # ONNX integer division truncates towards zero.
    quotient = np.floor_divide(np.abs(x), np.abs(y))
    return np.asarray(np.sign(x) * np.sign(y) * quotient).astype(x.dtype)


def _mod(call: Call, x: Sequence[Array]) -> Array:
    sized(call, np.broadcast_shapes(x[0].shape, x[1].shape))
    fmod = call.attributes.integer("fmod", 0)
    return np.asarray(np.fmod(x[0], x[1]) if fmod else np.mod(x[0], x[1]))


def _clip(call: Call, x: Sequence[Array]) -> Array:
    low = call.array(1, "the lower bound") if call.has(1) else None
    high = call.array(2, "the upper bound") if call.has(2) else None
    return x[0] if low is None and high is None else np.asarray(np.clip(x[0], low, high))


def _where(call: Call, x: Sequence[Array]) -> Array:
    sized(call, np.broadcast_shapes(*(array.shape for array in x)))
    return np.where(x[0], x[1], x[2])


FOLDS: Mapping[str, Fold] = {
    "Abs": like_first(np.abs),
    "Add": broadcasting(np.add),
    "And": broadcasting(np.logical_and),
    "Ceil": like_first(np.ceil),
    "Clip": _clip,
    "Cos": like_first(np.cos),
    "Div": broadcasting(_divide),
    "Equal": broadcasting(np.equal),
    "Exp": like_first(np.exp),
    "Floor": like_first(np.floor),
    "Greater": broadcasting(np.greater),
    "GreaterOrEqual": broadcasting(np.greater_equal),
    "IsNaN": broadcasting(np.isnan),
    "Less": broadcasting(np.less),
    "LessOrEqual": broadcasting(np.less_equal),
    "Log": like_first(np.log),
    "Max": variadic(np.maximum),
    "Min": variadic(np.minimum),
    "Mod": _mod,
    "Mul": broadcasting(np.multiply),
    "Neg": broadcasting(np.negative),
    "Not": broadcasting(np.logical_not),
    "Or": broadcasting(np.logical_or),
    "Pow": like_first(np.power),
    "Reciprocal": like_first(np.reciprocal),
    "Relu": like_first(lambda x: np.maximum(x, 0)),
    "Sign": like_first(np.sign),
    "Sin": like_first(np.sin),
    "Sqrt": like_first(np.sqrt),
    "Sub": broadcasting(np.subtract),
    "Sum": variadic(np.add),
    "Where": _where,
    "Xor": broadcasting(np.logical_xor),
}

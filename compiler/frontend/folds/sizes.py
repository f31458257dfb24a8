"""Parts that folds are made of: a check of the result's size, and NumPy functions that broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from compiler.frontend.call import Call
from compiler.graph import Array

Fold = Callable[[Call, Sequence[Array]], "Array | tuple[Array, ...]"]


def sized(call: Call, shape: Sequence[int], item_bytes: int = 8) -> tuple[int, ...]:
    """The shape. Raises: LimitExceeded if an array of it is too large to compute at compile time."""
    call.scope.require_foldable(prod(shape) * item_bytes, call.node.where)
    return tuple(shape)


def broadcasting(function: Callable[..., Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        with np.errstate(all="ignore"):
            return np.asarray(function(*x))

    return fold


def variadic(function: Callable[[Any, Any], Any]) -> Fold:
    def fold(call: Call, x: Sequence[Array]) -> Array:
        sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        result = x[0]
        for operand in x[1:]:
            result = np.asarray(function(result, operand))
        return result

    return fold


def like_first(function: Callable[..., Any]) -> Fold:
    """Functions whose result keeps the first operand's element type."""

    def fold(call: Call, x: Sequence[Array]) -> Array:
        sized(call, np.broadcast_shapes(*(array.shape for array in x)))
        with np.errstate(all="ignore"):
            return np.asarray(function(*x)).astype(x[0].dtype, copy=False)

    return fold

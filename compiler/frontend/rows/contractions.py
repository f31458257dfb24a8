"""Import rows: matrix products, and the norm that is folded into what is before it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from compiler.element_types import REAL
from compiler.errors import ModelShapeError
from compiler.frontend import batch_norm
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


def _gemm(call: Call) -> Operand:
    """alpha A' B' + beta C, A' and B' transposed as the attributes say."""
    call.require_dtype(0, REAL)
    if call.rank(0) != 2 or call.rank(1) != 2:
        raise ModelShapeError(
            f"multiplies ranks {call.rank(0)} and {call.rank(1)}, both must be 2", where=call.node.where
        )
    a = call.value(0)
    transpose_a = bool(call.attributes.integer("transA", 0))
    transpose_b = bool(call.attributes.integer("transB", 0))
    weight = call.known_operand(1)
    if weight is None:
        b = call.value(1)
    else:
        b, transpose_b = call.scope.matrix(weight, (1, 0) if transpose_b else (0, 1))
    y = call.emit("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    y = _times(call, y, call.attributes.number("alpha", 1.0))
    beta = call.attributes.number("beta", 1.0)
    if not call.has(2) or beta == 0.0:
        call.scope.bias_of[y] = call.node.name
        return y
    constant = call.known_operand(2)
    bias = (
        call.value(2) if constant is None else call.scope.parameter(constant, range(constant.array.ndim), kind="bias")
    )
    return call.emit("add", y, _times(call, bias, beta))


def _times(call: Call, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else call.emit("mul", value, call.scalar(factor, value))


def _matmul(call: Call) -> Operand:
    """NumPy's matmul; a rank-1 operand is a row (left) or a column (right)."""
    call.require_dtype(0, REAL)
    call.require_dtype(1, REAL)
    a_shape, b_shape = call.shape(0), call.shape(1)
    if not a_shape or not b_shape:
        raise ModelShapeError("multiplies a scalar", where=call.node.where)
    b, transpose_b, has_weight = _right(call)
    a = call.reshape(call.value(0), (1, *a_shape)) if len(a_shape) == 1 else call.value(0)
    b = call.reshape(b, (*b_shape, 1)) if len(b_shape) == 1 else b
    y = _product(call, a, b, transpose_b=transpose_b)
    shape = list(call.shape_of(y))
    if len(a_shape) == 1:
        del shape[-2]
    if len(b_shape) == 1:
        del shape[-1]
    y = call.reshape(y, shape)
    if call.has(2) and call.node.inputs[2] in call.scope.created:  # which a plan asks for (`exporters/new_biases.py`)
        return call.emit("add", y, call.parameter_input(2, "bias"))
    if has_weight:
        call.scope.bias_of[y] = call.node.name
    return y


def _product(call: Call, a: Value, b: Value, *, transpose_b: bool) -> Value:
    """a times b, whose batch axes may broadcast in part, such as [2, 4, 8, 8] times [2, 1, 8, 8].

    Matrices of `a` that share one of `b` become rows of one product; what else is shared in part is repeated.
    """
    batch = np.broadcast_shapes(call.shape_of(a)[:-2], call.shape_of(b)[:-2])
    if all(prod(call.shape_of(x)[:-2]) in (1, prod(batch)) for x in (a, b)):
        return call.emit("matmul", a, b, transpose_a=False, transpose_b=transpose_b)
    a, b = (call.reshape(x, (*(1,) * (len(batch) + 2 - len(call.shape_of(x))), *call.shape_of(x))) for x in (a, b))
    rows, columns = call.shape_of(a)[-2], call.shape_of(b)[-2 if transpose_b else -1]
    apart = batch
    if call.shape_of(a)[:-2] == batch:
        while call.shape_of(b)[len(apart) - 1] == 1:
            apart = apart[:-1]
        a = call.reshape(a, (*apart, prod(batch[len(apart) :]) * rows, call.shape_of(a)[-1]))
        b = call.reshape(b, (*call.shape_of(b)[: len(apart)], *call.shape_of(b)[-2:]))
    a, b = (_repeated(call, x, apart) for x in (a, b))
    y = call.emit("matmul", a, b, transpose_a=False, transpose_b=transpose_b)
    return call.reshape(y, (*batch, rows, columns))


def _repeated(call: Call, x: Value, batch: tuple[int, ...]) -> Value:
    shape = (*batch, *call.shape_of(x)[-2:])
    return x if call.shape_of(x) == shape else call.emit("broadcast_to", x, shape=shape)


def _right(call: Call) -> tuple[Value, bool, bool]:
    """(right operand, whether it is stored transposed, whether it is a weight matrix)."""
    weight = call.known_operand(1)
    if weight is not None and weight.trainable and weight.array.ndim == 2:
        name, transposed = call.scope.matrix(weight, (0, 1))
        return name, transposed, True
    return call.value(1), False, False


ROWS: Mapping[str, Rule] = {
    "BatchNormalization": batch_norm.batch_normalization,
    "Gemm": _gemm,
    "MatMul": _matmul,
}

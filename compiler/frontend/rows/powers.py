"""Import row: powers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import KnownOperand, Operand
from compiler.values import Value

MOST_FACTORS = 64
"""A power of integers is a product: in f32 it would be wrong by rounding."""


def _pow(call: Call) -> Operand:
    """Small constant exponents become products, which keeps gradients exact and cheap."""
    call.require_dtype(0, NUMERIC)
    call.require_dtype(1, (*NUMERIC, "float16", "float64", "uint8", "uint16", "uint32", "uint64", "int8", "int16"))
    exponent = call.known_operand(1)
    if call.dtype(0) not in REAL:
        return _whole_power(call, exponent)
    learns = exponent is not None and not {exponent.source, *exponent.behind}.isdisjoint(call.scope.recorded)
    if exponent is None or exponent.array.size != 1 or learns:
        return call.emit("pow", call.value(0), _real_exponent(call, exponent))
    power = float(call.array(1, "the exponent").reshape(-1)[0])
    shape = np.broadcast_shapes(call.shape(0), exponent.array.shape)
    return call.reshape(_power(call, call.value(0), power), shape)


def _real_exponent(call: Call, exponent: KnownOperand | None) -> Value:
    if call.dtype(1) in REAL:
        return call.value(1)
    if exponent is not None:
        return call.constant(exponent.array.astype(np.float32))
    return call.emit("cast", call.value(1), to=REAL[0])


def _power(call: Call, x: Value, power: float) -> Value:
    if power in (1.0, 2.0, 3.0, 4.0):
        square = call.emit("mul", x, x) if power > 1 else x
        return call.emit("mul", square, x if power == 3.0 else square) if power > 2 else square
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    return call.emit(roots[power], x) if power in roots else call.emit("pow", x, call.scalar(power, x))


def _whole_power(call: Call, exponent: KnownOperand | None) -> Operand:
    """The product of as many factors as the exponent says, by squaring."""
    if exponent is None or exponent.array.size != 1:
        call.unsupported("powers of integers need one exponent that is known", "cast the base to float32 first")
    power = float(exponent.array.reshape(-1)[0])
    if not 1 <= power <= MOST_FACTORS or power != int(power):
        call.unsupported(
            f"powers of integers need a whole exponent from 1 to {MOST_FACTORS}, is {power:g}",
            "cast the base to float32 first",
        )
    shape = np.broadcast_shapes(call.shape(0), exponent.array.shape)
    result, square = None, call.value(0)
    for bit in reversed(f"{int(power):b}"):
        if bit == "1":
            result = square if result is None else call.emit("mul", result, square)
        square = call.emit("mul", square, square)
    assert result is not None
    return call.reshape(result, shape)


ROWS: Mapping[str, Rule] = {"Pow": _pow}

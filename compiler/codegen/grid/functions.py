"""Scalar functions on a device: its own, which every OpenCL and CUDA has, with errors of a few units in the last place.

Largest errors that the languages allow, in units in the last place: OpenCL C (7.4) exp, log 3, tanh 5, erf 16, sin, cos
4, atan 5, pow 16, square root 3, division 2.5; CUDA (mathematical functions appendix) 2 or less, pow 4.
"""

from __future__ import annotations

import math
import struct

from tvm import tirx

from compiler.codegen.tir import scalar_math, tir
from compiler.codegen.tir.expressions import Functions
from compiler.codegen.tir.tir import Block, Value, broadcast
from compiler.errors import InternalError

BITS = "pf_float_of"
"""The kernels' name for the real number with these bits; each language has its own word."""


def number(value: float, element: str = "float32", lanes: int = 1) -> Value:
    """A constant. TVM writes reals in OpenCL with seven digits: one that this rounds is written by its bits."""
    if element != "float32" or not math.isfinite(value) or _bits(float(f"{_nearest(value):e}")) == _bits(value):
        return tir.literal(value, element, lanes)
    bits = tirx.IntImm("int32", struct.unpack("<i", _bits(value))[0])
    return broadcast(tirx.call_pure_extern("float32", BITS, bits), lanes)


def _bits(value: float) -> bytes:
    return struct.pack("<f", value)


def _nearest(value: float) -> float:
    return float(struct.unpack("<f", _bits(value))[0])


def _one(x: Value) -> Value:
    return tir.literal(1.0, "float32", tir.lanes_of(x))


def sigmoid(block: Block, x: Value) -> Value:
    """1 / (1 + e**-x)."""
    negative = tirx.Mul(x, tir.literal(-1.0, "float32", tir.lanes_of(x)))
    return tirx.Div(_one(x), tirx.Add(_one(x), tirx.exp(negative)))


def _power(block: Block, x: Value, y: Value) -> Value:
    short = scalar_math.short_power(block, x, y)
    return tirx.pow(x, y) if short is None else short


UNARY = {
    **{name: scalar_math.UNARY_F32[name] for name in ("abs", "floor", "reciprocal", "rsqrt", "sqrt")},
    "atan": lambda block, x: tirx.atan(x),
    "cos": lambda block, x: tirx.cos(x),
    "erf": lambda block, x: tirx.erf(x),
    "exp": lambda block, x: tirx.exp(x),
    "log": lambda block, x: tirx.log(x),
    "sigmoid": sigmoid,
    "sin": lambda block, x: tirx.sin(x),
    "tanh": lambda block, x: tirx.tanh(x),
}
if set(UNARY) != set(scalar_math.UNARY_F32):
    raise InternalError(f"a device has no functions for {set(scalar_math.UNARY_F32) - set(UNARY)}")

DEVICE = Functions(UNARY, _power, lambda block, x, y: tirx.fmod(x, y), number)
"""Functions with which expressions are evaluated in kernels for a grid."""

"""Remainders, quotients of integers, and operations on bits.

A division of integers by zero, or of the smallest by -1, traps on x86: such a divisor is replaced by 1 and the result
put in its place, 0 or the negated dividend, as NumPy has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tvm import tirx

from compiler.codegen.tir.tir import Block, Value, base, dtype, lanes_of, literal


def _like(value: float, x: Value) -> Value:
    return literal(value, base(x), lanes_of(x))


def quotient(block: Block, x: Value, y: Value) -> Value:
    """x / y of integers, towards zero."""
    if _is_plain(y):
        return tirx.truncdiv(x, y)
    inside = tirx.truncdiv(x, block.let(_safe(y), "divisor"))
    value = tirx.Select(tirx.EQ(y, _like(-1, y)), tirx.Sub(_like(0, x), x), inside)
    return tirx.Select(tirx.EQ(y, _like(0, y)), _like(0, x), value)


def _is_plain(y: Value) -> bool:
    scalar = y.value if isinstance(y, tirx.Broadcast) else y
    return isinstance(scalar, tirx.IntImm) and int(scalar.value) not in (0, -1)


def _safe(y: Value) -> Value:
    odd = tirx.Or(tirx.EQ(y, _like(0, y)), tirx.EQ(y, _like(-1, y)))
    return tirx.Select(odd, _like(1, y), y)


def whole_rest(block: Block, x: Value, y: Value) -> Value:
    """x - y trunc(x / y) of integers, 0 for y = 0."""
    return tirx.truncmod(x, y) if _is_plain(y) else tirx.truncmod(x, block.let(_safe(y), "divisor"))


def real_rest(block: Block, x: Value, y: Value) -> Value:
    """C's `fmod`, in f64: exact for |x / y| < 2**29, where the product of divisor and quotient has 53 bits."""
    wide = dtype("float64", lanes_of(x))
    size, step = (block.let(tirx.abs(tirx.Cast(wide, part)), "a") for part in (x, y))
    turns = block.let(tirx.floor(tirx.Div(size, step)), "q")
    rest = block.let(tirx.Sub(size, tirx.Mul(turns, step)), "r")
    rest = block.let(tirx.Select(tirx.LT(rest, _like(0, rest)), tirx.Add(rest, step), rest), "r")
    rest = block.let(tirx.Select(tirx.LE(step, rest), tirx.Sub(rest, step), rest), "r")
    within = tirx.And(tirx.LT(size, _like(math.inf, size)), tirx.EQ(step, _like(math.inf, step)))
    rest = block.let(tirx.Select(within, size, rest), "r")
    signed = tirx.Select(tirx.LT(x, _like(0, x)), tirx.Sub(_like(0, rest), rest), rest)
    return tirx.Cast(dtype("float32", lanes_of(x)), block.let(signed, "r"))


def with_sign_of_divisor(block: Block, rest: Value, x: Value, y: Value) -> Value:
    """x - y floor(x / y), 0 for integers over 0; `rest` is x - y trunc(x / y)."""
    rest = block.let(rest, "rest")
    zero = _like(0, x)
    below, beneath = tirx.LT(rest, zero), tirx.LT(y, zero)
    apart = tirx.Or(tirx.And(below, tirx.Not(beneath)), tirx.And(beneath, tirx.Not(below)))
    moved = tirx.And(apart, tirx.Not(tirx.EQ(rest, zero)))
    if not base(x).startswith("float"):
        moved = tirx.And(moved, tirx.Not(tirx.EQ(y, _like(0, y))))
    return tirx.Select(moved, tirx.Add(rest, y), rest)


BITS: Mapping[str, Callable[[Value, Value], Value]] = {
    "bit_and": tirx.bitwise_and,
    "bit_or": tirx.bitwise_or,
    "bit_xor": tirx.bitwise_xor,
    "shift_left": tirx.shift_left,
}
"""(x, y) -> value, integers of one type."""

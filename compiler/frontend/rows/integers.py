"""Import rows: remainders, quotients, and operations on the bits of integers."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand

_WHOLE = tuple(name for name in NUMERIC if name not in REAL)


def _two(call: Call, allowed: tuple[str, ...]) -> None:
    call.require_dtype(0, allowed)
    if call.dtype(0) != call.dtype(1):
        call.fail(f"its operands have types {call.dtype(0)} and {call.dtype(1)}; ONNX wants one type")


def _mod(call: Call) -> Operand:
    """Imports a remainder with the sign of the divisor, or with that of the dividend (`fmod`)."""
    _two(call, NUMERIC)
    fmod = call.attributes.integer("fmod", 0)
    return call.emit("fmod" if fmod else "mod", call.value(0), call.value(1))


def _bits(op: str) -> Rule:
    def rule(call: Call) -> Operand:
        _two(call, _WHOLE)
        return call.emit(op, call.value(0), call.value(1))

    return rule


def _bit_not(call: Call) -> Operand:
    """-1 - x."""
    call.require_dtype(0, _WHOLE)
    x = call.value(0)
    return call.emit("sub", call.scalar(-1, x), x)


ROWS: Mapping[str, Rule] = {
    "BitwiseAnd": _bits("bit_and"),
    "BitwiseNot": _bit_not,
    "BitwiseOr": _bits("bit_or"),
    "BitwiseXor": _bits("bit_xor"),
    "Mod": _mod,
}

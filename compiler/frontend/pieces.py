"""Parts that import rows are written with: repetition, positions counted from the front, one axis or all from
there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.source import OPSETS
from compiler.frontend.scope import KnownOperand, Operand
from compiler.values import Value


def repeated(call: Call, value: Value, times: Sequence[tuple[int, int]]) -> Value:
    """Repeats each element along some axes (axis, times) that often in a row: [a, b] seen as [a, 1, b, 1], broadcast.

    As many axes at once as the limit on ranks allows.
    """
    room = call.scope.limits.rank - len(call.shape_of(value))
    step = max(room, 1)
    for start in range(0, len(times), step):
        value = _repeated(call, value, dict(times[start : start + step]))
    return value


def _repeated(call: Call, value: Value, times: dict[int, int]) -> Value:
    shape = call.shape_of(value)
    spread = [extent for axis, whole in enumerate(shape) for extent in ((whole, 1) if axis in times else (whole,))]
    wide = [extent for axis, size in enumerate(shape) for extent in ((size, times[axis]) if axis in times else (size,))]
    broadcast = call.emit("broadcast_to", call.reshape(value, spread), shape=tuple(wide))
    return call.reshape(broadcast, [extent * times.get(axis, 1) for axis, extent in enumerate(shape)])


def checked_index(call: Call, position: int, extent: int) -> Operand:
    """An operand of positions along an axis of `extent`; known ones must lie within it."""
    index = call.operand(position)
    call.require_dtype(position, ("i64", "i32"))
    if isinstance(index, KnownOperand) and index.array.size:
        low, high = int(index.array.min()), int(index.array.max())
        if not -extent <= low <= high < extent:
            call.fail(f"index {low if low < -extent else high} of an axis of extent {extent}")
    return index


def from_left(call: Call, op: str) -> Value:
    """Combines all operands by an operator of two, from the first on."""
    for index in range(len(call.operands)):
        call.require_dtype(index, NUMERIC)
    result = call.value(0)
    for index in range(1, len(call.operands)):
        result = call.emit(op, result, call.value(index))
    return result


def over_axis(apply: Callable[[Call, Value, int], Value]) -> Rule:
    """The row of an operator over one axis; before opset 13, over all axes from that one on, as if they were one."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        shape, is_old = call.shape(0), call.opset < OPSETS[0]
        axis = call.axis(call.attributes.integer("axis", 1 if is_old else -1), len(shape))
        if not is_old or axis == len(shape) - 1:
            return apply(call, call.value(0), axis)
        flat = call.reshape(call.value(0), (prod(shape[:axis]), prod(shape[axis:])))
        return call.reshape(apply(call, flat, 1), shape)

    return rule

"""Import rows: reductions and global pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from compiler.element_types import NUMERIC, REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.graph import AttrValue
from compiler.values import Value

Body = Callable[[Call, Value, tuple[int, ...], bool], Value]
"""(call, x, axes, keep the reduced axes) -> the reduced value."""


def _reduction(body: Body, dtypes: tuple[str, ...] = REAL) -> Rule:
    def rule(call: Call) -> Operand:
        call.require_dtype(0, dtypes)
        axes = _axes(call)
        keep = bool(call.attributes.integer("keepdims", 1))
        return body(call, call.value(0), axes, keep) if axes else call.value(0)

    return rule


def _axes(call: Call) -> tuple[int, ...]:
    """Axes are an input since opset 13 (ReduceSum) or 18 (the others), an attribute before; none given means all."""
    listed = call.integers(1, "the axes") if call.has(1) else call.attributes.integers("axes")
    untouched = bool(call.attributes.integer("noop_with_empty_axes", 0))
    if listed:
        return call.axes(listed, call.rank(0))
    return () if untouched else tuple(range(call.rank(0)))


def _plain(op: str) -> Body:
    def body(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
        return call.emit(op, x, axes=axes, keepdims=keep)

    return body


def _max(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if call.dtype(0) != "bool":
        return call.emit("reduce_max", x, axes=axes, keepdims=keep)
    whole = call.emit("reduce_max", call.emit("cast", x, to="i32"), axes=axes, keepdims=keep)
    return call.emit("cast", whole, to="bool")


def _min(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return _turned(call, _max(call, _turned(call, x), axes, keep))


def _turned(call: Call, x: Value) -> Value:
    """Returns x in the opposite order: of integers -1 - x, which unlike -x turns all of them."""
    kind = call.dtype(0)
    if kind == "bool":
        return call.emit("not", x)
    return call.emit("neg", x) if kind in REAL else call.emit("sub", call.scalar(-1, x), x)


def _product(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """Halves multiplied with each other until one element is left: no gradient divides by an element."""
    shape, rows = call.shape_of(x), _rows(call, x, axes)
    while (extent := call.shape_of(rows)[-1]) > 1:
        half = extent // 2
        product = call.emit("mul", _part(call, rows, 0, half), _part(call, rows, half, 2 * half))
        rest = [_part(call, rows, 2 * half, extent)] if extent % 2 else []
        rows = call.emit("concat", product, *rest, axis=len(call.shape_of(rows)) - 1) if rest else product
    return call.reshape(rows, _reduced(shape, axes, keep))


def _part(call: Call, rows: Value, start: int, stop: int) -> Value:
    shape = call.shape_of(rows)
    starts, steps = (*(0 for _ in shape[1:]), start), tuple(1 for _ in shape)
    return call.emit("slice", rows, starts=starts, stops=(*shape[:-1], stop), steps=steps)


def _log_sum(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return call.emit("log", call.emit("reduce_sum", x, axes=axes, keepdims=keep))


def _sum_square(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return call.emit("reduce_sum", call.emit("mul", x, x), axes=axes, keepdims=keep)


def _l2(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """The root's slope at zero counts as zero, as a norm's does in PyTorch: 0 / 0 would make a row of zeros NaN."""
    return call.emit("safe_power", _sum_square(call, x, axes, keep), exponent=0.5)


def _l1(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return call.emit("reduce_sum", call.emit("abs", x), axes=axes, keepdims=keep)


def _log_sum_exp(call: Call, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    y = call.emit("log_sum_exp", _rows(call, x, axes))
    return call.reshape(y, _reduced(call.shape_of(x), axes, keep))


def _rows(call: Call, x: Value, axes: tuple[int, ...]) -> Value:
    """The reduced axes moved to the end, where they are one."""
    shape = call.shape_of(x)
    remaining = tuple(i for i in range(len(shape)) if i not in axes)
    moved = call.transpose(x, (*remaining, *sorted(axes)))
    return call.reshape(moved, (*(shape[i] for i in remaining), prod(shape[i] for i in axes)))


def _reduced(shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> tuple[int, ...]:
    if keep:
        return tuple(1 if i in axes else extent for i, extent in enumerate(shape))
    return tuple(extent for i, extent in enumerate(shape) if i not in axes)


def _image(call: Call) -> Value:
    call.require_dtype(0, REAL)
    if call.rank(0) < 3:
        call.fail(f"needs a tensor [N, C, ...], has rank {call.rank(0)}")
    return call.value(0)


def _global_average(call: Call) -> Operand:
    """[N, C, ...] -> [N, C, 1 ...]."""
    return call.emit("reduce_mean", _image(call), axes=tuple(range(2, call.rank(0))), keepdims=True)


def _global_max(call: Call) -> Operand:
    """[N, C, ...] -> [N, C, 1 ...]: one window, whose first maximum takes the gradient, as in PyTorch's pooling."""
    x, shape = _image(call), call.shape(0)
    image = (*shape[:2], prod(shape[2:-1]), shape[-1])
    window: dict[str, AttrValue] = {"kernel": image[2:], "strides": (1, 1), "pads": (0, 0, 0, 0)}
    y = call.emit("max_pool", call.to_last(call.reshape(x, image), 1), **window)
    return call.reshape(call.from_last(y, 1), (*shape[:2], *(1 for _ in shape[2:])))


ROWS: Mapping[str, Rule] = {
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "ReduceL1": _reduction(_l1, NUMERIC),
    "ReduceL2": _reduction(_l2),
    "ReduceLogSum": _reduction(_log_sum),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_max, (*NUMERIC, "bool")),
    "ReduceMean": _reduction(_plain("reduce_mean")),
    "ReduceMin": _reduction(_min, (*NUMERIC, "bool")),
    "ReduceProd": _reduction(_product, NUMERIC),
    "ReduceSum": _reduction(_plain("reduce_sum"), NUMERIC),
    "ReduceSumSquare": _reduction(_sum_square, NUMERIC),
}

"""Import rows: reductions and global pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand

Body = Callable[[Call, str, tuple[int, ...], bool], str]
"""(call, x, axes, keep the reduced axes) -> the reduced value."""


def _reduction(body: Body) -> Rule:
    def rule(call: Call) -> Operand:
        call.require_dtype(0, ("f32",))
        axes = _axes(call)
        keep = bool(call.attributes.integer("keepdims", 1))
        return body(call, call.value(0), axes, keep) if axes else call.value(0)

    return rule


def _axes(call: Call) -> tuple[int, ...]:
    """Axes are an input since opset 13 (ReduceSum) or 18 (the others), an attribute before; none given means all."""
    given = call.integers(1, "the axes") if call.has(1) else call.attributes.integers("axes")
    untouched = bool(call.attributes.integer("noop_with_empty_axes", 0))
    if given:
        return call.axes(given, call.rank(0))
    return () if untouched else tuple(range(call.rank(0)))


def _plain(op: str) -> Body:
    def body(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
        return call.emit(op, x, axes=axes, keepdims=keep)

    return body


def _min(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
    return call.emit("neg", call.emit("reduce_max", call.emit("neg", x), axes=axes, keepdims=keep))


def _sum_square(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
    return call.emit("reduce_sum", call.emit("mul", x, x), axes=axes, keepdims=keep)


def _l2(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
    return call.emit("sqrt", _sum_square(call, x, axes, keep))


def _l1(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
    return call.emit("reduce_sum", call.emit("abs", x), axes=axes, keepdims=keep)


def _log_sum_exp(call: Call, x: str, axes: tuple[int, ...], keep: bool) -> str:
    """log sum exp(x - max) + max."""
    top = call.emit("reduce_max", x, axes=axes, keepdims=True)
    total = call.emit("reduce_sum", call.emit("exp", call.emit("sub", x, top)), axes=axes, keepdims=True)
    result = call.emit("add", call.emit("log", total), top)
    shape = [extent for i, extent in enumerate(call.shape_of(result)) if keep or i not in axes]
    return call.reshape(result, shape)


def _global(op: str) -> Rule:
    """Global pooling: [N, C, H, W] -> [N, C, 1, 1]."""

    def rule(call: Call) -> Operand:
        call.require_dtype(0, ("f32",))
        if call.rank(0) < 3:
            call.fail(f"needs a tensor [N, C, ...], has rank {call.rank(0)}")
        return call.emit(op, call.value(0), axes=tuple(range(2, call.rank(0))), keepdims=True)

    return rule


ROWS: Mapping[str, Rule] = {
    "GlobalAveragePool": _global("reduce_mean"),
    "GlobalMaxPool": _global("reduce_max"),
    "ReduceL1": _reduction(_l1),
    "ReduceL2": _reduction(_l2),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_plain("reduce_max")),
    "ReduceMean": _reduction(_plain("reduce_mean")),
    "ReduceMin": _reduction(_min),
    "ReduceSum": _reduction(_plain("reduce_sum")),
    "ReduceSumSquare": _reduction(_sum_square),
}

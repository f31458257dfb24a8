"""Import rows: pooling windows over images [N, C, ...] of rank 1 to 3, and what undoes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.frontend.sliding.depth import depth_placed, few_taps
from compiler.frontend.sliding.pools import averaged, highest, positions
from compiler.frontend.sliding.windows import Window, per_axis, window_of
from compiler.values import Value


def _max_pool(call: Call) -> Operand | tuple[Operand, ...]:
    """Source: ONNX MaxPool (opset 12 and 22). Its gradient goes to the first maximum of a window, as in PyTorch."""
    window, _ = _window(call)
    by_columns = bool(call.attributes.integer("storage_order", 0))
    x = call.to_last(call.value(0), 1)
    y = call.from_last(highest(call, x, window), 1)
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return y
    return y, call.from_last(positions(call, x, window, column_major=by_columns), 1)


def _average_pool(call: Call) -> Operand:
    """Source: ONNX AveragePool (opset 19 and 22)."""
    window, beyond = _window(call)
    counted = bool(call.attributes.integer("count_include_pad", 0))
    return call.from_last(averaged(call, call.to_last(call.value(0), 1), window, counted, beyond), 1)


def _lp_pool(call: Call) -> Operand:
    """(sum of |x|^p)^(1/p) over each window. Source: ONNX LpPool (opset 18 and 22)."""
    window, _ = _window(call)
    p = _norm(call)
    x = call.to_last(_powers(call, call.value(0), p), 1)
    mean = averaged(call, x, window, True, (0,) * window.rank)
    total = call.emit("mul", mean, call.scalar(float(prod(window.kernel)), mean))
    return call.from_last(_root(call, total, p), 1)


def _global_lp_pool(call: Call) -> Operand:
    """[N, C, ...] -> [N, C, 1 ...]. Source: ONNX GlobalLpPool (opset 2 and 22)."""
    call.require_dtype(0, REAL)
    if call.rank(0) < 3:
        call.fail(f"needs a tensor [N, C, ...], has rank {call.rank(0)}")
    p = _norm(call)
    powers = _powers(call, call.value(0), p)
    return _root(call, call.emit("reduce_sum", powers, axes=tuple(range(2, call.rank(0))), keepdims=True), p)


def _norm(call: Call) -> int:
    p = call.attributes.integer("p", 2)
    return p if p >= 1 else call.fail(f"p is {p}, must be at least 1")


def _powers(call: Call, x: Value, p: int) -> Value:
    if p == 2:
        return call.emit("mul", x, x)
    size = call.emit("abs", x)
    return size if p == 1 else call.emit("pow", size, call.scalar(float(p), size))


def _root(call: Call, total: Value, p: int) -> Value:
    """The root's slope at zero counts as zero, as in PyTorch's pool: 0 / 0 would make a window of zeros NaN."""
    return total if p == 1 else call.emit("safe_power", total, exponent=1 / p)


def _window(call: Call) -> tuple[Window, tuple[int, ...]]:
    """The window, and how far ceil_mode has moved its last pads (positions that no average counts)."""
    call.require_dtype(0, REAL)
    size = call.shape(0)[2:]
    if not 1 <= len(size) <= 3:
        call.unsupported(f"pools rank {call.rank(0)}; supported: [N, C, ...] with 1 to 3 image axes")
    window = window_of(call, size, _kernel(call, len(size)))
    if not call.attributes.integer("ceil_mode", 0):
        return window, (0,) * len(size)
    last = _ceiling_pads(size, window)
    return replace(window, last=last), tuple(b - a for a, b in zip(window.last, last, strict=True))


def _kernel(call: Call, rank: int) -> tuple[int, ...]:
    if "kernel_shape" not in call.attributes:
        call.fail("kernel_shape is missing")
    return per_axis(call, "kernel_shape", rank)


def _ceiling_pads(size: tuple[int, ...], window: Window) -> tuple[int, ...]:
    """Pads at the end that make the rounded-up windows fit; a window that would start past the input is dropped."""
    ends = []
    for extent, reach, stride, first, last in zip(
        size, window.reach, window.strides, window.first, window.last, strict=True
    ):
        count = -(-(extent + first + last - reach) // stride) + 1
        count -= (count - 1) * stride >= extent + first
        ends.append(max(last, (count - 1) * stride + reach - extent - first))
    return tuple(ends)


def _max_unpool(call: Call) -> Operand:
    """Puts each x at its place, with zeros elsewhere. Source: ONNX MaxUnpool (opset 11 and 22)."""
    call.require_dtype(0, REAL)
    call.require_dtype(1, ("i64",))
    x, shape = call.value(0), call.shape(0)
    size = shape[2:]
    kernel, strides = _kernel(call, len(size)), per_axis(call, "strides", len(size))
    if any(stride < taps for stride, taps in zip(strides, kernel, strict=True)):
        call.unsupported(
            "its windows overlap, so that several values may have one place", "use strides >= kernel_shape"
        )
    pads = call.attributes.integers("pads") or (0,) * (2 * len(size))
    if len(pads) != 2 * len(size) or call.shape(1) != shape:
        call.fail("its pads or its indices do not fit its input")
    ends = zip(size, kernel, strides, pads, pads[len(size) :], strict=False)
    full = (*shape[:2], *((n - 1) * stride + taps - first - last for n, taps, stride, first, last in ends))
    places = call.reshape(call.value(1), (prod(shape),))
    flat = call.emit("scatter_add", places, call.reshape(x, (prod(shape), 1)), axis=0, shape=(prod(full), 1))
    y = call.reshape(flat, full)
    output_shape = call.integers(2, "the output shape") if call.has(2) else full
    if len(output_shape) != len(full) or any(b < a for a, b in zip(full, output_shape, strict=True)):
        call.unsupported(f"output_shape {list(output_shape)}: expected at least {list(full)}")
    after = tuple(b - a for a, b in zip(full, output_shape, strict=True))
    return call.emit("pad", y, before=(0,) * len(full), after=after, value=0.0) if any(after) else y


def _col2im(call: Call) -> Operand:
    """[N, C prod(block), L] -> [N, C, *image]: overlapping blocks summed. Source: ONNX Col2Im (opset 18)."""
    call.require_dtype(0, REAL)
    size, block = call.integers(1, "the image shape"), call.integers(2, "the block shape")
    rank = len(size)
    if call.rank(0) != 3 or len(block) != rank or not 1 <= rank <= 5 or min(*size, *block) < 1:
        call.fail(f"image {list(size)} and block {list(block)} do not fit {list(call.shape(0))}")
    window = window_of(call, size, block)
    counts = window.outputs(call, size)
    n, channels, blocks = call.shape(0)
    if blocks != prod(counts) or channels % prod(block):
        call.fail(f"{list(call.shape(0))} does not hold {prod(counts)} blocks of {prod(block)} elements")
    c, value = channels // prod(block), call.value(0)
    # Axis by axis: [N, C, taps ..., places ...] -> [N, done ..., places ..., taps ..., C], next place and tap first.
    value = call.transpose(call.reshape(value, (n, c, *block, *counts)), _blocks_last(rank))
    for axis in range(rank):
        few_taps(call, block[axis])
        rest = prod(counts[axis + 1 :]), prod(block[axis + 1 :]) * c
        lines = call.reshape(value, (n * prod(size[:axis]) * counts[axis], rest[0], block[axis], rest[1]))
        taps = [
            call.reshape(call.cut(lines, 2, tap, tap + 1), (n * prod(size[:axis]) * counts[axis], *rest))
            for tap in range(block[axis])
        ]
        value = depth_placed(call, taps, n * prod(size[:axis]), window.axes(axis), size[axis])
    return call.from_last(call.reshape(value, (n, *size, c)), 1)


def _blocks_last(rank: int) -> tuple[int, ...]:
    return (0, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank), 1)


ROWS: Mapping[str, Rule] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    "GlobalLpPool": _global_lp_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}

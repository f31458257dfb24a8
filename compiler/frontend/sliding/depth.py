"""Volumes [N, D, H, W, C] as images: what each tap of a window along the depth sees, and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from compiler.errors import LimitExceeded
from compiler.frontend.call import Call
from compiler.frontend.sliding.windows import Window
from compiler.values import Value

_MOST_TAPS = 256


def few_taps(call: Call, count: int) -> None:
    """Refuses what would become a node for each of very many taps. Raises: LimitExceeded."""
    if count > _MOST_TAPS:
        raise LimitExceeded(
            f"a window of {count} along one axis, the limit is {_MOST_TAPS} here", where=call.node.where
        )


def depth_taps(call: Call, x: Value, window: Window, fill: float = 0.0) -> list[Value]:
    """Returns [N OD, H, W, C] for each tap, where `window` moves along the depth alone. Padding holds `fill`.

    Depths are first cut into rows of one stride: each tap is then a range of rows, at one place in them.
    """
    n, depth, *image = call.shape_of(x)
    (count,), (stride,) = window.outputs(call, (depth,)), window.strides
    few_taps(call, window.kernel[0])
    offsets = [tap * window.dilations[0] for tap in range(window.kernel[0])]
    rows = count + offsets[-1] // stride
    flat = _fitted(call, call.reshape(x, (n, depth, prod(image))), window.first[0], rows * stride, fill)
    rowed = call.reshape(flat, (n, rows, stride, prod(image)))
    taps = []
    for offset in offsets:
        row, place = divmod(offset, stride)
        tap = call.cut(call.cut(rowed, 1, row, row + count), 2, place, place + 1)
        taps.append(call.reshape(tap, (n * count, *image)))
    return taps


def depth_placed(call: Call, taps: Sequence[Value], n: int, window: Window, depth: int) -> Value:
    """[N D, H, W, C], the sum of what each tap [N ID, H, W, C] puts where `depth_taps` had read it."""
    slices, *image = call.shape_of(taps[0])
    input_depth, (stride,) = slices // n, window.strides
    total: Value | None = None
    for tap, value in enumerate(taps):
        flat = call.reshape(value, (n, input_depth, 1, prod(image)))
        if stride > 1:
            flat = call.emit("pad", flat, before=(0, 0, 0, 0), after=(0, 0, stride - 1, 0), value=0.0)
        flat = call.reshape(flat, (n, input_depth * stride, prod(image)))
        first = tap * window.dilations[0] - window.first[0]
        if first >= depth or first + input_depth * stride <= 0:
            continue
        placed = _fitted(call, flat, first, depth, 0.0)
        total = placed if total is None else call.emit("add", total, placed)
    if total is None:
        call.fail(f"its pads {(*window.first, *window.last)} leave nothing of what its windows reach")
    return call.reshape(total, (n * depth, *image))


def _fitted(call: Call, flat: Value, first: int, extent: int, fill: float) -> Value:
    """[N, D, R] -> [N, extent, R], its own first row at `first`: cut, or continued with `fill`."""
    have = call.shape_of(flat)[1]
    flat = call.cut(flat, 1, max(-first, 0), min(have, extent - first))
    before = max(first, 0)
    after = extent - before - call.shape_of(flat)[1]
    if not before and not after:
        return flat
    return call.emit("pad", flat, before=(0, before, 0), after=(0, after, 0), value=fill)

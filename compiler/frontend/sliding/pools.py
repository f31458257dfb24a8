"""Pools of any rank, channels last, as 2-D kernels: a pool of a volume is one of its planes and one along the depth.

Both maxima and means are found axis by axis: the first maximum in row-major order is the first plane's that holds it,
and a mean's count is a product of counts along the axes. Dilated pools, for which there is no kernel, are made of
slices (maxima) or of a depth-wise convolution with equal weights (means).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.folds.sizes import sized
from compiler.frontend.sliding.depth import depth_taps
from compiler.frontend.sliding.images import plane_of
from compiler.frontend.sliding.windows import Window
from compiler.graph import Array, AttrValue
from compiler.values import Value

_NONE = (0, 0)


def highest(call: Call, x: Value, window: Window) -> Value:
    """x: [N, ..., C] -> y: [N, ..., C], the highest of each window; padding never wins."""
    n, *size, c = call.shape_of(x)
    window = _within(window, size)
    out = window.outputs(call, size)
    if _is_dilated(window):
        for axis in reversed(range(window.rank)):
            x = _highest_along(call, x, axis, window.axes(axis))
        return x
    images = call.reshape(x, (n * prod(size[:-2]), *((1, *size)[-2:]), c))
    y = call.emit("max_pool", images, **_kernel_window(plane_of(window)))
    if window.rank == 3:
        columns = call.reshape(y, (n, size[0], out[1] * out[2], c))
        y = call.emit("max_pool", columns, **_kernel_window(window.axes(0, -1)))
    return call.reshape(y, (n, *out, c))


def averaged(call: Call, x: Value, window: Window, counted: bool, beyond: tuple[int, ...]) -> Value:
    """x: [N, ..., C] -> y: [N, ..., C], the mean of each window.

    `counted`: padding counts as zeros, less the last `beyond` positions, to which rounding up has moved the end.
    """
    n, *size, c = call.shape_of(x)
    inner = _within(window, size)
    if inner != window:
        return _averaged_whole(call, x, (window, inner), counted, beyond)
    out = window.outputs(call, size)
    rank = window.rank
    images = call.reshape(x, (n * prod(size[:-2]), *((1, *size)[-2:]), c))
    y = _averaged_planes(call, images, plane_of(window), counted, (0, *beyond)[-2:])
    if rank == 3:
        columns = call.reshape(y, (n, size[0], out[1] * out[2], c))
        y = _averaged_planes(call, columns, window.axes(0, -1), counted, (beyond[0], 0))
    return call.reshape(y, (n, *out, c))


def positions(call: Call, x: Value, window: Window, *, column_major: bool) -> Value:
    """x: [N, ..., C] -> [N, ..., C] i64: where in [N, C, ...] each window's first maximum lies, counted flat."""
    n, *size, c = call.shape_of(x)
    sized(call, (n, *size, c))
    places = np.arange(prod(size), dtype=np.int64)
    places = places.reshape(size[::-1]).transpose() if column_major else places.reshape(size)
    place = call.emit("broadcast_to", call.constant(places[..., None]), shape=(n, *size, c))
    for axis in reversed(range(window.rank)):
        x, place = _highest_place(call, x, place, axis, window.axes(axis))
    image = np.arange(n)[:, None] * c + np.arange(c)
    first = (image * prod(size)).reshape(n, *(1 for _ in size), c)
    return call.emit("add", place, call.constant(first.astype(np.int64)))


def _within(window: Window, size: Sequence[int]) -> Window:
    """The window without what lies outside the image, along axes that it is longer than and sees all of.

    A pool over all of an image is written with any kernel that is large enough, say 1,280 for 7 positions.
    """
    axes = []
    for axis, extent in enumerate(size):
        along_axis = window.axes(axis)
        sees_all = (
            along_axis.first[0] + extent <= along_axis.kernel[0] <= along_axis.first[0] + extent + along_axis.last[0]
        )
        once = along_axis.kernel[0] > extent + along_axis.first[0] + along_axis.last[0] - along_axis.strides[0]
        whole = Window((extent,), (1,), (1,), (0,), (0,))
        axes.append(
            whole
            if along_axis.kernel[0] > extent and along_axis.dilations == (1,) and sees_all and once
            else along_axis
        )
    fields = ("kernel", "strides", "dilations", "first", "last")
    return Window(*(tuple(getattr(axis, name)[0] for axis in axes) for name in fields))


def _averaged_whole(
    call: Call, x: Value, windows: tuple[Window, Window], counted: bool, beyond: tuple[int, ...]
) -> Value:
    """A mean by the smaller of two windows, times elements over positions that the larger one counts."""
    (outer, inner), size = windows, call.shape_of(x)[1:-1]
    whole = [outer.axes(axis) != inner.axes(axis) for axis in range(inner.rank)]
    rest = tuple(0 if is_cut else more for is_cut, more in zip(whole, beyond, strict=True))
    share = 1.0
    for axis, extent in enumerate(size):
        if whole[axis]:
            share *= extent / int(_counts(call, extent, outer.axes(axis), counted, beyond[axis])[0])
    y = averaged(call, x, inner, counted, rest)
    return y if share == 1 else call.emit("mul", y, call.scalar(share, y))


def _is_dilated(window: Window) -> bool:
    return any(taps > 1 and step > 1 for taps, step in zip(window.kernel, window.dilations, strict=True))


def _kernel_window(plane: Window) -> dict[str, AttrValue]:
    return {"kernel": plane.kernel, "strides": plane.strides, "pads": (*plane.first, *plane.last)}


def _taps_along(call: Call, x: Value, axis: int, window: Window, fill: float) -> tuple[list[Value], tuple[int, ...]]:
    """Returns what each tap along one image axis sees, and the shape of all that."""
    n, *size, c = call.shape_of(x)
    (out,) = window.outputs(call, (size[axis],))
    lines = call.reshape(x, (n * prod(size[:axis]), size[axis], prod(size[axis + 1 :]), c))
    return depth_taps(call, lines, window, fill), (n, *size[:axis], out, *size[axis + 1 :], c)


def _highest_along(call: Call, x: Value, axis: int, window: Window) -> Value:
    taps, shape = _taps_along(call, x, axis, window, -np.inf)
    best = taps[0]
    for tap in taps[1:]:
        best = call.emit("where", call.emit("less", best, tap), tap, best)
    return call.reshape(best, shape)


def _highest_place(call: Call, x: Value, place: Value, axis: int, window: Window) -> tuple[Value, Value]:
    taps, shape = _taps_along(call, x, axis, window, -np.inf)
    places, _ = _taps_along(call, place, axis, window, 0)
    best, best_place = taps[0], places[0]
    for tap, where in zip(taps[1:], places[1:], strict=True):
        higher = call.emit("less", best, tap)
        best, best_place = call.emit("where", higher, tap, best), call.emit("where", higher, where, best_place)
    return call.reshape(best, shape), call.reshape(best_place, shape)


def _averaged_planes(call: Call, images: Value, plane: Window, counted: bool, beyond: tuple[int, ...]) -> Value:
    _, h, w, c = call.shape_of(images)
    if not _is_dilated(plane) and not (counted and any(beyond)):
        return call.emit("average_pool", images, count_pads=counted, **_kernel_window(plane))
    area = prod(plane.kernel)
    if _is_dilated(plane):
        sized(call, (*plane.kernel, c))
        weights = call.constant(np.full((*plane.kernel, c), 1 / area, np.float32))
        y = call.emit("depthwise_conv2d", images, weights, **plane.geometry())
    else:
        y = call.emit("average_pool", images, count_pads=True, **_kernel_window(plane))
    rows, columns = (
        _counts(call, extent, plane.axes(axis), counted, beyond[axis]) for axis, extent in enumerate((h, w))
    )
    sized(call, (rows.size, columns.size))
    share = area / np.maximum(np.outer(rows, columns), 1)
    if (share == 1).all():
        return y
    return call.emit("mul", y, call.constant(share.astype(np.float32)[:, :, None]))


def _counts(call: Call, extent: int, window: Window, counted: bool, beyond: int) -> Array:
    """Along one axis: how many positions each window averages."""
    (out,), first = window.outputs(call, (extent,)), window.first[0]
    low, high = (-first, extent + window.last[0] - beyond) if counted else (0, extent)
    starts = np.arange(out) * window.strides[0] - first
    step = window.dilations[0]
    # Taps t of [0, kernel) with low <= start + t * step < high.
    begin, end = (np.clip(-((starts - bound) // step), 0, window.kernel[0]) for bound in (low, high))
    return np.asarray(end - begin)

"""Convolutions of any rank and in any groups as 2-D kernels, channels last.

A row [N, L, C] is an image of height 1. Of a volume [N, D, H, W, C] the taps along the depth become channels: what
each of them sees is sliced out and laid beside the others, [N OD, H, W, KD C], so that one 2-D convolution sums over
all of them and the weight [KH, KW, KD, C, K] is read as it lies. Groups narrower than a vector are joined, with zeros
between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.frontend.call import Call
from compiler.frontend.sliding.depth import depth_placed, depth_taps, few_taps
from compiler.frontend.sliding.windows import Window
from compiler.values import Value

_LEAST_CHANNELS = 8
"""Channels of a group, on both sides, below which groups are joined: kernels compute vectors of 4 to 16 of them."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a convolution from `count * inputs` channels to `count * outputs`."""

    count: int
    inputs: int
    outputs: int

    @property
    def is_single(self) -> bool:
        """Whether each input channel has filters of its own."""
        return self.count > 1 and self.inputs == 1


def convolved(call: Call, x: Value, weight: Value, window: Window, groups: Groups, bias: Value | None) -> Value:
    """x: [N, ..., C] -> y: [N, ..., K], bias added.

    weight: [..., C / group, K] with the depth behind height and width, or [..., K] for groups of single channels.
    """
    n, *size, _ = call.shape_of(x)
    extents = window.outputs(call, size)
    geometry = plane_of(window).geometry()
    if groups.is_single:
        taps = _images(call, _repeated(call, x, groups.outputs), window)
        filters = _filters(call, weight, window)
        parts = [call.emit("depthwise_conv2d", x, w, **geometry) for x, w in zip(taps, filters, strict=True)]
        y = _sum(call, parts)
    else:
        images = _side_by_side(call, _images(call, x, window), groups.count)
        y = call.emit("conv2d", images, _joined(call, _plane_weight(call, weight, window), groups.count), **geometry)
    y = call.emit("add", y, bias) if bias else y
    return call.reshape(y, (n, *extents, groups.count * groups.outputs))


def transposed(
    call: Call, x: Value, weight: Value, window: Window, groups: Groups, size: tuple[int, ...], bias: Value | None
) -> Value:
    """x: [N, ..., K] -> y: [N, *size, C], bias added: each input spread over what `convolved` would have read for it.

    Where no window reached, y holds the bias alone.
    """
    n, *extents, k = call.shape_of(x)
    channels, plane = groups.count * groups.inputs, plane_of(window)
    sides = _sides(extents)
    images = call.reshape(x, (n * prod(extents) // prod(sides), *sides, k))
    spread = _Spread(call, plane, sides, _sides(size))
    if groups.is_single:
        filters = _filters(call, weight, window)
        wide = [spread.by("depthwise_input_grad", images, w, k) for w in filters]
        parts = [_summed(call, y, groups.outputs) for y in wide]
    else:
        w = _joined(call, _plane_weight(call, weight, window), groups.count)
        y = spread.by("conv2d_input_grad", images, w, channels * prod(window.kernel[:-2]))
        parts = _apart(call, y, groups.count, prod(window.kernel[:-2]))
    y = parts[0] if window.rank < 3 else depth_placed(call, parts, n, window.axes(0), size[0])
    y = call.emit("add", y, bias) if bias else y
    return call.reshape(y, (n, *size, channels))


def plane_of(window: Window) -> Window:
    """The window along height and width."""
    return window.axes(-1, 0) if window.rank == 1 else window.axes(window.rank - 2, window.rank - 1)


def _sides(extents: Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    return (1, extents[0]) if len(extents) == 1 else (extents[-2], extents[-1])


def _images(call: Call, x: Value, window: Window) -> list[Value]:
    """[N, ..., C] as images [N, H, W, C], one for each tap along the depth."""
    n, *size, c = call.shape_of(x)
    if window.rank == 3:
        return depth_taps(call, x, window.axes(0))
    return [call.reshape(x, (n, *_sides(size), c))]


def _repeated(call: Call, x: Value, times: int) -> Value:
    """Repeats each channel so many times: one for each of its filters."""
    if times == 1:
        return x
    shape = call.shape_of(x)
    wide = call.emit("broadcast_to", call.reshape(x, (*shape, 1)), shape=(*shape, times))
    return call.reshape(wide, (*shape[:-1], shape[-1] * times))


def _summed(call: Call, y: Value, times: int) -> Value:
    """The transpose of `_repeated`."""
    if times == 1:
        return y
    shape = call.shape_of(y)
    apart = call.reshape(y, (*shape[:-1], shape[-1] // times, times))
    return call.emit("reduce_sum", apart, axes=(len(shape),), keepdims=False)


def _side_by_side(call: Call, taps: list[Value], groups: int) -> Value:
    """Taps along the depth as channels, within their group."""
    if len(taps) == 1:
        return taps[0]
    *size, c = call.shape_of(taps[0])
    grouped = [call.reshape(tap, (*size, groups, c // groups)) for tap in taps]
    return call.reshape(call.emit("concat", *grouped, axis=len(size) + 1), (*size, len(taps) * c))


def _apart(call: Call, y: Value, groups: int, taps: int) -> list[Value]:
    """The inverse of `_side_by_side`."""
    if taps == 1:
        return [y]
    few_taps(call, taps)
    *size, c = call.shape_of(y)
    grouped = call.reshape(y, (*size, groups, taps, c // (groups * taps)))
    axis = len(size) + 1
    return [call.reshape(call.cut(grouped, axis, tap, tap + 1), (*size, c // taps)) for tap in range(taps)]


def _sum(call: Call, parts: list[Value]) -> Value:
    total = parts[0]
    for part in parts[1:]:
        total = call.emit("add", total, part)
    return total


def _plane_weight(call: Call, weight: Value, window: Window) -> Value:
    """A weight as [KH, KW, C / group, K], taps along the depth among the channels."""
    *_, c, k = call.shape_of(weight)
    plane = plane_of(window).kernel
    return call.reshape(weight, (*plane, prod(window.kernel[:-2]) * c, k))


def _filters(call: Call, weight: Value, window: Window) -> list[Value]:
    """A weight [..., K] of groups of single channels as one [KH, KW, K] for each tap along the depth."""
    plane, k = plane_of(window).kernel, call.shape_of(weight)[-1]
    if window.rank < 3:
        return [call.reshape(weight, (*plane, k))]
    few_taps(call, window.kernel[0])
    return [call.reshape(call.cut(weight, 0, tap, tap + 1), (*plane, k)) for tap in range(window.kernel[0])]


def _joined(call: Call, weight: Value, groups: int) -> Value:
    """The weight [KH, KW, C / group, K] of fewer, wider groups: zeros where a channel was in another group."""
    kh, kw, c, k = call.shape_of(weight)
    group_outputs = k // groups
    enough = (
        size for size in range(1, groups + 1) if groups % size == 0 and size * min(c, group_outputs) >= _LEAST_CHANNELS
    )
    size = next(enough, groups)
    if size == 1:
        return weight
    same = call.constant(np.eye(size, dtype=np.float32).reshape(size, 1, 1, size, 1))
    apart = call.reshape(weight, (kh * kw, 1, c, groups // size, size, group_outputs))
    return call.reshape(call.emit("mul", apart, same), (kh, kw, size * c, k))


@dataclass(frozen=True, slots=True)
class _Spread:
    """The spreading of a plane of `available` positions to one of `needed`."""

    call: Call
    plane: Window
    available: tuple[int, int]
    needed: tuple[int, int]

    def by(self, op: str, images: Value, weight: Value, channels: int) -> Value:
        """[N, *available, K] -> [N, *needed, channels]; what lies a stride or more beyond all windows is added
        as zeros.
        """
        plane = self.plane
        spans = zip(self.available, plane.strides, plane.reach, plane.first, plane.last, strict=True)
        reached = [(n - 1) * stride + reach - first - last for n, stride, reach, first, last in spans]
        if min(reached) < 1:
            self.call.fail(f"its pads {(*plane.first, *plane.last)} leave nothing of what its windows reach")
        computed = [
            target if target - have < stride else have
            for target, have, stride in zip(self.needed, reached, plane.strides, strict=True)
        ]
        n = self.call.shape_of(images)[0]
        y = self.call.emit(op, images, weight, shape=(n, *computed, channels), **plane.geometry())
        after = (0, *(target - have for target, have in zip(self.needed, computed, strict=True)), 0)
        return self.call.emit("pad", y, before=(0, 0, 0, 0), after=after, value=0.0) if any(after) else y

"""Import rows: borders added and taken away.

A border of zeros or of one number is one operator; one that repeats elements of the tensor is a lookup along each axis,
whose gradient adds up what an element was used for. Source: ONNX Pad, CenterCropPad.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.frontend.call import Call, Rule
from compiler.frontend.folds.sizes import sized
from compiler.frontend.scope import Operand
from compiler.graph import Array
from compiler.values import Value

_MODES = ("constant", "reflect", "edge", "wrap")


def _pad(call: Call) -> Operand:
    mode = call.attributes.text("mode", "constant")
    if mode not in _MODES:
        call.unsupported(f"mode {mode!r} is not supported", f"modes are {', '.join(_MODES)}")
    shape = call.shape(0)
    axes = call.axes_in_order(call.integers(3, "the axes"), len(shape)) if call.has(3) else tuple(range(len(shape)))
    pads = call.integers(1, "the pads")
    if len(pads) != 2 * len(axes):
        call.fail(f"{len(pads)} pads for {len(axes)} axes")
    before, after = [0] * len(shape), [0] * len(shape)
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    value = _cropped(call, call.value(0), before, after)
    widths = tuple(max(width, 0) for width in before), tuple(max(width, 0) for width in after)
    if not any((*widths[0], *widths[1])):
        return value
    return _bordered(call, value, *widths) if mode == "constant" else _mirrored(call, value, *widths, mode=mode)


def _cropped(call: Call, value: Value, before: list[int], after: list[int]) -> Value:
    """The value without what negative pads take away."""
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        start, stop = max(-first, 0), call.shape_of(value)[axis] - max(-last, 0)
        if start >= stop:
            call.fail(f"pads take all of axis {axis}", "a run-time tensor needs at least 1 element")
        value = call.cut(value, axis, start, stop)
    return value


def _bordered(call: Call, value: Value, before: tuple[int, ...], after: tuple[int, ...]) -> Value:
    """Puts one number around the value; one that is only known at run time goes where nothing of the value is."""
    fill = call.known_operand(2)
    if not call.has(2) or (fill is not None and not fill.trainable):
        number = float(fill.array.reshape(-1)[0]) if fill is not None else 0.0
        return call.emit("pad", value, before=before, after=after, value=number)
    shape = call.shape_of(value)
    padded = call.emit("pad", value, before=before, after=after, value=0.0)
    inside = call.constant(np.ones((1,) * len(shape), bool))
    wide = call.emit("broadcast_to", inside, shape=shape)
    mask = call.emit("pad", wide, before=before, after=after, value=0.0)
    return call.emit("where", mask, padded, call.reshape(call.value(2), ()))


def _mirrored(call: Call, value: Value, before: tuple[int, ...], after: tuple[int, ...], *, mode: str) -> Value:
    """A lookup along each axis that grows."""
    for axis, widths in enumerate(zip(before, after, strict=True)):
        if not any(widths):
            continue
        extent = call.shape_of(value)[axis]
        sized(call, (extent + sum(widths),))
        index = _source(np.arange(-widths[0], extent + widths[1]), extent, mode)
        value = call.emit("gather", value, call.constant(index), axis=axis)
    return value


def _source(place: Array, extent: int, mode: str) -> Array:
    """Returns which element lies at places from before the first to behind the last."""
    if mode == "edge":
        return np.asarray(np.clip(place, 0, extent - 1))
    if mode == "wrap":
        return np.asarray(np.mod(place, extent))
    period = max(2 * (extent - 1), 1)
    turned = place % period
    return np.asarray(np.minimum(turned, period - turned) if extent > 1 else np.zeros_like(place))


def _center(call: Call) -> Operand:
    """Crop or pad every axis to its size, evenly; the odd element goes to (or comes from) the end."""
    shape = call.shape(0)
    attribute = call.attributes.integers("axes")
    axes = tuple(range(len(shape))) if attribute is None else call.axes_in_order(attribute, len(shape))
    sizes = call.integers(1, "the sizes")
    if len(sizes) != len(axes) or min(sizes, default=1) < 1:
        call.fail(f"sizes {list(sizes)[:8]} for {len(axes)} axes", "sizes are positive, one for each axis")
    value, before, after = call.value(0), [0] * len(shape), [0] * len(shape)
    for axis, size in zip(axes, sizes, strict=True):
        more, less = max(size - shape[axis], 0), max(shape[axis] - size, 0)
        value = call.cut(value, axis, less // 2, less // 2 + min(size, shape[axis]))
        before[axis], after[axis] = more // 2, more - more // 2
    if not any((*before, *after)):
        return value
    return call.emit("pad", value, before=tuple(before), after=tuple(after), value=0.0)


ROWS: Mapping[str, Rule] = {"CenterCropPad": _center, "Pad": _pad}

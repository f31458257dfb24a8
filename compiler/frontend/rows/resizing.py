"""Import rows: images and signals made larger or smaller.

Resizing is separable: along each axis a result is a weighted sum of a few elements at fixed places, a table. Where each
result is one element, the table becomes what is cheaper: repetition, a slice with a step, a lookup.
Source: ONNX Resize; where results fall on ties in single precision, as ONNX Runtime rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.source import NEAREST_OF_OPSET_10
from compiler.frontend.folds.sizes import sized
from compiler.frontend.pieces import repeated
from compiler.frontend.scope import Operand
from compiler.values import Value

Floats = NDArray[np.floating[Any]]
MOST_TAPS = 4096
"""Elements that one result may be made of: an antialiased reduction reads a whole window."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The resizing along one axis; `scale` is results per element, `roi` the part that tf_crop_and_resize reads."""

    place: int
    extent: int
    count: int
    scale: float | np.floating[Any]
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Table:
    """`index`, `weight`: [count, taps]. `outside`: results that are the extrapolation value instead."""

    index: NDArray[np.int64]
    weight: Floats
    outside: NDArray[np.bool_]


def _resize(call: Call) -> Operand:
    mode = call.attributes.text("mode", "nearest")
    places = call.attributes.text("coordinate_transformation_mode", "half_pixel")
    if mode not in _COEFFICIENTS or places not in _PLACES:
        call.fail(f"mode {mode!r} with coordinates {places!r} is not part of the standard")
    if mode != "nearest":
        call.require_dtype(0, REAL)
    fill = call.attributes.number("extrapolation_value", 0.0)
    rule = _rule(call, mode)
    value = call.value(0)
    once: list[tuple[int, int]] = []
    for axis in _axes(call, places):
        table = _table(call, axis, mode, places, rule)
        times = _times(table, axis.extent)
        if times > 1:
            once.append((axis.place, times))
        else:
            value = _along(call, value, axis, table, fill)
    return repeated(call, value, once)


# --------------------------------------------------------------------------------------------------------- geometry


def _axes(call: Call, places: str) -> list[Axis]:
    """The axes that change, with their sizes and scales."""
    shape = call.shape(0)
    attribute = call.attributes.integers("axes")
    axes = tuple(range(len(shape))) if attribute is None else call.axes_in_order(attribute, len(shape))
    policy = call.attributes.text("keep_aspect_ratio_policy", "stretch")
    roi = _roi(call, len(axes)) if places == "tf_crop_and_resize" else ((0.0, 1.0),) * len(axes)
    if _is_given(call, 3):
        counts, scales = _by_sizes(call, [shape[axis] for axis in axes], policy)
    else:
        scales = [float(scale) for scale in call.array(2, "the scales").reshape(-1)]
        _check_numbers(call, scales, len(axes))
        counts = [int(np.float32(s) * np.float32(shape[axis])) for s, axis in zip(scales, axes, strict=True)]
    if min(counts, default=1) < 1:
        call.fail(f"sizes {counts}", "a run-time tensor needs at least 1 element")
    rows = zip(axes, counts, scales, roi, strict=True)
    candidates = [Axis(axis, shape[axis], count, scale, part) for axis, count, scale, part in rows]
    return [axis for axis in candidates if (axis.count, axis.scale, axis.roi) != (axis.extent, 1.0, (0.0, 1.0))]


def _is_given(call: Call, index: int) -> bool:
    """An input that is left out may also be an empty tensor."""
    return call.has(index) and 0 not in call.shape(index)


def _roi(call: Call, count: int) -> tuple[tuple[float, float], ...]:
    """Starts, then ends, as parts of the extents."""
    values = [float(value) for value in call.array(1, "the region").reshape(-1)]
    if len(values) != 2 * count or not all(map(math.isfinite, values)):
        call.fail(f"region {values[:8]} for {count} axes")
    return tuple(zip(values[:count], values[count:], strict=True))


def _check_numbers(call: Call, scales: list[float], count: int) -> None:
    if len(scales) != count or not all(0 < scale < 2**31 for scale in scales):
        call.fail(f"scales {scales[:8]} for {count} axes", "scales are positive numbers, one for each axis")


def _by_sizes(call: Call, extents: list[int], policy: str) -> tuple[list[int], list[float]]:
    sizes = list(call.integers(3, "the sizes"))
    if len(sizes) != len(extents) or min(sizes, default=1) < 1:
        call.fail(f"sizes {sizes[:8]} for {len(extents)} axes", "sizes are positive, one for each axis")
    scales = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return sizes, scales
    if policy not in ("not_larger", "not_smaller"):
        call.fail(f"keep_aspect_ratio_policy {policy!r} is not part of the standard")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [int(scale * extent + 0.5) for extent in extents], [scale] * len(extents)


def _half_pixel(axis: Axis, y: Floats) -> Floats:
    return (y + 0.5) / axis.scale - 0.5


def _pytorch_half_pixel(axis: Axis, y: Floats) -> Floats:
    return _half_pixel(axis, y) if axis.count > 1 else np.zeros(1)


def _half_pixel_symmetric(axis: Axis, y: Floats) -> Floats:
    """The centre of what is read lies on the centre of the results, also where their number was rounded down."""
    offset = axis.extent / 2 * (1 - axis.count / (axis.scale * axis.extent))
    return offset + _half_pixel(axis, y)


def _align_corners(axis: Axis, y: Floats) -> Floats:
    return y * (axis.extent - 1) / (axis.scale * axis.extent - 1) if axis.count > 1 else np.zeros(1)


def _crop(axis: Axis, y: Floats) -> Floats:
    (start, end), last = axis.roi, axis.extent - 1
    if axis.count == 1:
        return np.full(1, (start + end) * last / 2)
    return start * last + y * ((end - start) * last / (axis.scale * axis.extent - 1))


_PLACES: Mapping[str, Callable[[Axis, Floats], Floats]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": lambda axis, y: y / axis.scale,
    "tf_crop_and_resize": _crop,
    "tf_half_pixel_for_nn": lambda axis, y: (y + 0.5) / axis.scale,
}
"""The place where a result lies, counted in elements, by the mode of coordinates."""

# ------------------------------------------------------------------------------------------------------ coefficients


@dataclass(frozen=True, slots=True)
class _Rule:
    """`support`: how far an element reaches; `kernel`: its weight at a distance."""

    support: int
    kernel: Callable[[Floats], Floats]
    nearest: str
    antialias: bool
    excludes: bool


def _rule(call: Call, mode: str) -> _Rule:
    a = call.attributes.number("cubic_coeff_a", -0.75)
    nearest = call.attributes.text("nearest_mode", "round_prefer_floor")
    if nearest not in _ROUNDING and nearest != NEAREST_OF_OPSET_10:
        call.fail(f"nearest_mode {nearest!r} is not part of the standard")
    support, kernel = _COEFFICIENTS[mode]
    antialias = bool(call.attributes.integer("antialias", 0)) and mode != "nearest"
    excludes = bool(call.attributes.integer("exclude_outside", 0))
    return _Rule(support, lambda x: kernel(np.abs(x), a), nearest, antialias, excludes)


def _triangle(x: Floats, a: float) -> Floats:
    return np.clip(1 - x, 0, None)


def _cubic(x: Floats, a: float) -> Floats:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_COEFFICIENTS: Mapping[str, tuple[int, Callable[[Floats, float], Floats]]] = {
    "nearest": (0, _triangle),
    "linear": (1, _triangle),
    "cubic": (2, _cubic),
}
_ROUNDING: Mapping[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _table(call: Call, axis: Axis, mode: str, places: str, rule: _Rule) -> Table:
    sized(call, (axis.count, 2 + 2 * rule.support))
    y = np.arange(axis.count, dtype=np.float64)
    x = _PLACES[places](axis, y)
    outside = np.zeros(axis.count, bool)
    if places == "tf_crop_and_resize":
        outside = (x < 0) | (x > axis.extent - 1)
    if mode == "nearest":
        single = _single(axis, places, y) if places != "tf_crop_and_resize" else x.astype(np.float32)
        shrinks = "ceil" if axis.scale < 1 else "floor"
        rounded = _ROUNDING[shrinks if rule.nearest == NEAREST_OF_OPSET_10 else rule.nearest]
        index = np.clip(rounded(single), 0, axis.extent - 1).astype(np.int64)
        return Table(index[:, None], np.ones((axis.count, 1)), outside)
    return _weighted(call, axis, x, rule, outside)


def _single(axis: Axis, places: str, y: Floats) -> Floats:
    """The place in single precision, in which ONNX Runtime and PyTorch decide what is nearest."""
    rounded = replace(axis, scale=np.float32(axis.scale))
    return np.asarray(_PLACES[places](rounded, y.astype(np.float32)), np.float32)


def _weighted(call: Call, axis: Axis, x: Floats, rule: _Rule, outside: NDArray[np.bool_]) -> Table:
    """Weights of all elements within reach; what lies outside is the element at the edge, or is left out."""
    stretch = min(axis.scale, 1.0) if rule.antialias else 1.0
    reach = math.ceil(rule.support / stretch)
    if 2 * reach > MOST_TAPS:
        call.unsupported(f"scale {axis.scale:.3g} reads {2 * reach} elements for one, the limit is {MOST_TAPS}")
    sized(call, (axis.count, 2 * reach))
    base = np.floor(x).astype(np.int64)
    index = base[:, None] + np.arange(1 - reach, reach + 1)
    weight = rule.kernel((index - x[:, None]) * stretch)
    if rule.excludes:
        weight = np.where((index < 0) | (index >= axis.extent), 0.0, weight)
    if rule.excludes or rule.antialias:
        total = weight.sum(axis=1, keepdims=True)
        weight = weight / np.where(total == 0, 1.0, total)
    return Table(np.clip(index, 0, axis.extent - 1), weight, outside)


# ---------------------------------------------------------------------------------------------------------- appending


def _times(table: Table, extent: int) -> int:
    """Returns how often each element is repeated, if that is all; else 0."""
    count, taps = table.index.shape
    if taps != 1 or count % extent or table.outside.any():
        return 0
    times = count // extent
    return times if np.array_equal(table.index[:, 0], np.arange(count) // times) else 0


def _along(call: Call, value: Value, axis: Axis, table: Table, fill: float) -> Value:
    """Resizes one axis."""
    table = _merged(table)
    if table.index.shape[1] == 1 and bool((table.weight == 1).all()):
        value = _picked(call, value, axis.place, table.index[:, 0])
    else:
        index = call.constant(np.ascontiguousarray(table.index.T, np.int32))
        weight = call.constant(np.ascontiguousarray(table.weight.T, np.float32))
        value = call.emit("resample", value, index, weight, axis=axis.place)
    if not table.outside.any():
        return value
    column = [-1 if i == axis.place else 1 for i in range(len(call.shape_of(value)))]
    return call.emit("where", call.constant(table.outside.reshape(column)), call.scalar(fill, value), value)


def _merged(table: Table) -> Table:
    """The table with every element of a result named once, and no more taps than needed."""
    count, taps = table.index.shape
    order = np.argsort(table.index, axis=1, kind="stable")
    index, weight = np.take_along_axis(table.index, order, 1), np.take_along_axis(table.weight, order, 1)
    starts = np.concatenate([np.ones((count, 1), bool), index[:, 1:] != index[:, :-1]], axis=1)
    slot = np.cumsum(starts, axis=1) - 1
    rows = np.broadcast_to(np.arange(count)[:, None], (count, taps))
    total = np.zeros((count, taps))
    np.add.at(total, (rows, slot), weight)
    place = np.zeros((count, taps), np.int64)
    place[rows, slot] = index
    first = np.argsort(total == 0, axis=1, kind="stable")
    total, place = np.take_along_axis(total, first, 1), np.take_along_axis(place, first, 1)
    width = max(1, int((total != 0).sum(axis=1).max()))
    places = np.where(total[:, :width] != 0, place[:, :width], place[:, :1])
    return Table(places, total[:, :width], table.outside)


def _picked(call: Call, value: Value, axis: int, index: NDArray[np.int64]) -> Value:
    """value[index] along one axis, as a slice if the step is even."""
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    first, last = int(index[0]), int(index[-1])
    if step > 0 and np.array_equal(index, np.arange(len(index)) * step + first):
        return call.cut(value, axis, first, last + 1, step)
    return call.emit("gather", value, call.constant(index), axis=axis)


ROWS: Mapping[str, Rule] = {"Resize": _resize}

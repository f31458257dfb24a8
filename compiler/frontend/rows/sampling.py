"""Import rows: elements read between grid points (GridSample), the grids (AffineGrid), and determinants.

A sample is a weighted sum of the corners around it. Corners are looked up; weights and places are arithmetic, so the
gradient goes to the image and to the grid. At kinks it is PyTorch's: none where a place was brought to the border.
Source: ONNX GridSample, AffineGrid, Det; torch.nn.functional.grid_sample.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.folds.sizes import sized
from compiler.frontend.scope import Operand
from compiler.values import Value

MOST_ROWS = 4
"""Largest matrix whose determinant is written out."""
_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}
_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class _Corner:
    """A neighbour along one axis: its place (a whole number, as f32), and its weight."""

    place: Value
    weight: Value | None


class _Arithmetic:
    """Arithmetic on values, written short."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def number(self, value: float) -> Value:
        return self.call.constant(np.asarray(value, np.float32))

    def __call__(self, op: str, *operands: Value | float) -> Value:
        values = [operand if isinstance(operand, Value) else self.number(operand) for operand in operands]
        return self.call.emit(op, *values)


def _grid_sample(call: Call) -> Operand:
    for index in range(2):
        call.require_dtype(index, REAL)
    shape, grid_shape = call.shape(0), call.shape(1)
    spatial = shape[2:]
    if len(shape) != len(grid_shape) or len(spatial) not in (1, 2, 3) or grid_shape[-1] != len(spatial):
        call.fail(f"an image {list(shape)} and a grid {list(grid_shape)} do not fit")
    if grid_shape[0] != shape[0]:
        call.fail(f"{shape[0]} images and {grid_shape[0]} grids")
    mode = call.attributes.text("mode", "linear" if call.opset >= 20 else "bilinear")
    padding = call.attributes.text("padding_mode", "zeros")
    aligned = bool(call.attributes.integer("align_corners", 0))
    if mode not in _MODES or padding not in ("zeros", "border", "reflection"):
        call.fail(f"mode {mode!r} with padding {padding!r} is not part of the standard")
    points = prod(grid_shape[1:-1])
    grid = call.reshape(call.value(1), (shape[0], points, len(spatial)))
    # The grid names the last axis first.
    places = [call.cut(grid, 2, len(spatial) - 1 - i, len(spatial) - i) for i in range(len(spatial))]
    image = call.reshape(call.to_last(call.value(0), 1), (shape[0], prod(spatial), shape[1]))
    sampler = _Sampler(call, spatial, padding, aligned)
    corners = [sampler.corners(place, extent, _MODES[mode]) for place, extent in zip(places, spatial, strict=True)]
    total = sampler.sampled(image, corners)
    return call.from_last(call.reshape(total, (shape[0], *grid_shape[1:-1], shape[1])), 1)


class _Sampler:
    """Places [N, points, 1] in an image seen as [N, elements, channels]."""

    def __init__(self, call: Call, spatial: Sequence[int], padding: str, aligned: bool) -> None:
        self.call, self.spatial, self.padding, self.aligned = call, spatial, padding, aligned
        self.do = _Arithmetic(call)

    def corners(self, place: Value, extent: int, mode: str) -> list[_Corner]:
        """The neighbours along one axis of a place between -1 and 1."""
        do = self.do
        scale = (extent - 1) / 2 if self.aligned else extent / 2
        x = do("add", do("mul", place, scale), (extent - 1) / 2)
        if mode == "cubic":
            return self._cubic_corners(x, extent)
        if self.padding != "zeros":
            x = within(self.call, self._reflected(x, extent) if self.padding == "reflection" else x, extent)
        if mode == "nearest":
            return [self._bounded(self._rounded(x), None, extent)]
        low = do("floor", x)
        part = do("sub", x, low)
        return [
            self._bounded(low, do("sub", 1.0, part), extent),
            self._bounded(do("add", low, 1.0), part, extent),
        ]

    def _cubic_corners(self, x: Value, extent: int) -> list[_Corner]:
        """Four neighbours; each place, not the sample's, is brought into the image."""
        do = self.do
        low = do("floor", x)
        part = do("sub", x, low)
        corners = []
        for step in range(-1, 3):
            distance = do("add", part, float(-step)) if step <= 0 else do("sub", float(step), part)
            place = do("add", low, float(step))
            if self.padding != "zeros":
                place = self._reflected(place, extent) if self.padding == "reflection" else place
                place = within(self.call, place, extent)
            corners.append(self._bounded(place, self._cubic_weight(distance, near=step in (0, 1)), extent))
        return corners

    def _cubic_weight(self, x: Value, *, near: bool) -> Value:
        do, a = self.do, _CUBIC
        if near:
            inner = do("sub", do("mul", x, a + 2), a + 3)
            return do("add", do("mul", inner, do("mul", x, x)), 1.0)
        inner = do("add", do("mul", do("sub", do("mul", x, a), 5 * a), x), 8 * a)
        return do("sub", do("mul", inner, x), 4 * a)

    def _reflected(self, x: Value, extent: int) -> Value:
        """Folded back at the borders: the centres of the outer elements if corners are aligned, else their edges."""
        do = self.do
        low, span = (0.0, float(extent - 1)) if self.aligned else (-0.5, float(extent))
        if span == 0:
            return do("mul", x, 0.0)
        offset = do("sub", x, low)
        distance = do("where", do("less", offset, 0.0), do("neg", offset), offset)
        turns = do("floor", do("mul", distance, 1 / span))
        extra = do("sub", distance, do("mul", turns, span))
        half = do("floor", do("mul", turns, 0.5))
        odd = do("less", do("mul", half, 2.0), turns)
        return do("add", do("where", odd, do("sub", span, extra), extra), low)

    def _rounded(self, x: Value) -> Value:
        """Rounds to the nearest whole number; half ways to the even one."""
        do = self.do
        up = do("floor", do("add", x, 0.5))
        is_tie = do("equal", do("sub", up, x), 0.5)
        odd = do("less", do("mul", do("floor", do("mul", up, 0.5)), 2.0), up)
        return do("sub", up, do("where", do("and", is_tie, odd), 1.0, 0.0))

    def _bounded(self, place: Value, weight: Value | None, extent: int) -> _Corner:
        """A place within the image; one outside weighs nothing."""
        do = self.do
        if self.padding == "zeros":
            inside = do("and", do("less_equal", 0.0, place), do("less_equal", place, float(extent - 1)))
            weight = do("where", inside, 1.0 if weight is None else weight, 0.0)
        return _Corner(within(self.call, place, extent), weight)

    def sampled(self, image: Value, corners: Sequence[Sequence[_Corner]]) -> Value:
        """The sum over all combinations of neighbours."""
        total: Value | None = None
        wholes = [[self.call.emit("cast", corner.place, to="i64") for corner in axis] for axis in corners]
        for chosen in itertools.product(*(range(len(axis)) for axis in corners)):
            index: Value | None = None
            for axis, number in enumerate(chosen):
                stride = prod(self.spatial[axis + 1 :])
                place = wholes[axis][number]
                step = place if stride == 1 else self.call.emit("mul", place, self.call.scalar(stride, place))
                index = step if index is None else self.call.emit("add", index, step)
            assert index is not None
            term = self.call.emit("gather_elements", image, index, axis=1)
            weights = [corners[axis][number].weight for axis, number in enumerate(chosen)]
            weight = functools.reduce(self._times, weights)
            term = term if weight is None else self.call.emit("mul", term, weight)
            total = term if total is None else self.call.emit("add", total, term)
        assert total is not None
        return total

    def _times(self, x: Value | None, y: Value | None) -> Value | None:
        """The product; what is missing is one."""
        return y if x is None else x if y is None else self.call.emit("mul", x, y)


def within(call: Call, x: Value, extent: int) -> Value:
    """Limits x to places between the first and the last element; outside, and at them, the gradient is zero."""
    return call.emit("clip", x, low=0.0, high=float(extent - 1))


# --------------------------------------------------------------------------------------------------------------- grids


def _affine_grid(call: Call) -> Operand:
    """theta [N, d, d + 1] times the coordinates (last axis first, then 1) of every point."""
    call.require_dtype(0, REAL)
    sizes = call.integers(1, "the size")
    spatial = sizes[2:]
    shape = call.shape(0)
    if len(spatial) not in (2, 3) or shape != (sizes[0], len(spatial), len(spatial) + 1) or min(sizes) < 1:
        call.fail(f"theta {list(shape)} and size {list(sizes)} do not fit")
    aligned = bool(call.attributes.integer("align_corners", 0))
    sized(call, (*spatial, len(spatial) + 1))
    lines = [_line(extent, aligned) for extent in spatial]
    grids = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(grids), np.ones(spatial)], axis=-1).reshape(1, -1, len(spatial) + 1)
    theta = call.value(0)
    grid = call.emit("matmul", call.constant(points.astype(np.float32)), theta, transpose_a=False, transpose_b=True)
    return call.reshape(grid, (sizes[0], *spatial, len(spatial)))


def _line(extent: int, aligned: bool) -> np.ndarray:
    """Centres of elements between -1 and 1, or from -1 to 1."""
    if aligned:
        return np.linspace(-1, 1, extent)
    return (2 * np.arange(extent) + 1) / extent - 1


# -------------------------------------------------------------------------------------------------------- determinants


def _det(call: Call) -> Operand:
    """Written out along the first row, for small matrices."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        call.fail(f"{list(shape)} is no square matrix")
    if shape[-1] > MOST_ROWS:
        call.unsupported(f"a determinant of {shape[-1]} rows, the limit is {MOST_ROWS}", "compute it outside the model")
    x, rank = call.value(0), len(shape)
    entries = [
        [call.cut(call.cut(x, rank - 2, row, row + 1), rank - 1, column, column + 1) for column in range(shape[-1])]
        for row in range(shape[-1])
    ]
    return call.reshape(_expanded(_Arithmetic(call), entries), shape[:-2])


def _expanded(do: _Arithmetic, rows: Sequence[Sequence[Value]]) -> Value:
    if len(rows) == 1:
        return rows[0][0]
    total: Value | None = None
    for column, entry in enumerate(rows[0]):
        minor = [[*row[:column], *row[column + 1 :]] for row in rows[1:]]
        term = do("mul", entry, _expanded(do, minor))
        total = term if total is None else do("sub" if column % 2 else "add", total, term)
    assert total is not None
    return total


ROWS: Mapping[str, Rule] = {"AffineGrid": _affine_grid, "Det": _det, "GridSample": _grid_sample}

"""Import rows: Fourier transforms, as products with matrices of cosines and sines.

Source: ONNX DFT, STFT; the last axis holds the real and the imaginary part (a real signal: only the former). Why
products: lengths are known, short on the edge, and a product's gradient is a product.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import REAL
from compiler.errors import LimitExceeded
from compiler.frontend.call import Call, Rule
from compiler.frontend.folds.sizes import sized
from compiler.frontend.scope import Operand
from compiler.graph import Array
from compiler.values import Value

LONGEST = 4096
"""Points of a transform: the matrix grows with their square."""


def _dft(call: Call) -> Operand:
    """Forward: y[k] = sum_t x[t] exp(-2 pi i k t / n). Inverse: over k, the other sign, over n."""
    shape, parts = _signal(call)
    inverse, onesided = bool(call.attributes.integer("inverse", 0)), bool(call.attributes.integer("onesided", 0))
    if onesided and parts != (2 if inverse else 1):
        call.fail(f"a one-sided transform of {parts} parts", "forward it reads a real signal, inverse a complex one")
    axis = call.attributes.integer("axis", 1) if call.opset < 20 else _number(call, 2, "the axis", -2)
    axis = call.axis(axis, len(shape))
    if axis == len(shape) - 1:
        call.fail(f"axis {axis} holds the parts of complex numbers")
    count = 2 * (shape[axis] - 1) if onesided and inverse else shape[axis]
    count = _number(call, 1, "the length", count)
    return _transformed(call, call.value(0), axis, count, inverse=inverse, onesided=onesided)


def _stft(call: Call) -> Operand:
    """The transform of overlapping frames, each times a window. A signal of two axes is real, as to ONNX Runtime."""
    call.require_dtype(0, REAL)
    shape, parts = ((*call.shape(0), 1), 1) if call.rank(0) == 2 else _signal(call)
    onesided = bool(call.attributes.integer("onesided", 1)) and parts == 1
    step = _number(call, 1, "the step", 0)
    window = call.shape(2)[0] if call.has(2) and call.rank(2) == 1 else shape[1] if len(shape) == 3 else 0
    count = _number(call, 3, "the length of a frame", window)
    if len(shape) != 3 or step < 1 or not 1 <= count <= shape[1] or (call.has(2) and call.shape(2) != (count,)):
        call.fail(f"a window of {window}, frames of {count} and steps of {step} do not fit a signal {list(shape)}")
    frames = (shape[1] - count) // step + 1
    sized(call, (frames, count))
    places = np.arange(frames)[:, None] * step + np.arange(count)
    value = call.emit("gather", call.value(0), call.constant(places.reshape(-1)), axis=1)
    value = call.reshape(value, (shape[0], frames, count, parts))
    if call.has(2):
        call.require_dtype(2, REAL)
        value = call.emit("mul", value, call.reshape(call.value(2), (count, 1)))
    return _transformed(call, value, 2, count, inverse=False, onesided=onesided)


def _signal(call: Call) -> tuple[tuple[int, ...], int]:
    """The shape of a signal, and whether it is real (1) or complex (2)."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        call.fail(f"a signal of shape {list(shape)}", "its last axis holds one part (real) or two (complex)")
    return shape, shape[-1]


def _number(call: Call, index: int, meaning: str, default: int) -> int:
    return int(call.array(index, meaning).reshape(-1)[0]) if call.has(index) else default


def _transformed(call: Call, value: Value, axis: int, count: int, *, inverse: bool, onesided: bool) -> Value:
    """The transform along one axis, cut or filled up with zeros to `count` points."""
    if not 1 <= count <= LONGEST:
        raise LimitExceeded(f"a transform of {count} points, the limit is {LONGEST}", where=call.node.where)
    shape = call.shape_of(value)
    real = onesided and inverse
    used = min(shape[axis], count // 2 + 1 if real else count)
    value = call.cut(value, axis, 0, used)
    rank, parts = len(shape), shape[-1]
    rest = [place for place in range(rank - 1) if place != axis]
    rows = call.transpose(value, [*rest, axis, rank - 1])
    extents = [shape[place] for place in rest]
    rows = call.reshape(rows, (int(np.prod(extents, dtype=int)), used * parts))
    sized(call, (used * parts, 2 * count))
    table = _real_inverse(count, used) if real else _table(count, used, parts, inverse=inverse, onesided=onesided)
    transformed = call.emit("matmul", rows, call.constant(table), transpose_a=False, transpose_b=False)
    channels = 1 if real else 2
    transformed = call.reshape(transformed, (*extents, table.shape[1] // channels, channels))
    back = [*range(axis), rank - 2, *range(axis, rank - 2), rank - 1]
    return call.transpose(transformed, back)


def _angles(count: int, rows: int, columns: int) -> Array:
    """2 pi r c / n of each row and column; whole turns are taken off before rounding."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % count
    return np.asarray(2 * np.pi * turns / count)


def _table(count: int, used: int, parts: int, *, inverse: bool, onesided: bool) -> Array:
    """[used x parts, wanted x 2]: (a + ib) exp(-+i angle)."""
    angle = _angles(count, used, count // 2 + 1 if onesided else count)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    whole = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]
    return (whole.reshape(used * parts, -1) / (count if inverse else 1)).astype(np.float32)


def _real_inverse(count: int, used: int) -> Array:
    """[used x 2, n]: every point but the first and, of an even length, the middle one stands for its mirror image."""
    angle = _angles(count, used, count)
    times = np.full((used, 1), 2.0)
    times[0] = 1.0
    if count % 2 == 0 and used == count // 2 + 1:
        times[-1] = 1.0
    whole = np.stack([times * np.cos(angle), -times * np.sin(angle)], 1)
    return (whole.reshape(2 * used, count) / count).astype(np.float32)


ROWS: Mapping[str, Rule] = {"DFT": _dft, "STFT": _stft}

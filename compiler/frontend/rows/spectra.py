"""Import rows: Fourier transforms. Each is one product with a known matrix of cosines and sines.

A complex number is the last axis, [real, imaginary]; so the matrix sees an element's part and makes a bin's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.folds.sizes import sized
from compiler.frontend.scope import Operand
from compiler.graph import Array
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class _Transform:
    """`taken` numbers of `parts` parts each (1: real), of a signal of `length`, become `bins` of `made` parts."""

    taken: int
    parts: int
    length: int
    bins: int
    made: int
    inverse: bool = False

    def matrix(self, call: Call) -> Array:
        """[taken parts, bins made], float32: e^(-i angle) of every pair, or e^(i angle) / length backwards."""
        sized(call, (self.taken, self.parts, self.bins, self.made))
        turns = np.outer(np.arange(self.taken), np.arange(self.bins)) % self.length / self.length
        real, imaginary = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
        if self.inverse:
            real, imaginary = real / self.length, imaginary / self.length
            if self.made == 1:
                real, imaginary = self._mirrored(real), self._mirrored(imaginary)
        else:
            imaginary = -imaginary
        of_part = ((real, imaginary), (-imaginary, real))
        parts = [np.stack(made[: self.made], axis=-1) for made in of_part[: self.parts]]
        return np.stack(parts, axis=1).reshape(self.taken * self.parts, -1).astype(np.float32)

    def _mirrored(self, table: Array) -> Array:
        """Half a spectrum stands for all: every bin counts twice but the first and, of an even length, the last."""
        twice = np.full((self.taken, 1), 2.0)
        twice[0] = 1.0
        if self.length % 2 == 0 and self.taken > self.length // 2:
            twice[self.length // 2] = 1.0
        return np.asarray(table * twice)


def _dft(call: Call) -> Operand:
    """The transform along one axis; the last axis holds the parts of a complex number, or the real one alone."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        call.fail(f"the last axis of {list(shape)} must be 1 (real) or 2 (complex)")
    axis = _axis(call, len(shape))
    transform = _of_attributes(call, shape[axis], shape[-1])
    x = call.cut(call.value(0), axis, 0, min(shape[axis], transform.taken))
    order = [place for place in range(len(shape) - 1) if place != axis]
    rows = call.transpose(x, [*order, axis, len(shape) - 1])
    found = _product(call, rows, transform)
    back = [*range(axis), len(order), *range(axis, len(order)), len(order) + 1]
    return call.transpose(found, back)


def _product(call: Call, x: Value, transform: _Transform) -> Value:
    """[..., taken, parts] -> [..., bins, made]."""
    outer = call.shape_of(x)[:-2]
    flat = call.reshape(x, (*outer, transform.taken * transform.parts))
    wide = call.reshape(flat, (1, *call.shape_of(flat))) if not outer else flat
    matrix = call.constant(transform.matrix(call))
    found = call.emit("matmul", wide, matrix, transpose_a=False, transpose_b=False)
    return call.reshape(found, (*outer, transform.bins, transform.made))


def _axis(call: Call, rank: int) -> int:
    """Which axis is transformed: an attribute until opset 19, an input since."""
    if call.has(2):
        given = _number(call, 2, "the axis")
    else:
        given = call.attributes.integer("axis", 1) if call.opset < 20 else -2
    axis = call.axis(given, rank)
    return axis if axis < rank - 1 else call.fail("the last axis holds the parts of a complex number")


def _of_attributes(call: Call, extent: int, parts: int) -> _Transform:
    inverse, half = (bool(call.attributes.integer(name, 0)) for name in ("inverse", "onesided"))
    usual = 2 * (extent - 1) if inverse and half else extent
    length = _number(call, 1, "the length of the transform") if call.has(1) else usual
    if length < 1:
        call.fail(f"the length of the transform is {length}, must be >= 1")
    if half and parts != (2 if inverse else 1):
        call.fail(f"a one-sided transform {'back needs complex' if inverse else 'needs real'} numbers")
    bins = length // 2 + 1 if half else length
    if half and inverse:
        return _Transform(min(extent, bins), parts, length, bins=length, made=1, inverse=True)
    return _Transform(min(extent, length), parts, length, bins=bins, made=2, inverse=inverse)


def _stft(call: Call) -> Operand:
    """Frames of the signal, each a `step` after the one before, times the window, transformed."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) != 3 or shape[-1] not in (1, 2):
        call.fail(f"the signal's shape {list(shape)} must be [batch, samples, 1 or 2]")
    step = _number(call, 1, "the step between frames")
    size = call.shape(2)[0] if call.has(2) and call.rank(2) == 1 else shape[1]
    length = _number(call, 3, "the length of a frame") if call.has(3) else size
    half = bool(call.attributes.integer("onesided", 1))
    if step < 1 or not 1 <= length <= shape[1]:
        call.fail(f"frames of {length} samples, {step} apart, do not fit {shape[1]} samples")
    if call.has(2) and call.shape(2) != (length,):
        call.fail(f"a window of shape {list(call.shape(2))} for frames of {length} samples")
    if half and shape[-1] != 1:
        call.fail("a one-sided transform needs real numbers")
    count = (shape[1] - length) // step + 1
    sized(call, (count, length))
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = call.emit("gather", call.value(0), call.constant(places.astype(np.int64)), axis=1)
    if call.has(2):
        frames = call.emit("mul", frames, call.reshape(call.value(2), (length, 1)))
    bins = length // 2 + 1 if half else length
    return _product(call, frames, _Transform(length, shape[-1], length, bins=bins, made=2))


def _number(call: Call, index: int, meaning: str) -> int:
    found = call.integers(index, meaning)
    return found[0] if len(found) == 1 else call.fail(f"{meaning} must be one number, is {list(found)}")


ROWS: Mapping[str, Rule] = {"DFT": _dft, "STFT": _stft}

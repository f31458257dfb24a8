"""What the specs of `compiler.kernels.movement` mean, in NumPy: element by element, with nothing of code generation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.graph import Array
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec


def run_movement(spec: MovementSpec, inputs: Sequence[Array]) -> list[Array]:
    """The one output, reals in the type of the inputs."""
    if isinstance(spec, ElementsSpec):
        return [_elements(spec, inputs)]
    if isinstance(spec, ResampleSpec):
        return [_resample(spec, *inputs)]
    if isinstance(spec, ScanSpec):
        return [_scan(spec, [array.reshape(spec.outer, spec.rows, spec.inner) for array in inputs])]
    return [_select(spec, inputs[0].reshape(spec.outer, spec.rows, spec.inner))]


def _elements(spec: ElementsSpec, inputs: Sequence[Array]) -> Array:
    whole, picked = (spec.outer, spec.rows, spec.inner), (spec.outer, spec.count, spec.inner)
    shape = (spec.outer if spec.per_outer else 1, spec.count, spec.inner if spec.per_inner else 1)
    given = list(inputs)
    index = given.pop(0 if spec.kind in ("add", "last") else 1).reshape(shape) % spec.rows
    index = np.broadcast_to(index, picked)
    if spec.kind == "gather":
        return np.take_along_axis(given[0].reshape(whole), index, axis=1)
    updates = given[-1].reshape(picked) if given else np.zeros(picked)
    starts_zero = spec.kind in ("add", "last")
    result = np.zeros(whole, updates.dtype) if starts_zero else given[0].reshape(whole).copy()
    if spec.kind == "last":
        result = result.astype(np.int64)
    for o, j, i in np.ndindex(*picked):
        place = (o, index[o, j, i], i)
        term = updates[o, j, i]
        old = result[place]
        result[place] = {"add": old + term, "mul": old * term, "max": max(old, term), "last": j + 1}[spec.kind]
    return result


def _resample(spec: ResampleSpec, x: Array, index: Array, weight: Array) -> Array:
    matrix = np.zeros((spec.count, spec.rows))
    for tap, j in np.ndindex(spec.taps, spec.count):
        matrix[j, index.reshape(spec.taps, spec.count)[tap, j]] += weight.reshape(spec.taps, spec.count)[tap, j]
    if spec.kind == "forward":
        return np.asarray(np.einsum("jr,ori->oji", matrix, x.reshape(spec.outer, spec.rows, spec.inner)))
    return np.asarray(np.einsum("jr,oji->ori", matrix, x.reshape(spec.outer, spec.count, spec.inner)))


def _scan(spec: ScanSpec, inputs: Sequence[Array]) -> Array:
    turned = [array[:, ::-1] if spec.reverse else array for array in inputs]
    result = np.zeros_like(turned[-1])
    running = np.zeros_like(result[:, 0])
    for row in range(spec.rows):
        added = turned[-1][:, row]
        before = running if spec.kind == "sum" else turned[0][:, row] * running
        running = before + added
        result[:, row] = before if spec.exclusive else running
    return result[:, ::-1] if spec.reverse else result


def _select(spec: SelectSpec, x: Array) -> Array:
    result = np.zeros((spec.outer, spec.count, spec.inner), np.int64)
    sign = -1 if spec.largest else 1
    for o, i in np.ndindex(spec.outer, spec.inner):
        line = x[o, :, i]
        keys = [(sign * int(value != value), sign * float(np.nan_to_num(value)), row) for row, value in enumerate(line)]
        result[o, :, i] = [row for _, _, row in sorted(keys)][: spec.count]
    return result

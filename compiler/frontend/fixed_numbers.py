"""Stored numbers that no training gives, in files that do not tell parameters from constants: presets leave them alone.

What they are is told by their elements and by the nodes that read them, never by a name: a small number that keeps a
root or quotient finite, numbers in order, waves (the bases of Fourier transforms), bands of frequencies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.graph import Array, Graph, Node
from compiler.values import Value

SMALL = 1e-2
LEAST_WAVES, LEAST_PERIOD = 4, 16
"""Of fewer rows, or shorter ones, nothing is said."""
IN_PEAK, PEAK = 0.8, 3
"""A wave has this share of its energy within so many frequencies of its strongest one, whatever window it has."""
MOST_CHANNELS = 4
"""Of an image: as many numbers as a normalisation has."""
_SCALING = frozenset({"add", "div", "mul", "sub"})
_NOTHING = 1e-12
"""Of the largest row's energy: less is rounding."""
_GUARDED = frozenset({"div", "log", "pow", "reciprocal", "rsqrt", "sqrt"})
_VIEWS = frozenset({"identity", "reshape", "transpose", "broadcast_to"})


def with_fixed_numbers(graph: Graph) -> Graph:
    """The graph with `fixed` at the parameters that are no weights."""
    around = _Surroundings(graph.consumers(), _data(graph))
    parameters = {
        value: replace(parameter, fixed=_reason(around, value, parameter.to_file(graph.arrays[value])))
        if parameter.may_learn
        else parameter
        for value, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=parameters)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Which nodes read the values of a graph, and which values are data."""

    readers: Mapping[Value, list[Node]]
    data: Collection[Value]


def _data(graph: Graph) -> set[Value]:
    """Inputs of the model, and what is moved, cast, scaled or shifted by a few numbers of them."""
    data = set(graph.data_inputs())
    sources = graph.types.keys() - data - graph.producers().keys()
    small = {value for value in sources if graph.types[value].size <= MOST_CHANNELS}
    for node in graph.nodes:
        if node.op in _VIEWS | _SCALING | {"cast"} and all(value in data or value in small for value in node.inputs):
            (small if data.isdisjoint(node.inputs) else data).update(node.outputs)
    return data


def _reason(around: _Surroundings, value: Value, array: Array) -> str:
    if array.size <= MOST_CHANNELS and _acts_on_data(around, value):
        return "scales or shifts the data before any layer, as a normalisation of inputs does"
    if array.size == 1:
        return _small(value, abs(float(array.reshape(-1)[0])), around.readers)
    if _in_order(array):
        return "whole numbers in order, such as positions or the middles of bins"
    rows = _rows(array)
    if rows is None:
        return ""
    if _are_waves(rows):
        return "waves in the order of their frequencies, as the basis of a Fourier transform has them"
    if _are_bands(rows) or (array.ndim == 2 and _are_bands(array.T)):
        return "bands in the order of their frequencies, such as those of the mel scale"
    return ""


def _acts_on_data(around: _Surroundings, value: Value) -> bool:
    """True if its elements meet nothing but inputs of the model, moved or normalised by other such numbers."""
    nodes = around.readers.get(value, [])
    while len(nodes) == 1 and nodes[0].op in _VIEWS:
        value = nodes[0].output
        nodes = around.readers.get(value, [])
    others = [operand for node in nodes for operand in node.inputs if operand != value]
    is_scaling = all(node.op in _SCALING for node in nodes)
    return is_scaling and bool(others) and all(operand in around.data for operand in others)


def _small(value: Value, number: float, readers: Mapping[Value, list[Node]]) -> str:
    """A small number that is added to what is divided by, or of which a root or logarithm is taken."""
    added = [node for node in readers.get(value, ()) if node.op in ("add", "maximum")]
    if not 0 < number <= SMALL or not added or len(added) != len(readers[value]):
        return ""
    for node in added:
        ends = [node.output]
        while (after := readers.get(ends[-1], [])) and len(after) == 1 and after[0].op in _VIEWS:
            ends.append(after[0].output)
        if not any(reader.op in _GUARDED for reader in readers.get(ends[-1], ())):
            return ""
    return f"{number:g} keeps a logarithm, root or quotient finite"


def _in_order(array: Array) -> bool:
    """Equal steps of a whole number, one element after the other."""
    numbers = array.reshape(-1)
    step = numbers[1] - numbers[0]
    if array.size < 3 or step == 0 or step != np.round(step) or numbers[0] != np.round(numbers[0]):
        return False
    return numbers[2] - numbers[1] == step and bool((np.diff(numbers) == step).all())


def _rows(array: Array) -> Array | None:
    """The filters of a convolution of one channel, or the rows of a matrix along its longer axis."""
    long = [extent for extent in array.shape if extent > 1]
    if len(long) != 2 or min(long) < LEAST_WAVES or max(long) < LEAST_PERIOD:
        return None
    rows = array.reshape(long)
    return rows if array.ndim > 2 or long[0] <= long[1] else rows.T


def _are_waves(rows: Array) -> bool:
    """Whether all rows, or both halves of them (cosines and sines), are waves of rising or falling frequency."""
    peaks: list[int] = []
    least = _NOTHING * max(float(np.square(row, dtype=np.float64).sum()) for row in rows[: len(rows) // 2])
    for row in rows:
        peak = _peak(row.astype(np.float64), least * len(row))
        if peak is None:
            return False
        peaks.append(peak)
    half = len(rows) // 2
    halves = (peaks[:half], peaks[half:]) if len(rows) % 2 == 0 and half >= LEAST_WAVES else ((),)
    return _goes_one_way(peaks) or all(map(_goes_one_way, halves))


def _peak(row: Array, least: float) -> int | None:
    """The frequency that a row holds, or None if it holds several; -1 without energy (the sine of frequency 0)."""
    energy = np.abs(np.fft.rfft(row)) ** 2
    whole = float(energy.sum())
    if whole <= least:
        return -1
    peak = int(energy.argmax())
    near = float(energy[max(peak - PEAK, 0) : peak + PEAK + 1].sum())
    return peak if near >= IN_PEAK * whole else None


def _goes_one_way(peaks: Sequence[int]) -> bool:
    numbers = [peak for peak in peaks if peak >= 0]
    return len(set(numbers)) >= LEAST_WAVES and numbers in (sorted(numbers), sorted(numbers, reverse=True))


def _are_bands(rows: Array) -> bool:
    """Rows of non-negative numbers, each in one run, whose middles rise, and that are zero elsewhere."""
    if rows.min() < 0 or np.count_nonzero(rows) > rows.size // 2:
        return False
    middles = []
    for row in rows:
        places = np.flatnonzero(row)
        if places.size and places[-1] - places[0] + 1 != places.size:
            return False
        middles += [float(places.mean())] if places.size else []
    return len(set(middles)) >= LEAST_WAVES and middles == sorted(middles)

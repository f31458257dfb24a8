"""Stored numbers that no training gives, in files that do not tell parameters from constants: presets leave them alone.

What they are is told by their elements and by the nodes that read them, never by a name: a small number that keeps a
root or quotient finite, a round number without axes, numbers in order, waves (the bases of Fourier transforms), bands
of frequencies, tables of positions, masks, grids (`number_patterns`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from compiler.frontend.number_patterns import (
    are_bands,
    are_even,
    are_in_order,
    are_places,
    are_powers,
    are_sines,
    are_waves,
    hides,
    is_mask,
    is_repeated_filter,
    is_round_number,
)
from compiler.graph import Array, Graph, Node
from compiler.ops import WEIGHTED
from compiler.values import Value

SMALL = 1e-2
MOST_CHANNELS = 4
"""The most channels of an image: a normalisation has as many numbers."""
_SCALING = frozenset({"add", "div", "mul", "sub"})
_GUARDED = frozenset({"div", "log", "pow", "reciprocal", "rsqrt", "sqrt"})
_VIEWS = frozenset({"identity", "reshape", "transpose", "broadcast_to"})
_WEIGHING = WEIGHTED - {"embedding"}
"""Operators that multiply data with a weight and sum."""
_PATTERNS: tuple[tuple[Callable[[Array], bool], str, Collection[str]], ...] = (
    (are_in_order, "whole or half numbers in order, such as positions or the middles of bins", ()),
    (are_waves, "waves in the order of their frequencies, as the basis of a Fourier transform has them", ()),
    (are_bands, "bands in the order of their frequencies, such as those of the mel scale", ()),
    (is_repeated_filter, "one filter for all channels, such as a blur", ()),
    (are_even, "numbers in order, such as positions or times", _WEIGHING),
    (are_sines, "sines and cosines, as a table of positions has them", _WEIGHING),
    (are_powers, "powers of one number, such as slopes or frequencies", _WEIGHING),
    (is_mask, "zeros and ones, as a mask has them", _WEIGHING | {"add"}),
    (hides, "zeros and one low number, as a mask in front of a softmax has them", _WEIGHING),
    (are_places, "whole and half numbers in equal steps, such as the places of a grid and its strides", _WEIGHING),
)
"""Patterns of such numbers: the test, the words for it, and operators that do not read such numbers, since a bias may
hold zeros and ones.
"""


def with_fixed_numbers(graph: Graph, *, stores_literals: bool) -> Graph:
    """The graph with `fixed` at the parameters that are no weights.

    `stores_literals`: the exporter writes numbers of the author's formulas as it writes weights.
    """
    around = _Surroundings(graph.consumers(), _data(graph), stores_literals)
    parameters = {
        value: replace(parameter, fixed=_reason(around, value, parameter.to_file(graph.arrays[value])))
        if parameter.may_learn
        else parameter
        for value, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=parameters)


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """The nodes that read each value of a graph, and the values that are data."""

    readers: Mapping[Value, list[Node]]
    data: Collection[Value]
    stores_literals: bool


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
        number = float(array.reshape(-1)[0])
        is_literal = around.stores_literals and is_round_number(array)
        formula = f"{number:g} is a round number by itself, as a formula has them" if is_literal else ""
        return _small(value, abs(number), around.readers) or formula
    if not array.size or (array == array.reshape(-1)[0]).all():
        return ""
    readers = {node.op for node in _readers(around, value)}
    return next((reason for matches, reason, others in _PATTERNS if readers.isdisjoint(others) and matches(array)), "")


def _readers(around: _Surroundings, value: Value) -> list[Node]:
    """The nodes that read a value, or a view or a part of it."""
    readers: list[Node] = []
    pending, visited = [value], {value}
    while pending:
        for node in around.readers.get(pending.pop(), []):
            if node.op in _VIEWS | {"slice"} and node.output not in visited:
                visited.add(node.output)
                pending.append(node.output)
            else:
                readers.append(node)
    return readers


def _acts_on_data(around: _Surroundings, value: Value) -> bool:
    """Whether its elements meet nothing but inputs of the model, moved or normalised by other such numbers."""
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

"""The axis of a parameter that runs over output channels, and whose outputs these are: for a bias, the operator that it
belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from compiler.axes.rules import VIEWS
from compiler.graph import Graph, Node
from compiler.values import Value

_TRANSPOSED = frozenset({"conv2d_input_grad"})


@dataclass(frozen=True, slots=True)
class Wires:
    """A graph with who reads and who makes its values: looked up once for all of its parameters."""

    graph: Graph
    readers: Mapping[Value, Sequence[Node]]
    makers: Mapping[Value, Node]

    @classmethod
    def of(cls, graph: Graph) -> Wires:
        """Returns a graph with its consumers and producers."""
        return cls(graph, graph.consumers(), graph.producers())


def output_axis(wires: Wires, value: Value) -> int | None:
    """The inside axis of the output channels; None for what has none of its own (tied weights, scalars)."""
    parameter = wires.graph.parameters[value]
    if len(parameter.shape) == 1:
        return 0
    if parameter.channel_axis is None:
        readers = wires.readers.get(value, ())
        looked_up = readers and all(node.op in ("gather", "embedding") for node in readers)
        return len(parameter.shape) - 1 if looked_up and len(parameter.shape) == 2 else None
    last = len(parameter.shape) - 1
    if parameter.channel_axis == last and any(node.op in _TRANSPOSED for node in wires.readers.get(value, ())):
        return last - 1
    return last


def outputs_of(wires: Wires, value: Value, among: AbstractSet[Value]) -> object:
    """Identifies the parameter that a parameter shares its output channels with: the weight whose bias it is, if that
    is `among` others.
    """
    if len(wires.graph.parameters[value].shape) != 1:
        return value
    for reader in wires.readers.get(value, ()):
        for source in (operand for operand in reader.inputs if operand != value):
            weight = _weight_behind(wires.makers.get(source), wires.makers, among)
            if weight is not None:
                return weight
        if reader.op in ("layer_norm", "batch_norm"):
            return reader.outputs[0]
    return value


def _weight_behind(node: Node | None, makers: Mapping[Value, Node], among: AbstractSet[Value]) -> Value | None:
    while node is not None and node.op in VIEWS:
        node = makers.get(node.inputs[0])
    if node is None:
        return None
    return next((operand for operand in node.inputs if operand in among), None)

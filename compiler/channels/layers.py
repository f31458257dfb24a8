"""Which axis of a parameter runs over its layer's output channels, and whose bias a bias is."""

from __future__ import annotations

from collections.abc import Collection

from compiler.graph import Graph, Node
from compiler.values import Value

VIEWS = frozenset({"reshape", "transpose", "identity"})
_TRANSPOSED = frozenset({"conv2d_input_grad"})


def output_axis(graph: Graph, value: Value) -> int | None:
    """The inside axis of the output channels; None for what has none of its own (tied weights, scalars)."""
    own = graph.parameters[value]
    if len(own.shape) == 1:
        return 0
    if own.channel_axis is None:
        readers = graph.consumers().get(value, ())
        looked_up = readers and all(node.op in ("gather", "embedding") for node in readers)
        return len(own.shape) - 1 if looked_up and len(own.shape) == 2 else None
    last = len(own.shape) - 1
    if own.channel_axis == last and any(node.op in _TRANSPOSED for node in graph.consumers().get(value, ())):
        return last - 1
    return last


def layer_of(graph: Graph, value: Value, among: Collection[Value]) -> object:
    """What a parameter shares its output channels with: the weight whose bias it is, if that is `among` others."""
    if len(graph.parameters[value].shape) != 1:
        return value
    producers = graph.producers()
    for reader in graph.consumers().get(value, ()):
        for source in (one for one in reader.inputs if one != value):
            weight = _weight_behind(producers.get(source), producers, among)
            if weight is not None:
                return weight
        if reader.op in ("layer_norm", "batch_norm"):
            return reader.outputs[0]
    return value


def _weight_behind(node: Node | None, producers: dict[Value, Node], among: Collection[Value]) -> Value | None:
    while node is not None and node.op in VIEWS:
        node = producers.get(node.inputs[0])
    if node is None:
        return None
    return next((one for one in node.inputs if one in among), None)

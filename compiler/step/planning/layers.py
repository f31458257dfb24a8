"""A model's layers as plans count them, in forward order: products and convolutions with a weight of their own.

Biases that a plan created and does not let learn.

Finds what a loss depends on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compiler.axes.rules import VIEWS
from compiler.graph import Graph, Node
from compiler.ops import OPERATORS
from compiler.ops.record import NotDifferentiable
from compiler.step.training import TrainingGraph
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

Reach = Collection[Value]


def reached_by_loss(step: TrainingGraph) -> Reach:
    """Returns every value from which a differentiable path may lead to the loss."""
    reached = {step.loss}
    for node in reversed(step.graph.nodes):
        if not reached.isdisjoint(node.outputs) and not isinstance(OPERATORS[node.op].grad, NotDifferentiable):
            reached.update(node.inputs)
    return frozenset(reached)


def idle_biases(graph: Graph, learning: Collection[str]) -> tuple[CompileWarning, ...]:
    """Warns that zeros are added and stay zeros; `learning` are the parameters that the plan lets learn."""
    idle = [name for name in graph.origins.created if name not in learning]
    if not idle:
        return ()
    message = f"{len(idle)} biases were created and do not learn: {few_of(idle)}"
    hint = "preset: bias-only, or a rule with kind: bias, lets them learn; or name fewer layers"
    return (CompileWarning("plan.created_bias_frozen", "plan.create_biases", message, hint),)


CONTRACTIONS = frozenset(
    {"matmul", "conv2d", "depthwise_conv2d", "conv2d_input_grad", "depthwise_input_grad", "recurrence"}
)
"""Operators that multiply data by weights; the gradients are transposed convolutions."""
MOST_BEHIND = 64
"""The most parameters that a weight is made of."""
MOST_VIEWS = 3
"""The most views between a product and its bias."""
_NO_VALUES: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its number from 0 in forward order, its node (and its place among the graph's), what it learns."""

    number: int
    position: int
    node: Node
    data: Value
    """The value that it is fed."""
    weights: tuple[Value, ...]
    biases: tuple[Value, ...]
    """The biases that are added to its product."""

    @property
    def parameters(self) -> tuple[Value, ...]:
        """Returns all parameters that are the layer's own."""
        return self.weights + self.biases


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """The layers, each at the first use of its weights."""
    behind, readers = parameters_behind(graph), graph.consumers()
    adapters = adapter_names(graph)
    layers: list[Layer] = []
    used: set[Value] = set()
    for position, node in enumerate(graph.nodes):
        operands = _operands(graph, node, behind)
        if operands is None or used.issuperset(operands[1]):
            continue
        if any(graph.parameters[value].name in adapters for value in operands[1]):
            continue
        data, weights = operands
        used.update(weights)
        biases = tuple(value for value in _biases(graph, node, behind, readers) if value not in used)
        layers.append(Layer(len(layers), position, node, data, weights, biases))
    return tuple(layers)


def adapter_names(graph: Graph) -> frozenset[str]:
    """The parameters that stand beside another one: their products are no layers of their own."""
    return frozenset(name for adapter in graph.origins.adapters for name in adapter.names)


def parameters_behind(graph: Graph) -> Mapping[Value, tuple[Value, ...]]:
    """Value that no data flows into -> the parameters that it is made of. Others are not in it."""
    behind: dict[Value, tuple[Value, ...]] = {
        value: (value,) if value in graph.parameters and graph.parameters[value].may_learn else _NO_VALUES
        for value in graph.arrays
    }
    for node in graph.nodes:
        if all(value in behind for value in node.inputs):
            made_of = tuple(dict.fromkeys(parameter for value in node.inputs for parameter in behind[value]))
            behind.update(dict.fromkeys(node.outputs, made_of[:MOST_BEHIND]))
    return behind


def _operands(
    graph: Graph, node: Node, behind: Mapping[Value, tuple[Value, ...]]
) -> tuple[Value, tuple[Value, ...]] | None:
    """(data, weights) of a node that is a layer."""
    if node.op not in CONTRACTIONS:
        return None
    data = [value for value in node.inputs if value not in behind]
    weights = [
        parameter
        for value in node.inputs
        for parameter in behind.get(value, ())
        if graph.parameters[parameter].kind == "weight"
    ]
    return (data[0], tuple(dict.fromkeys(weights))) if data and weights else None


def _biases(
    graph: Graph,
    node: Node,
    behind: Mapping[Value, tuple[Value, ...]],
    readers: Mapping[Value, list[Node]],
) -> tuple[Value, ...]:
    """The biases that are added to what a layer makes, seen through views of it."""
    value = node.outputs[0]
    for _ in range(MOST_VIEWS):
        reading = readers.get(value, [])
        for reader in reading:
            added = [parameter for other in reader.inputs for parameter in behind.get(other, ()) if reader.op == "add"]
            biases = tuple(parameter for parameter in added if graph.parameters[parameter].kind == "bias")
            if biases:
                return biases
        if len(reading) != 1 or reading[0].op not in VIEWS:
            return ()
        value = reading[0].outputs[0]
    return ()

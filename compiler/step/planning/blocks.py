"""Blocks of a model, found by how its layers feed each other and not by what they are called.

Two kinds: a bottleneck is a point-wise, a spatial and a point-wise convolution in a row (inverted or not); a block of a
transformer is an attention with its projections and the linears of the feed-forward part behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.graph import Graph
from compiler.step.planning.layers import Layer
from compiler.step.planning.names import module_paths
from compiler.values import Value

MOST_NEAR = 4
"""The number of the layers last before a value that are followed: more than those of one attention matter to no
block.
"""


@dataclass(frozen=True, slots=True)
class Block:
    """`first` are the layers whose weights the schemes let learn, `layers` all that are known to be of it."""

    first: tuple[Layer, ...]
    layers: tuple[Layer, ...]

    @property
    def position(self) -> int:
        """Returns where it begins among the graph's nodes."""
        return min(layer.position for layer in self.layers)


class Feeds:
    """The layers before each value, and which attention it is the answer of."""

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        self._near: dict[Value, tuple[int, ...]] = {}
        self._soft: set[Value] = set()
        self._answers: dict[Value, int] = {}
        self.attentions: list[tuple[int, ...]] = []
        """The numbers of the layers that feed each attention."""
        numbers = {id(layer.node): layer.number for layer in layers}
        self._weighed = {id(layer.node) for layer in layers}
        for node in graph.nodes:
            near: tuple[int, ...] = (numbers[id(node)],) if id(node) in numbers else self._before(node.inputs)
            self._near.update(dict.fromkeys(node.outputs, near))
            if id(node) in numbers:
                continue
            if node.op == "attention" or (node.op == "matmul" and not self._soft.isdisjoint(node.inputs)):
                self._answers[node.outputs[0]] = len(self.attentions)
                self.attentions.append(near)
            elif node.op == "softmax" or not self._soft.isdisjoint(node.inputs):
                self._soft.update(node.outputs)
            answered = [self._answers[value] for value in node.inputs if value in self._answers]
            for value in node.outputs if answered else ():
                self._answers.setdefault(value, max(answered))

    def _before(self, values: Sequence[Value]) -> tuple[int, ...]:
        numbers = {number for value in values for number in self._near.get(value, ())}
        return tuple(sorted(numbers)[-MOST_NEAR:])

    def before(self, layer: Layer) -> tuple[int, ...]:
        """The numbers of the layers that feed one, in order."""
        return self._near.get(layer.data, ())

    def answers(self, layer: Layer) -> int | None:
        """The attention whose answer a layer reads."""
        return self._answers.get(layer.data)


def bottlenecks(graph: Graph, layers: Sequence[Layer]) -> list[Block]:
    """Bottlenecks in forward order."""
    feeds, blocks = Feeds(graph, layers), []
    for spatial in layers:
        before = feeds.before(spatial)
        if not _is_spatial(graph, spatial) or len(before) != 1 or not _is_pointwise(graph, layers[before[0]]):
            continue
        image = graph.types[spatial.node.outputs[0]].shape[:-1]
        behind = (
            layer
            for layer in layers[spatial.number + 1 : spatial.number + 1 + 2 * MOST_NEAR]
            if spatial.number in feeds.before(layer)
            and _is_pointwise(graph, layer)
            and graph.types[layer.data].shape[:-1] == image
        )
        last = next(behind, None)
        if last is not None:
            first = layers[before[0]]
            blocks.append(Block((first,), (first, spatial, last)))
    return blocks


def transformer_blocks(graph: Graph, layers: Sequence[Layer]) -> list[Block]:
    """Transformer blocks in forward order: of attentions without a feed-forward part behind them there is none."""
    feeds = Feeds(graph, layers)
    projecting = {number for numbers in feeds.attentions for number in numbers}
    output: dict[int, Layer] = {}
    after: dict[int, list[Layer]] = {}
    for layer in layers:
        attention = feeds.answers(layer)
        if attention is not None and layer.number not in projecting:
            output.setdefault(attention, layer)
        if feeds.before(layer):
            after.setdefault(feeds.before(layer)[-1], []).append(layer)
    blocks = []
    for attention, numbers in enumerate(feeds.attentions):
        if attention not in output or not numbers:
            continue
        first = [reader for reader in after.get(output[attention].number, ()) if reader.number not in projecting]
        second = [two for nearest in first for two in after.get(nearest.number, ())]
        if second:
            projections = (*(layers[number] for number in numbers), output[attention])
            blocks.append(Block((*projections, *first), (*projections, *first, *second[:1])))
    return blocks


def path_of(graph: Graph, block: Block) -> str:
    """The module that all weights of a block lie in; empty without one."""
    names = [graph.parameters[value].name for layer in block.layers for value in layer.weights]
    shared = set(module_paths(names[0])).intersection(*(module_paths(name) for name in names[1:]))
    return max(shared, key=len, default="")


def _is_pointwise(graph: Graph, layer: Layer) -> bool:
    """A convolution of extent 1, as such or as a matrix product over channels."""
    if layer.node.op == "matmul":
        return len(graph.types[layer.data].shape) == 4
    return layer.node.op == "conv2d" and set(graph.types[layer.node.inputs[1]].shape[:2]) == {1}


def _is_spatial(graph: Graph, layer: Layer) -> bool:
    """A convolution that looks beside a place."""
    if layer.node.op == "depthwise_conv2d":
        return True
    return layer.node.op == "conv2d" and set(graph.types[layer.node.inputs[1]].shape[:2]) != {1}

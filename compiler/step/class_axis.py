"""Which axis of an output holds the classes: the one that a layer's weights compute, followed back through the graph.

PyTorch's cross_entropy takes axis 1 ([N, C, H, W]), language models leave the classes last ([N, T, V]); a shape alone
does not tell them apart, and the labels of the wrong one are still valid classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import mul
from typing import Literal

from compiler.graph import Graph, Node
from compiler.ops.elementwise import ELEMENTWISE
from compiler.ops.record import flag, integer, ints
from compiler.values import Value

Source = Literal["layer", "data", "unknown"]
"""What an axis is: outputs of a layer, something of the data (batch, positions), or not to be told."""
Step = tuple[Value, int]
"""A value and one of its axes."""


def axis_source(graph: Graph, value: Value, axis: int) -> Source:
    """Where the extent of an axis comes from. A layer wins: what is added to its outputs does not change them."""
    walk = Walk(graph)
    found: set[Source] = set()
    todo, seen = [(value, axis)], {(value, axis)}
    while todo:
        name, at = todo.pop()
        node = walk.makers.get(name)
        if node is None:
            found.add("layer" if name in walk.learned else "data")
            continue
        for step in walk.steps(node, name, at):
            if isinstance(step, str):
                found.add(step)
            elif step not in seen:
                seen.add(step)
                todo.append(step)
    return "layer" if "layer" in found else "unknown" if "unknown" in found else "data"


class Walk:
    """A graph, who makes each value, and which values follow from inputs or from parameters."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.data = _reached(graph, graph.inputs)
        self.learned = _reached(graph, graph.parameters)

    def steps(self, node: Node, name: Value, axis: int) -> Iterable[Step | Source]:
        """Where an axis of the output `name` comes from."""
        rule = RULES.get(node.op) if name == node.outputs[0] else None
        return rule(self, node, axis) if rule is not None else ("unknown",)

    def shape(self, name: Value) -> tuple[int, ...]:
        return self.graph.types[name].shape

    def from_weights(self, name: Value) -> bool:
        return name not in self.data and name in self.learned


def _reached(graph: Graph, start: Iterable[Value]) -> set[Value]:
    reached = set(start)
    for node in graph.nodes:
        if any(name in reached for name in node.inputs):
            reached.update(node.outputs)
    return reached


Rule = Callable[[Walk, Node, int], Iterator[Step | Source]]
"""Where an output's axis comes from: axes of operands, or an answer."""


def _same(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    yield node.inputs[0], axis


def _broadcast(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    """The operands that have the whole extent there; weights only if no other has it."""
    shape = walk.shape(node.outputs[0])
    steps = []
    for name in node.inputs:
        at = axis - (len(shape) - len(walk.shape(name)))
        if at >= 0 and walk.shape(name)[at] == shape[axis]:
            steps.append((name, at))
    of_data = [step for step in steps if step[0] in walk.data]
    if of_data:
        yield from of_data
    else:
        yield "layer" if any(name in walk.learned for name, _ in steps) else "data"


def _transpose(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    yield node.inputs[0], ints(node.attrs, "perm")[axis]


def _reshape(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    """An axis that the reshape leaves whole: as many elements before it, and the same extent."""
    before, after = walk.shape(node.inputs[0]), walk.shape(node.outputs[0])
    starts = [1, *accumulate(after, mul)]
    for at, start in enumerate([1, *accumulate(before, mul)][:-1]):
        if start == starts[axis] and before[at] == after[axis]:
            yield node.inputs[0], at
            return
    yield "unknown"


def _concat(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    of_data = [name for name in node.inputs if name in walk.data]
    chosen = of_data if axis == integer(node.attrs, "axis") else of_data[:1]
    yield from ((name, axis) for name in chosen)


def _reduce(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    rank, axes = len(walk.shape(node.inputs[0])), ints(node.attrs, "axes")
    kept = list(range(rank)) if flag(node.attrs, "keepdims") else [at for at in range(rank) if at not in axes]
    if kept[axis] in axes:
        yield "data"
    else:
        yield node.inputs[0], kept[axis]


def _matmul(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    rank = len(walk.shape(node.outputs[0]))
    if axis < rank - 2:
        yield from _batch_axis(walk, node, axis)
        return
    name, is_column = node.inputs[axis - (rank - 2)], axis == rank - 1
    if name not in walk.data:
        yield "layer" if walk.from_weights(name) else "data"
        return
    transposed = flag(node.attrs, "transpose_b" if is_column else "transpose_a")
    yield name, len(walk.shape(name)) - (1 if is_column != transposed else 2)


def _batch_axis(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    shape = walk.shape(node.outputs[0])
    for name in node.inputs:
        at = axis - (len(shape) - len(walk.shape(name)))
        if at >= 0 and walk.shape(name)[at] == shape[axis]:
            yield name, at


def _convolution(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    """NHWC: the last axis is what the weights compute."""
    yield "layer" if axis == len(walk.shape(node.outputs[0])) - 1 else "data"


def _channelwise(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    """NHWC: pooling and depth-wise convolutions leave the channels as they are."""
    if (
        axis == len(walk.shape(node.outputs[0])) - 1
        and walk.shape(node.inputs[0])[-1] == walk.shape(node.outputs[0])[-1]
    ):
        yield node.inputs[0], axis
    else:
        yield "data"


def _gather(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    table, indices = node.inputs[:2]
    at, rank = int(str(node.attrs.get("axis", 0))), len(walk.shape(indices))
    if at <= axis < at + rank:
        yield indices, axis - at
    else:
        yield table, axis if axis < at else axis - rank + 1


def _attention(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    yield node.inputs[2 if axis == len(walk.shape(node.outputs[0])) - 1 else 0], axis


def _recurrence(walk: Walk, node: Node, axis: int) -> Iterator[Step | Source]:
    """Positions and samples are the input's, the state's width is the layer's."""
    yield (node.inputs[0], axis) if axis < 2 else "layer"


RULES: Mapping[str, Rule] = {
    **{record.name: _broadcast for record in ELEMENTWISE},
    **dict.fromkeys(
        ("identity", "log_softmax", "normalize", "pad", "rms_normalize", "layer_norm", "slice", "softmax"), _same
    ),
    **dict.fromkeys(("reduce_max", "reduce_mean", "reduce_sum"), _reduce),
    "attention": _attention,
    "average_pool": _channelwise,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "conv2d": _convolution,
    "conv2d_input_grad": _convolution,
    "depthwise_conv2d": _channelwise,
    "embedding": _gather,
    "depthwise_input_grad": _channelwise,
    "gather": _gather,
    "matmul": _matmul,
    "max_pool": _channelwise,
    "recurrence": _recurrence,
    "reshape": _reshape,
    "transpose": _transpose,
}

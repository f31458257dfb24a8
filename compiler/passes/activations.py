"""Takes sigmoids and softmaxes that are spelled out for what they are.

Rewrites: 1 / (1 + exp(-x)) and exp(x) / (1 + exp(x)) to sigmoid(x); exp(log_softmax(x)) to softmax(x); exp(z) by its
sum along an axis to softmax(z), or softmax(x) where z is x less its largest element along that axis. Requires: nothing.
Ensures: the values that the spelling has where nothing in it overflows, and finite ones elsewhere. Why: the gradients
of the spelling are NaN beyond exp(88); one kernel does what several did; attention and losses look for softmaxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.graph import Graph, Node
from compiler.ops.record import flag, ints
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import PassResult, rewritten
from compiler.values import Value


def name_activations(graph: Graph) -> PassResult[Graph]:
    """The graph with every sigmoid and softmax that is recognised as one node."""
    reader, b = _Reader(graph), GraphBuilder(graph, keep_nodes=False)
    for node in graph.nodes:
        b.stand_for(node)
        softmax = reader.softmax(node)
        x = reader.sigmoid(node)
        if x is not None and graph.types[x] == graph.types[node.output]:
            b.emit("sigmoid", x, output=node.output)
        elif softmax is not None:
            _emit_softmax(b, *softmax, node.output)
        else:
            b.nodes.append(node)
    return rewritten(graph, b.graph_of(graph))


def _emit_softmax(b: GraphBuilder, x: Value, axis: int, output: Value) -> None:
    rank = len(b.shape(x))
    if axis == rank - 1:
        b.emit("softmax", x, output=output)
        return
    swap = [*range(rank)]
    swap[axis], swap[-1] = swap[-1], swap[axis]
    last = b.emit("softmax", b.emit("transpose", x, perm=tuple(swap)))
    b.emit("transpose", last, output=output, perm=tuple(swap))


class _Reader:
    """Reads what spells a node's result."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._makers: Mapping[Value, Node] = graph.producers()

    def sigmoid(self, node: Node) -> Value | None:
        """x of a sigmoid that a node ends; None for anything else."""
        if node.op == "reciprocal" or (node.op == "div" and self._is_unit(node.inputs[0])):
            for exponential in self._added_to_unit(node.inputs[-1]):
                negated = self._operand(exponential, "exp")
                x = self._operand(negated, "neg") if negated is not None else None
                if x is not None:
                    return x
        elif node.op == "div" and node.inputs[0] in self._added_to_unit(node.inputs[1]):
            return self._operand(node.inputs[0], "exp")
        return None

    def softmax(self, node: Node) -> tuple[Value, int] | None:
        """x and the axis of a softmax that a node ends; None for anything else."""
        logarithm = self._operand(node.inputs[0], "log_softmax") if node.op == "exp" else None
        if logarithm is not None:
            return logarithm, len(self.graph.types[logarithm].shape) - 1
        if node.op != "div":
            return None
        exponential, total = node.inputs
        z, over = self._operand(exponential, "exp"), self._makers.get(total)
        if z is None or over is None or over.op != "reduce_sum" or over.inputs[0] != exponential:
            return None
        axes = ints(over.attrs, "axes")
        if len(axes) != 1 or not flag(over.attrs, "keepdims"):
            return None
        axis = axes[0] % len(self.graph.types[z].shape)
        return self._without_largest(z, axis), axis

    def _without_largest(self, z: Value, axis: int) -> Value:
        """x, if z is x less its largest element along an axis; else z."""
        less = self._makers.get(z)
        if less is None or less.op != "sub":
            return z
        x, largest = less.inputs
        over = self._makers.get(largest)
        rank = len(self.graph.types[x].shape)
        is_largest = over is not None and over.op == "reduce_max" and over.inputs[0] == x
        if over is None or not is_largest or [number % rank for number in ints(over.attrs, "axes")] != [axis]:
            return z
        return x if flag(over.attrs, "keepdims") else z

    def _added_to_unit(self, total: Value) -> Iterator[Value]:
        """Yields the operands that 1 is added to."""
        add = self._makers.get(total)
        if add is not None and add.op == "add":
            for value, other in (add.inputs, add.inputs[::-1]):
                if self._is_unit(other):
                    yield value

    def _is_unit(self, value: Value) -> bool:
        array = self.graph.arrays.get(value)
        return array is not None and value not in self.graph.parameters and array.size > 0 and bool((array == 1).all())

    def _operand(self, value: Value, op: str) -> Value | None:
        node = self._makers.get(value)
        return node.inputs[0] if node is not None and node.op == op else None

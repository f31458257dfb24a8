"""Values of the forward pass that the backward pass reads: which are kept for it, by whom they are read, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from compiler.graph import Graph, Node
from compiler.values import Value

LEAST_BYTES = 1 << 14
"""The least bytes that are worth packing: a kernel call more would cost more than it saves."""
LEAST_MADE = 1
"""The least that the forward pass makes while a value is kept, as a multiple of its size: at the turn of the step, bits
only add to what is held.
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """low < y < high."""

    value: Value
    low: float = -inf
    high: float = inf


class SavedValues:
    """The maker and the readers of each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {value: node for node in graph.nodes for value in node.outputs}
        self.readers: dict[Value, list[Node]] = {}
        self.places = {node.outputs[0]: place for place, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            for value in dict.fromkeys(node.inputs):
                self.readers.setdefault(value, []).append(node)
        forward = (node if node.phase == "forward" else None for node in graph.nodes)
        sizes = (graph.types[node.outputs[0]].size_bytes if node is not None else 0 for node in forward)
        self.made_bytes = [0, *accumulate(sizes)]

    def late_readers(self, value: Value) -> Sequence[Node]:
        """Returns the nodes that read it after the forward pass."""
        return [node for node in self.readers.get(value, []) if node.phase != "forward"]

    def early_readers(self, value: Value) -> Sequence[Node]:
        """Returns the nodes that read it in the forward pass."""
        return [node for node in self.readers.get(value, []) if node.phase == "forward"]

    def is_large(self, value: Value) -> bool:
        """Whether it is made in the forward pass, of reals, and worth a thought."""
        maker, tensor = self.makers.get(value), self.graph.types[value]
        if maker is None or maker.phase != "forward" or value in self.graph.outputs:
            return False
        return tensor.element.is_real and tensor.size_bytes >= LEAST_BYTES

    def is_only_compared(self, value: Value, of: Sequence[Node]) -> bool:
        """Whether all of these late readers compare it with numbers, and it is kept for long."""
        if not of or any(self.comparison(node) is None for node in of):
            return False
        last = max(self.places[node.outputs[0]] for node in (self.makers[value], *self.early_readers(value)))
        return self.made_bytes[-1] - self.made_bytes[last + 1] > LEAST_MADE * self.graph.types[value].size_bytes

    def comparison(self, node: Node) -> Compared | None:
        """A comparison of a value with a number."""
        if node.op != "less":
            return None
        x, y = node.inputs
        low, high = self._number(x), self._number(y)
        if (low is None) == (high is None):
            return None
        return Compared(y, low=low) if low is not None else Compared(x, high=high if high is not None else inf)

    def _number(self, value: Value) -> float | None:
        array = self.graph.arrays.get(value)
        if array is None or array.size != 1 or value in self.graph.parameters:
            return None
        return float(array.reshape(-1)[0])

"""Keeps the place of each maximum of a pool, a byte, in place of the pool's input.

Rewrites: max_pool(x) and, in the backward pass, max_pool_grad(x, d_y) -> y and places, max_places_grad(places, d_y), if
the backward pass keeps x for nothing else, or for comparisons of which bits will do (`save_masks`).
Requires: gradients, and what is equal in one place. Ensures: every gradient is the same, to the bit.
Why: x is as large as the stride is wide, and four bytes an element: of a pool of 2 x 2, sixteen times its places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.graph import Graph, Node
from compiler.kernels.places import holds_places
from compiler.ops.masks import lanes_of
from compiler.ops.pooling import WINDOW
from compiler.ops.record import ints
from compiler.passes.saved_values import SavedValues
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import PassResult, Reason, rewritten
from compiler.values import Value

WIDE = Reason("places.window", "a window of at most 256 places")
OTHERWISE = Reason("places.kept", "an input that the backward pass keeps for nothing else")
_Pool = tuple[Value, tuple[tuple[int, ...], ...]]
"""The value that is pooled, and the windows."""


def save_argmax_indices(graph: Graph) -> PassResult[Graph]:
    """The graph with places in place of inputs of pools that only the pools' gradients read."""
    analysis = _Pools(graph)
    declined = {pool: reason for pool in analysis.gradients if (reason := analysis.declines(pool)) is not None}
    notes = tuple(reason.at(analysis.pools[pool].layer) for pool, reason in declined.items())
    chosen = {
        pool: node for pool, node in analysis.pools.items() if pool in analysis.gradients and pool not in declined
    }
    if not chosen:
        return PassResult(graph, False, notes)
    return rewritten(graph, _written(graph, chosen), notes)


def _pool_of(node: Node) -> _Pool:
    return node.inputs[0], tuple(ints(node.attrs, name) for name in WINDOW)


class _Pools(SavedValues):
    """The pools of the forward pass whose gradients read large inputs."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        early = (node for node in graph.nodes if node.op == "max_pool" and node.phase == "forward")
        self.pools = {_pool_of(node): node for node in early}
        late = (_pool_of(node) for node in graph.nodes if node.op == "max_pool_grad" and node.phase != "forward")
        self.gradients = {pool: None for pool in late if pool in self.pools and self.is_large(self._root(pool[0]))}

    def declines(self, pool: _Pool) -> Reason | None:
        """Why nothing would be gained by the places of this pool; None if something is."""
        if not holds_places(pool[1][WINDOW.index("kernel")]):
            return WIDE
        root = self._root(pool[0])
        family = [root, *(node.output for node in self.early_readers(root) if node.op == "reshape")]
        others = {value: self._others(value) for value in family}
        read = [value for value in family if others[value]]
        if not read:
            return None
        if len(read) > 1 or not lanes_of(self.graph.types[root].size):
            return OTHERWISE
        return None if self.is_only_compared(read[0], others[read[0]]) else OTHERWISE

    def _others(self, value: Value) -> list[Node]:
        """Late readers but for gradients of pools over small windows."""
        return [node for node in self.late_readers(value) if not self._is_served(node, value)]

    def _is_served(self, node: Node, value: Value) -> bool:
        if node.op != "max_pool_grad" or node.inputs[0] != value or node.inputs[1] == value:
            return False
        return _pool_of(node) in self.pools and holds_places(ints(node.attrs, "kernel"))

    def _root(self, value: Value) -> Value:
        """Returns the value that a view shows."""
        maker = self.makers.get(value)
        while maker is not None and maker.op == "reshape":
            value = maker.inputs[0]
            maker = self.makers.get(value)
        return value


def _written(graph: Graph, chosen: Mapping[_Pool, Node]) -> Graph:
    b = Rewriter(graph)
    words: dict[_Pool, Value] = {}
    for node in graph.nodes:
        pool = _pool_of(node) if node.op in ("max_pool", "max_pool_grad") else None
        if pool is None or pool not in chosen:
            b.replay(node, None)
            continue
        b.stand_for(node)
        if node is chosen[pool]:
            words[pool] = b.fresh()
            b.emit_many("max_pool_places", node.inputs, outputs=(*node.outputs, words[pool]), **node.attrs)
        elif node.op == "max_pool_grad":
            attrs = {**node.attrs, "shape": b.shape(node.inputs[0])}
            inputs = (words[pool], node.inputs[1])
            b.replay(replace(node, op="max_places_grad", inputs=inputs, attrs=attrs), None)
        else:
            b.replay(node, None)
    return b.replayed()

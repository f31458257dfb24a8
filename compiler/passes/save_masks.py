"""Keeps one bit for each element of what the backward pass only compares.

Rewrites: less(a, y) or less(y, b) in the backward pass, and a chain of two such selections, over a forward value y that
nothing else reads after the forward pass -> the same of y's bits, which are packed right after y is made.
Requires: gradients, and what is equal in one place. Ensures: every selection is the same, to the bit.
Why: the gradients of Relu and Clip are selections. Where the layer behind is frozen, its input is kept for them alone:
a 32nd of it is enough. Where a weight's gradient reads it too, nothing is gained, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from compiler.graph import Graph, Node
from compiler.ops.masks import lanes_of
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import PassResult, Reason, rewritten
from compiler.values import Value

LEAST_BYTES = 1 << 14
"""What takes less is kept as it is: a kernel call more would cost more than it saves."""
LEAST_MADE = 1
"""Of its size, what the forward pass makes while it is kept: at the turn of the step, bits only are more to hold."""
NOT_WHOLE = Reason("masks.size", "a tensor with a whole number of groups of 128 elements")


@dataclass(frozen=True, slots=True)
class _Compared:
    """low < y < high."""

    value: Value
    low: float = -inf
    high: float = inf


def save_masks(graph: Graph) -> PassResult[Graph]:
    """The graph with bits in place of values that only selections of the backward pass read."""
    found = _Found(graph)
    only = [value for value in found.readers if found.is_only_compared(value)]
    packed = {value for value in only if lanes_of(graph.types[value].size)}
    declined = tuple(NOT_WHOLE.at(found.makers[value].layer) for value in only if value not in packed)
    if not packed:
        return PassResult(graph, False, declined)
    chains, alone = found.chains(packed), found.comparisons(packed)
    return rewritten(graph, _written(graph, found, chains, alone), declined)


class _Found:
    """Who makes and who reads each value."""

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

    def is_only_compared(self, value: Value) -> bool:
        """Whether it is made in the forward pass, kept for long, and after it compared with numbers alone."""
        maker, graph = self.makers.get(value), self.graph
        if maker is None or maker.phase != "forward" or value in graph.outputs:
            return False
        if not graph.types[value].element.is_real or graph.types[value].size_bytes < LEAST_BYTES:
            return False
        late = [node for node in self.readers[value] if node.phase != "forward"]
        early = [node for node in self.readers[value] if node.phase == "forward"]
        views = (view for view in early if view.op == "reshape")
        if any(node.phase != "forward" for view in views for node in self.readers.get(view.output, [])):
            return False
        if not late or any(self.comparison(node) is None for node in late):
            return False
        last = max(self.places[node.outputs[0]] for node in (maker, *early))
        return self.made_bytes[-1] - self.made_bytes[last + 1] > LEAST_MADE * graph.types[value].size_bytes

    def comparison(self, node: Node) -> _Compared | None:
        """A comparison of a value with a number."""
        if node.op != "less":
            return None
        x, y = node.inputs
        low, high = self._number(x), self._number(y)
        if (low is None) == (high is None):
            return None
        return _Compared(y, low=low) if low is not None else _Compared(x, high=high if high is not None else inf)

    def comparisons(self, packed: set[Value]) -> Mapping[Value, _Compared]:
        """All comparisons of those values after the forward pass, by what they make."""
        late = (node for value in packed for node in self.readers[value] if node.phase != "forward")
        return {node.output: one for node in late if (one := self.comparison(node)) is not None}

    def chains(self, packed: set[Value]) -> Mapping[Value, _Compared]:
        """where(y < high, where(low < y, d, 0), 0), or the other way round, by what the outer one makes."""
        wheres = (node for node in self.graph.nodes if node.op == "where" and node.phase != "forward")
        found = ((node.output, self._chain(node)) for node in wheres)
        return {output: both for output, both in found if both is not None and both.value in packed}

    def _chain(self, node: Node) -> _Compared | None:
        inner = self.makers.get(node.inputs[1])
        if inner is None or inner.op != "where" or self.readers[inner.output] != [node]:
            return None
        if node.inputs[2] != inner.inputs[2] or self._number(node.inputs[2]) is None:
            return None
        bounds = [self.comparison(self.makers[one.inputs[0]]) for one in (node, inner) if one.inputs[0] in self.makers]
        known = [one for one in bounds if one is not None]
        if len(known) != 2 or known[0].value != known[1].value:
            return None
        both = _Compared(known[0].value, max(one.low for one in known), min(one.high for one in known))
        same_shape = self.graph.types[both.value].shape == self.graph.types[node.output].shape
        return both if same_shape and -inf < both.low and both.high < inf else None

    def _number(self, value: Value) -> float | None:
        array = self.graph.arrays.get(value)
        if array is None or array.size != 1 or value in self.graph.parameters:
            return None
        return float(array.reshape(-1)[0])


def _written(graph: Graph, found: _Found, chains: Mapping[Value, _Compared], alone: Mapping[Value, _Compared]) -> Graph:
    """The graph with bits packed where values are made, and read where they are compared."""
    b = Rewriter(graph)
    in_chains = {own for output in chains for own in _conditions(found, output)}
    kept = {output: one for output, one in alone.items() if not _serve_chains(found, output, in_chains, chains)}
    wanted: dict[Value, dict[_Compared, Value | None]] = {}
    for one in (*chains.values(), *kept.values()):
        wanted.setdefault(one.value, {})[one] = None
    words: dict[_Compared, Value] = {}
    for node in graph.nodes:
        own = node.outputs[0]
        b.stand_for(node)
        if own in kept:
            b.emit("unpack_bits", words[kept[own]], output=own, shape=b.shape(own))
        elif own in chains:
            inside = b.emit("unpack_bits", words[chains[own]], shape=b.shape(own))
            chosen = found.makers[node.inputs[1]].inputs[1]
            b.replay(replace(node, inputs=(inside, chosen, node.inputs[2])), None)
        else:
            b.replay(node, None)
        for value in node.outputs:
            for one in wanted.get(value, ()):
                words[one] = b.emit("inside_bits", value, low=one.low, high=one.high)
    return b.replayed()


def _conditions(found: _Found, outer: Value) -> tuple[Value, Value]:
    """What the two selections of a chain go by."""
    node = found.makers[outer]
    return node.inputs[0], found.makers[node.inputs[1]].inputs[0]


def _serve_chains(found: _Found, comparison: Value, in_chains: set[Value], chains: Mapping[Value, _Compared]) -> bool:
    """Whether chains alone read a comparison: it is dead once they read bits."""
    outers = (
        node if node.output in chains else next(iter(found.readers.get(node.output, [])), node)
        for node in found.readers[comparison]
    )
    return comparison in in_chains and all(outer.output in chains for outer in outers)

"""Keeps one bit for each element of what the backward pass only compares.

Rewrites: less(a, y) or less(y, b) in the backward pass, and a chain of two such selections, over a forward value y that
nothing else reads after the forward pass -> the same of y's bits, which are packed right after y is made.
Requires: gradients, and what is equal in one place. Ensures: every selection is the same, to the bit.
Why: the gradients of Relu and Clip are selections. Where the layer behind is frozen, its input is kept for them alone:
a 32nd of it is enough. Where a weight's gradient reads it too, nothing is gained, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from compiler.graph import Graph, Node
from compiler.ops.masks import lanes_of
from compiler.passes.saved_values import Compared, SavedValues
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import PassResult, Reason, rewritten
from compiler.values import Value

NOT_WHOLE = Reason("masks.size", "a tensor with a whole number of groups of 128 elements")


def save_masks(graph: Graph) -> PassResult[Graph]:
    """The graph with bits in place of values that only selections of the backward pass read."""
    analysis = _Comparisons(graph)
    only = analysis.packable()
    packed = {value for value in only if lanes_of(graph.types[value].size)}
    declined = tuple(NOT_WHOLE.at(analysis.makers[value].layer) for value in only if value not in packed)
    if not packed:
        return PassResult(graph, False, declined)
    chains, alone = analysis.chains(packed), analysis.comparisons(packed)
    return rewritten(graph, _written(graph, analysis, chains, alone), declined)


class _Comparisons(SavedValues):
    """The values that are compared, and how."""

    def packable(self) -> list[Value]:
        """Returns the values that the backward pass compares with numbers and reads for nothing else, views of it
        included.
        """
        return [value for value in self.readers if self._is_packable(value)]

    def _is_packable(self, value: Value) -> bool:
        if not self.is_large(value):
            return False
        views = [view for view in self.early_readers(value) if view.op == "reshape"]
        if any(self.late_readers(view.output) for view in views):
            return False
        return self.is_only_compared(value, self.late_readers(value))

    def comparisons(self, packed: set[Value]) -> Mapping[Value, Compared]:
        """Returns all comparisons of those values after the forward pass, by what they make."""
        late = (node for value in packed for node in self.readers[value] if node.phase != "forward")
        return {node.output: compared for node in late if (compared := self.comparison(node)) is not None}

    def chains(self, packed: set[Value]) -> Mapping[Value, Compared]:
        """where(y < high, where(low < y, d, 0), 0), or the other way round, by what the outer one makes."""
        wheres = (node for node in self.graph.nodes if node.op == "where" and node.phase != "forward")
        chains = ((node.output, self._chain(node)) for node in wheres)
        return {output: both for output, both in chains if both is not None and both.value in packed}

    def _chain(self, node: Node) -> Compared | None:
        inner = self.makers.get(node.inputs[1])
        if inner is None or inner.op != "where" or self.readers[inner.output] != [node]:
            return None
        if node.inputs[2] != inner.inputs[2] or self._number(node.inputs[2]) is None:
            return None
        bounds = [
            self.comparison(self.makers[selection.inputs[0]])
            for selection in (node, inner)
            if selection.inputs[0] in self.makers
        ]
        comparisons = [bound for bound in bounds if bound is not None]
        if len(comparisons) != 2 or comparisons[0].value != comparisons[1].value:
            return None
        both = Compared(
            comparisons[0].value,
            max(comparison.low for comparison in comparisons),
            min(comparison.high for comparison in comparisons),
        )
        same_shape = self.graph.types[both.value].shape == self.graph.types[node.output].shape
        return both if same_shape and -inf < both.low and both.high < inf else None


def _written(
    graph: Graph, analysis: _Comparisons, chains: Mapping[Value, Compared], alone: Mapping[Value, Compared]
) -> Graph:
    """The graph with bits packed where values are made, and read where they are compared."""
    b = Rewriter(graph)
    in_chains = {condition for output in chains for condition in _conditions(analysis, output)}
    independent = {
        output: compared for output, compared in alone.items() if not _serve_chains(analysis, output, in_chains, chains)
    }
    masks: dict[Value, dict[Compared, Value | None]] = {}
    for compared in (*chains.values(), *independent.values()):
        masks.setdefault(compared.value, {})[compared] = None
    words: dict[Compared, Value] = {}
    for node in graph.nodes:
        node_output = node.outputs[0]
        b.stand_for(node)
        if node_output in independent:
            b.emit("unpack_bits", words[independent[node_output]], output=node_output, shape=b.shape(node_output))
        elif node_output in chains:
            inside = b.emit("unpack_bits", words[chains[node_output]], shape=b.shape(node_output))
            chosen = analysis.makers[node.inputs[1]].inputs[1]
            b.replay(replace(node, inputs=(inside, chosen, node.inputs[2])), None)
        else:
            b.replay(node, None)
        for value in node.outputs:
            for compared in masks.get(value, ()):
                words[compared] = b.emit("inside_bits", value, low=compared.low, high=compared.high)
    return b.replayed()


def _conditions(analysis: _Comparisons, outer: Value) -> tuple[Value, Value]:
    """Returns the conditions of the two selections of a chain."""
    node = analysis.makers[outer]
    return node.inputs[0], analysis.makers[node.inputs[1]].inputs[0]


def _serve_chains(
    analysis: _Comparisons, comparison: Value, in_chains: set[Value], chains: Mapping[Value, Compared]
) -> bool:
    """Whether chains alone read a comparison: it is dead once they read bits."""
    outers = (
        node if node.output in chains else next(iter(analysis.readers.get(node.output, [])), node)
        for node in analysis.readers[comparison]
    )
    return comparison in in_chains and all(outer.output in chains for outer in outers)

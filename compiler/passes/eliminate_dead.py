"""Removes nodes, constants and types that no output needs.

Rewrites: drops nodes whose outputs nobody reads. Requires: nothing. Ensures: every node reaches an output.
Why: sparse plans leave most of the backward graph unused; this is where it disappears.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.graph import Graph
from compiler.rewriting.passes import PassResult, rewritten


def eliminate_dead(graph: Graph) -> PassResult[Graph]:
    """The graph without dead nodes and constants; parameters and inputs stay."""
    return rewritten(graph, without_dead(graph))


def without_dead(graph: Graph) -> Graph:
    """The graph without what none of its outputs needs."""
    needed = set(graph.outputs)
    live_nodes = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs):
            live_nodes.append(node)
            needed.update(node.inputs)
    live_nodes.reverse()
    produced = {name for node in live_nodes for name in node.outputs}
    alive = needed | produced | set(graph.inputs) | set(graph.parameters)
    return replace(
        graph,
        nodes=tuple(live_nodes),
        types={name: tensor for name, tensor in graph.types.items() if name in alive},
        arrays={name: array for name, array in graph.arrays.items() if name in alive},
    )

"""Evaluates at compile time what depends on constants only.

Rewrites: a node whose operands are all constants becomes a constant. Parameters are never folded, frozen ones
included: a checkpoint loaded at run time may hold other values. Requires: nothing. Ensures: no foldable node is left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.graph import Graph, Node
from compiler.ops import OPERATORS
from compiler.rewriting.passes import Declined, PassResult, rewritten

MAX_GROWTH_ELEMENTS = 4096
_DRAWS = "dropout"
"""The operator that draws at random. Of ones, it is a mask: it stands for its operand only until a training step drops
some (`compiler.step.dropout`).
"""


def fold_constants(graph: Graph) -> PassResult[Graph]:
    """The graph with constant nodes evaluated, unless the result is much larger than its operands."""
    arrays = dict(graph.arrays)
    nodes: list[Node] = []
    declined: list[Declined] = []
    for node in graph.nodes:
        constant = all(name in arrays and name not in graph.parameters for name in node.inputs)
        size = sum(graph.types[name].size for name in node.outputs)
        operands = sum(graph.types[name].size for name in node.inputs)
        if not constant or node.op == _DRAWS:
            nodes.append(node)
            continue
        if size > max(MAX_GROWTH_ELEMENTS, operands):
            needs = f"a result of at most {max(MAX_GROWTH_ELEMENTS, operands)} elements, not {size}"
            declined.append(Declined("fold.grows", node.layer or node.op, needs))
            nodes.append(node)
            continue
        with np.errstate(all="ignore"):
            results = OPERATORS[node.op].evaluate([arrays[name] for name in node.inputs], node.attrs)
        for name, result in zip(node.outputs, results, strict=True):
            arrays[name] = np.ascontiguousarray(result, graph.types[name].element.numpy).reshape(result.shape)
    return rewritten(graph, replace(graph, nodes=tuple(nodes), arrays=arrays), declined)

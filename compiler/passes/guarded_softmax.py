"""Takes the guard that turns a softmax's NaN rows into zeros for what it means: a row that sees no key weighs nothing.

Rewrites: where(is_nan(w), 0, w), w = softmax(x), to safe_softmax(x); in x, an added mask of 0 and the lowest number to
one of 0 and -inf. Requires: nothing. Ensures: the values of PyTorch's scaled_dot_product_attention with a boolean mask,
in both directions. Why: softmax's gradient of such a row is NaN times zero. And only PyTorch's exporter writes this
form, for that operator: it says -inf in a comment and writes the lowest number, after which its guard never meets a NaN
and the file spreads such a row evenly, where the module gives zeros.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.graph import Array, Graph, Node
from compiler.ops.softmax import LOWEST
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value


def unguard_softmax(graph: Graph) -> PassResult[Graph]:
    """The graph with every guarded softmax as one that needs no guard."""
    makers = graph.producers()
    b = GraphBuilder(graph, keep_nodes=False)
    declined: list[Declined] = []
    for node in graph.nodes:
        softmax = _guarded(graph, makers, node)
        if not isinstance(softmax, Node):
            b.nodes.append(node)
            declined += [softmax] if softmax is not None else []
            continue
        b.stand_for(node)
        b.emit("safe_softmax", _masked_by_infinity(b, graph, makers, softmax.inputs[0]), output=node.output)
    return rewritten(graph, b.graph_of(graph), declined)


def _guarded(graph: Graph, makers: Mapping[Value, Node], node: Node) -> Node | Declined | None:
    """The softmax behind a guard, or why what is guarded is none; None for what is no guard."""
    if node.op != "where":
        return None
    condition, replacement, guarded = node.inputs
    test, softmax, zero = makers.get(condition), makers.get(guarded), _constant(graph, replacement)
    if test is None or test.op != "is_nan" or test.inputs != (guarded,) or zero is None or zero.any():
        return None
    same = graph.types[guarded] == graph.types[node.output]
    if softmax is None or softmax.op != "softmax" or not same:
        return Declined("softmax.guards_another", node.layer or node.op, "a softmax of the same shape behind the guard")
    return softmax


def _masked_by_infinity(b: GraphBuilder, graph: Graph, makers: Mapping[Value, Node], scores: Value) -> Value:
    """The scores with -inf for the lowest number in the masks that are added to them."""
    node = makers.get(scores)
    if node is None or node.op != "add":
        return scores
    left, right = (_mask(b, graph, makers, name) or _masked_by_infinity(b, graph, makers, name) for name in node.inputs)
    return scores if (left, right) == node.inputs else b.emit("add", left, right)


def _mask(b: GraphBuilder, graph: Graph, makers: Mapping[Value, Node], name: Value) -> Value | None:
    """A mask of 0 and the lowest number with -inf in its place; None if the value is none."""
    constant_array = _constant(graph, name)
    if constant_array is not None:
        return b.constant(_infinite(constant_array)) if _hides(constant_array) else None
    node = makers.get(name)
    if node is None or node.op != "where":
        return None
    condition, *numbers = node.inputs
    arrays = [_constant(graph, number) for number in numbers]
    if any(array is None or not np.isin(array, (0, LOWEST)).all() for array in arrays):
        return None
    return b.emit("where", condition, *(b.constant(_infinite(array)) for array in arrays if array is not None))


def _constant(graph: Graph, name: Value) -> Array | None:
    return None if name in graph.parameters else graph.arrays.get(name)


def _hides(mask: Array) -> bool:
    return mask.dtype.kind == "f" and bool((mask == LOWEST).any()) and bool(np.isin(mask, (0, LOWEST)).all())


def _infinite(mask: Array) -> Array:
    return np.where(mask == LOWEST, np.float32(-np.inf), mask).astype(np.float32)

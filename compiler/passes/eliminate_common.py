"""Computes equal things once.

Rewrites: a node with the same operator, attributes and operands as an earlier one is replaced by it; equal small
constants become one. Requires: nothing. Ensures: no two equal pure nodes.
Why: gradient rules recompute masks and shared factors freely and rely on this.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.graph import Array, Graph
from compiler.ops import OPERATORS
from compiler.rewriting.passes import PassResult, rewritten
from compiler.values import Value

MAX_CONSTANT_BYTES = 1 << 16


def eliminate_common(graph: Graph) -> PassResult[Graph]:
    """The graph with common subexpressions merged; graph outputs stay."""
    merged = _equal_constants(graph)
    outputs_by_key: dict[object, tuple[Value, ...]] = {}
    nodes, outputs = [], frozenset(graph.outputs)
    for node in graph.nodes:
        inputs = tuple(merged.get(value, value) for value in node.inputs)
        node = replace(node, inputs=inputs)
        key = (node.op, inputs, tuple(sorted(node.attrs.items())))
        mergeable = not OPERATORS[node.op].in_place and outputs.isdisjoint(node.outputs)
        if mergeable and key in outputs_by_key:
            merged.update(zip(node.outputs, outputs_by_key[key], strict=True))
            continue
        outputs_by_key.setdefault(key, node.outputs)
        nodes.append(node)
    return rewritten(graph, graph.with_nodes(nodes))


def _equal_constants(graph: Graph) -> dict[Value, Value]:
    merged: dict[Value, Value] = {}
    first: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
    for name, array in graph.arrays.items():
        if name in graph.parameters or array.nbytes > MAX_CONSTANT_BYTES:
            continue
        original = first.setdefault(_identity(array), name)
        if original != name:
            merged[name] = original
    return merged


def _identity(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return (str(array.dtype), array.shape, array.tobytes())

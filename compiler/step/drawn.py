"""Estimates what an output looks like, whatever a model has learned: computes it of drawn numbers in place of what its
weights give.

However a model spells it, an output of probabilities lies between 0 and 1, and those of classes add up to 1.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.graph import Array, Graph, Node
from compiler.ops import OPERATORS, WEIGHTED
from compiler.values import Value

DEVIATION = 3.0
"""The deviation of what is drawn: far enough from 0 to leave the straight part of a sigmoid."""
MAX_ELEMENTS = 1 << 25
"""The most elements that are computed; a longer tail than that tells nothing."""
CLOSE = 1e-3
"""How far sums of probabilities may be from 1: some models add a small number to what they divide by."""


def lies_between_0_and_1(array: Array) -> bool:
    """True for what may be probabilities; zeros alone say nothing: something multiplies by 0."""
    return bool(array.any() and array.min() >= 0 and array.max() <= 1)


def adds_up_to_1(array: Array, axis: int) -> bool:
    """True for what may be probabilities of classes along an axis."""
    return array.ndim > 0 and bool(np.abs(array.sum(axis) - 1).max(initial=0.0) < CLOSE)


def drawn(graph: Graph, output: Value) -> Array | None:
    """An output of drawn numbers in place of inputs and of what weights give; None where that is not computed."""
    nodes = _tail(graph, output)
    if not nodes or sum(math.prod(graph.types[value].shape) for node in nodes for value in node.outputs) > MAX_ELEMENTS:
        return None
    random = np.random.default_rng(0)
    values: dict[Value, Array] = {}
    try:
        for node in nodes:
            operands = [_operand(graph, values, value, random) for value in node.inputs]
            with np.errstate(all="ignore"):
                results = OPERATORS[node.op].evaluate(operands, node.attrs)
            values.update(zip(node.outputs, results, strict=True))
    except Exception:  # an operator may refuse what was drawn: a place beyond its table, say
        return None
    return values[output]


def _operand(graph: Graph, values: dict[Value, Array], value: Value, random: np.random.Generator) -> Array:
    stored = graph.arrays.get(value)
    if stored is not None:
        return stored
    if value not in values:
        kind = graph.types[value]
        numbers = random.standard_normal(kind.shape) * DEVIATION
        values[value] = numbers.astype(np.float32) if kind.dtype == "f32" else np.zeros(kind.shape, kind.element.numpy)
    return values[value]


def _tail(graph: Graph, output: Value) -> list[Node]:
    """The nodes behind the last weights, in the graph's order."""
    needed, nodes, weights = {output}, list[Node](), _weights(graph)
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) or (node.op in WEIGHTED and not weights.isdisjoint(node.inputs)):
            continue
        nodes.append(node)
        needed.update(node.inputs)
    return nodes[::-1]


def _weights(graph: Graph) -> set[Value]:
    """Parameters, and what follows from them alone."""
    weights, data = set(graph.parameters), set(graph.inputs)
    for node in graph.nodes:
        if not data.isdisjoint(node.inputs):
            data.update(node.outputs)
        elif not weights.isdisjoint(node.inputs):
            weights.update(node.outputs)
    return weights

"""Where a graph takes norms: the roots of sums whose terms are nowhere below 0, and have slope 0 where they are 0.

Such a sum is 0 only where all its terms are, so that there the root's infinite slope meets nothing but zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.graph import Graph, Node
from compiler.values import Value

_SHAPES = ("broadcast_to", "reshape", "slice", "transpose")
_SUMS = ("reduce_mean", "reduce_sum")
_POWERS = {"reciprocal": -1.0, "rsqrt": -0.5, "sqrt": 0.5}
"""Those that have operators of their own."""


@dataclass(frozen=True, slots=True)
class _Total:
    """A value of sizes, squares and their sums; `steep`: its terms below the first power, with their exponents."""

    is_summed: bool
    steep: Mapping[Value, float]


def find_norms(graph: Graph) -> frozenset[Value]:
    """The roots of norms, and terms of theirs below the first power: their slope at 0 is infinite, and counts as 0."""
    totals: dict[Value, _Total] = {}
    norms: set[Value] = set()
    for node in (node for node in graph.nodes if node.inputs and len(node.outputs) == 1):
        total = _total(graph, node, totals)
        if total is not None:
            totals[node.output] = total
        below, root = totals.get(node.inputs[0]), _root(graph, node)
        if root is None or below is None or not below.is_summed:
            continue
        # 1 / (sum of squares) is no norm; the norms of negative order have negative powers inside too.
        if all((power < 0) == (root < 0) for power in below.steep.values()) and (below.steep or root > 0):
            norms |= {*below.steep, *((node.output,) if root < 1 else ())}
    return frozenset(norms)


def _root(graph: Graph, node: Node) -> float | None:
    return 2.0 if node.op == "mul" and node.inputs[0] == node.inputs[1] else exponent_of(graph, node)


def exponent_of(graph: Graph, node: Node) -> float | None:
    """Returns the exponent of a power with one exponent; None for another node, or where the exponent has
    further axes.
    """
    if node.op != "pow":
        return _POWERS.get(node.op)
    same = graph.types[node.inputs[0]].shape == graph.types[node.output].shape
    return number_of(graph, node.inputs[1]) if same else None


def number_of(graph: Graph, value: Value) -> float | None:
    """The only real number that a constant holds."""
    array = None if value in graph.parameters else graph.arrays.get(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind == "f" else None


def _total(graph: Graph, node: Node, totals: Mapping[Value, _Total]) -> _Total | None:
    """Returns what a node makes of what its operands are."""
    first = totals.get(node.inputs[0])
    if node.op == "abs":
        return _Total(False, {})
    if node.op in ("mul", "div"):
        return _scaled(graph, node, totals)
    if first is None:
        return _even_power(graph, node)
    if node.op in _SHAPES:
        return first
    if node.op in _SUMS:
        return _Total(True, first.steep)
    exponent = exponent_of(graph, node)
    if exponent is None or first.is_summed:
        return None
    return _Total(False, {node.output: exponent} if exponent < 1 else first.steep)


def _scaled(graph: Graph, node: Node, totals: Mapping[Value, _Total]) -> _Total | None:
    """A square, a product of two totals, or a total times (or by) a positive number."""
    left, right = node.inputs
    if node.op == "mul" and left == right:
        return _Total(True, {})
    totals_of = [totals.get(left), totals.get(right)]
    if node.op == "mul" and totals_of[0] is not None and totals_of[1] is not None:
        is_summed = totals_of[0].is_summed or totals_of[1].is_summed
        return _Total(is_summed, {**totals_of[0].steep, **totals_of[1].steep})
    for total, other in ((totals_of[0], right), (totals_of[1], left) if node.op == "mul" else (None, right)):
        factor = number_of(graph, other)
        if total is not None and factor is not None and 0 < factor < float("inf"):
            return total
    return None


def _even_power(graph: Graph, node: Node) -> _Total | None:
    exponent = exponent_of(graph, node) if node.op == "pow" else None
    is_even = exponent is not None and exponent >= 2 and exponent % 2 == 0
    return _Total(True, {}) if is_even else None

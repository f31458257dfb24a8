"""Takes what is composed of elementary functions for the function that it is, where the chain rule is 0 times infinity.

Rewrites: the root of a sum of squares or of sizes' powers, and its terms below the first power, to `safe_power`;
atan(y / x) to `atan_ratio`; log(sigmoid x) and log(1 - sigmoid x) to what does not overflow; what an infinite slope
belongs to and a `where`, or a maximum with a logarithm, does not take, to that of 1 in its place.
Requires: nothing. Ensures: the same values, a logarithm's of a sigmoid more exactly; gradients that are PyTorch's for
its own norm, std, cdist, cosine similarity, atan2, sinc, log-sigmoid and binary cross-entropy, and finite where a
composition of its author's has NaN.
Why: a root's slope at 0 is infinite, below it is slope 0, and their product is NaN; a file has the composition alone.

Where a graph takes norms: the roots of sums whose terms are nowhere below 0, and have slope 0 where they are 0.

Such a sum is 0 only where all its terms are, so that there the root's infinite slope meets nothing but zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Graph, Node
from compiler.ops.record import broadcast_shape, number
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import PassResult, rewritten
from compiler.values import Value

_SHAPES = ("broadcast_to", "reshape", "slice", "transpose")
_SUMS = ("reduce_mean", "reduce_sum")
_POWERS = {"reciprocal": -1.0, "rsqrt": -0.5, "sqrt": 0.5}
"""The powers that have operators of their own."""


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


_POLES = {"div": 1, "log": 0, "pow": 0, "reciprocal": 0, "rsqrt": 0, "sqrt": 0}
"""Operators with an infinite slope somewhere, and the operand that it depends on."""


def separate_singular(graph: Graph) -> PassResult[Graph]:
    """The graph with singular compositions as functions of their own."""
    rewriter = _Rewriter(graph)
    for node in graph.nodes:
        rewriter.b.stand_for(node)
        if len(node.outputs) > 1 or not rewriter.write(node):
            rewriter.b.nodes.append(node)
    return rewritten(graph, rewriter.b.graph_of(graph))


class _Rewriter:
    """Writes the graph anew, node by node."""

    def __init__(self, graph: Graph) -> None:
        self.b = GraphBuilder(graph, keep_nodes=False)
        self._graph = graph
        self._makers = graph.producers()
        self._readers = graph.consumers()
        self._norms = find_norms(graph)
        self._put_off: dict[Value, Node] = {}

    def write(self, node: Node) -> bool:
        """Appends what has become of a node; False if it stays."""
        if node.output in self._norms:
            exponent = exponent_of(self._graph, node)
            assert exponent is not None
            self.b.emit("safe_power", node.inputs[0], output=node.output, exponent=exponent)
            return True
        rules = {
            "atan": self._ratio,
            "log": self._log_sigmoid,
            "at_least": self._bounded_logarithm,
            "clip": self._clipped_logarithm,
            "maximum": self._bounded_logarithm,
            "relu": self._clipped_logarithm,
            "where": self._choice,
        }
        return (node.op in rules and rules[node.op](node)) or (node.op in _POLES and self._not_taken(node))

    def _ratio(self, node: Node) -> bool:
        ratio = self._maker(node.inputs[0], "div")
        if ratio is None:
            return False
        self.b.emit("atan_ratio", *ratio.inputs, output=node.output)
        return True

    def _log_sigmoid(self, node: Node) -> bool:
        """log(sigmoid x) = min(x, 0) - log1p(exp(-|x|)), and that of 1 - sigmoid x = sigmoid(-x)."""
        b, sigmoid = self.b, self._maker(node.inputs[0], "sigmoid")
        rest = self._maker(node.inputs[0], "sub") if sigmoid is None else None
        if rest is not None and number_of(self._graph, rest.inputs[0]) == 1.0:
            sigmoid = self._maker(rest.inputs[1], "sigmoid")
        if sigmoid is None or b.shape(sigmoid.output) != b.shape(node.output):
            return False
        x = sigmoid.inputs[0] if rest is None else b.emit("neg", sigmoid.inputs[0])
        small = b.emit("log1p", b.emit("exp", b.emit("neg", b.emit("abs", x))))
        b.emit("sub", b.emit("minimum", x, b.constant(0.0)), small, output=node.output)
        return True

    def _bounded_logarithm(self, node: Node) -> bool:
        """max(log x, c), which is c where x = 0."""
        for operand, bound in (node.inputs, node.inputs[::-1])[: 2 if node.op == "maximum" else 1]:
            log, least = self._maker(operand, "log"), number_of(self._graph, bound)
            if log is None or least is None or not np.isfinite(least) or not self._is_private(operand):
                continue
            b, x = self.b, log.inputs[0]
            if b.shape(x) != b.shape(node.output):
                continue
            vanishes = b.emit("equal", x, b.constant(0.0))
            safe = b.emit("log", b.emit("where", vanishes, b.constant(1.0), x))
            b.emit("where", vanishes, bound, b.emit(node.op, safe, bound), output=node.output)
            return True
        return False

    def _clipped_logarithm(self, node: Node) -> bool:
        """Rewrites a bounded logarithm in the same way where the bound is an attribute."""
        b, log = self.b, self._maker(node.inputs[0], "log")
        low, high = (number(node.attrs, "low"), number(node.attrs, "high")) if node.op == "clip" else (0.0, np.inf)
        if log is None or not np.isfinite(low) or not self._is_private(node.inputs[0]):
            return False
        vanishes = b.emit("equal", log.inputs[0], b.constant(0.0))
        safe = b.emit("log", b.emit("where", vanishes, b.constant(1.0), log.inputs[0]))
        bounded = b.emit("clip", safe, low=low, high=high)
        b.emit("where", vanishes, b.constant(min(low, high)), bounded, output=node.output)
        return True

    def _not_taken(self, node: Node) -> bool:
        """Puts off what a `where` alone reads until its condition is there."""
        choice = self._readers.get(node.output, [])
        if len(choice) != 1 or choice[0].op != "where" or not self._is_private(node.output):
            return False
        condition, *branches = choice[0].inputs
        operand = node.inputs[_POLES[node.op]]
        guard = self._maker(operand, "where")
        is_guarded = guard is not None and guard.inputs[0] == condition
        if branches.count(node.output) != 1 or condition == node.output or is_guarded:
            return False
        is_constant = operand in self._graph.arrays and operand not in self._graph.parameters
        if is_constant or not self._fits(condition, operand):
            return False
        self._put_off[node.output] = node
        return True

    def _choice(self, node: Node) -> bool:
        """Completes what was put off before a choice: where that takes the other branch, 1 stands for the operand."""
        condition, *branches = node.inputs
        for branch in branches:
            pole = self._put_off.pop(branch, None)
            if pole is None:
                continue
            self.b.stand_for(pole)
            inputs, place, unit = list(pole.inputs), _POLES[pole.op], self.b.constant(1.0)
            order = (inputs[place], unit) if branch == branches[0] else (unit, inputs[place])
            inputs[place] = self.b.emit("where", condition, *order)
            self.b.emit(pole.op, *inputs, output=pole.output)
        self.b.stand_for(node)
        return False

    def _maker(self, value: Value, op: str) -> Node | None:
        node = self._makers.get(value)
        return node if node is not None and node.op == op else None

    def _is_private(self, value: Value) -> bool:
        return len(self._readers.get(value, ())) == 1 and value not in self._graph.outputs

    def _fits(self, condition: Value, operand: Value) -> bool:
        """Whether choosing by the condition repeats no element of the operand."""
        shape = self.b.shape(operand)
        try:
            return broadcast_shape(self.b.shape(condition), shape) == shape
        except ModelShapeError:
            return False

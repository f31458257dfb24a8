"""Joins a norm with its scale and shift, so that the normalised value is neither written nor kept.

Rewrites: normalize(x) * weight + bias -> layer_norm(x, weight, bias); rms_normalize(x) * weight, also where it is
spelled x * rsqrt(mean(x x) + epsilon), -> layer_norm without centring.
Requires: weight and bias have the width of a row, and nothing else reads what lies between. Ensures: the same values.
Why: forward, one tensor is written where two were; backward, one kernel reads x and d_y once for all three gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.graph import Graph, Node
from compiler.ops.record import flag, ints, number
from compiler.passes.simplify import Rewriter
from compiler.rewriting.passes import Declined, PassResult, rewritten
from compiler.values import Value


def join_norms(graph: Graph) -> PassResult[Graph]:
    """The graph with every norm that is recognised as one node."""
    readers = {name: len(nodes) for name, nodes in graph.consumers().items()}
    b = Rewriter(graph)
    joiner = _Joiner(b, {name for name, count in readers.items() if count == 1} - set(graph.outputs))
    for node in graph.nodes:
        b.replay(node, joiner.rule if node.op in ("mul", "add") else None)
    joined = b.replayed()
    read = {name for node in joined.nodes for name in node.inputs}.union(joined.outputs)
    unscaled = [node for node in joined.nodes if node.op in ("normalize", "rms_normalize") and node.output in read]
    needs = "a weight as wide as a row to scale it, and no other reader"
    return rewritten(graph, joined, [Declined("norm.not_scaled", node.layer or node.op, needs) for node in unscaled])


@dataclass(frozen=True, slots=True)
class _Norm:
    x: Value
    epsilon: float
    centred: bool


class _Joiner:
    """Finds norms in what has been replayed so far; `private` values have one reader."""

    def __init__(self, b: Rewriter, private: set[Value]) -> None:
        self.b, self.private = b, private

    def rule(self, b: Rewriter, node: Node) -> Value | None:
        """weight * n, or y + bias."""
        for left, right in (node.inputs, node.inputs[::-1]):
            joined = self._scaled(left, right) if node.op == "mul" else self._shifted(left, right)
            if joined is not None:
                if node.outputs[0] in self.private:
                    self.private.add(joined)
                return joined
        return None

    def _scaled(self, n: Value, weight: Value) -> Value | None:
        norm = self._norm(n) if n in self.private else None
        if norm is None or self.b.shape(weight) != self.b.shape(norm.x)[-1:]:
            return None
        return self.b.emit("layer_norm", norm.x, weight, epsilon=norm.epsilon, centred=norm.centred)

    def _shifted(self, y: Value, bias: Value) -> Value | None:
        norm = self.b.producer(y, "layer_norm") if y in self.private else None
        if norm is None or len(norm.inputs) > 2 or self.b.shape(bias) != self.b.shape(y)[-1:]:
            return None
        epsilon, centred = number(norm.attrs, "epsilon"), flag(norm.attrs, "centred")
        return self.b.emit("layer_norm", *norm.inputs, bias, epsilon=epsilon, centred=centred)

    def _norm(self, n: Value) -> _Norm | None:
        node = self.b.makers.get(n)
        if node is None:
            return None
        if node.op in ("normalize", "rms_normalize"):
            return _Norm(node.inputs[0], number(node.attrs, "epsilon"), node.op == "normalize")
        return self._root_mean_square(node) if node.op in ("mul", "div") else None

    def _root_mean_square(self, node: Node) -> _Norm | None:
        """x times (or by) the root of its mean square."""
        for x, root in (node.inputs, node.inputs[::-1]) if node.op == "mul" else (node.inputs,):
            inside = self._inside_root(root, inverse=node.op == "mul")
            total = self.b.producer(inside, "add") if inside else None
            for mean, epsilon in (total.inputs, total.inputs[::-1]) if total is not None else ():
                value = self.b.constant_scalar(epsilon)
                if value is not None and self._is_mean_square(mean, x):
                    return _Norm(x, value, False)
        return None

    def _inside_root(self, name: Value, *, inverse: bool) -> Value | None:
        """a of sqrt(a), or of its reciprocal if `inverse`; None for anything else."""
        if not inverse:
            root = self.b.producer(name, "sqrt")
            return root.inputs[0] if root is not None else None
        whole = self.b.producer(name, "rsqrt")
        if whole is not None:
            return whole.inputs[0]
        outer = self.b.producer(name, "reciprocal")
        return self._inside_root(outer.inputs[0], inverse=False) if outer is not None else None

    def _is_mean_square(self, name: Value, x: Value) -> bool:
        mean = self.b.producer(name, "reduce_mean")
        if mean is None or not flag(mean.attrs, "keepdims"):
            return False
        square = self.b.producer(mean.inputs[0], "mul")
        last = len(self.b.shape(x)) - 1
        return ints(mean.attrs, "axes") == (last,) and square is not None and square.inputs == (x, x)

"""Local algebra: replaces a node by something cheaper that means the same.

Rewrites (one rule per operator, table at the end): identities, views of views, transposes that move only unit axes,
integer powers, casts and reductions that do nothing. Requires: nothing. Ensures: types of all values are unchanged.
Why: importers and gradient rules stay plain, and every later pass sees fewer shapes of the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from compiler.graph import Graph, Node
from compiler.ops.record import flag, ints, number, text
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import PassResult, rewritten
from compiler.values import Value

Rule = Callable[["Rewriter", Node], Value | None]


class Rewriter(GraphBuilder):
    """A builder that replays a graph and lets rules replace nodes as they pass."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, keep_nodes=False)
        self.graph = graph
        self.results = frozenset(graph.outputs)
        self.makers: dict[Value, Node] = {}
        self.renamed: dict[Value, Value] = {}

    def constant_scalar(self, name: Value) -> float | None:
        """The number a constant one-element tensor holds, if it is one."""
        array = self.arrays.get(name)
        if array is None or name in self.graph.parameters or array.size != 1:
            return None
        return float(array.reshape(-1)[0])

    def producer(self, name: Value, op: str) -> Node | None:
        """The node that makes `name`, if it is an `op`."""
        node = self.makers.get(name)
        return node if node is not None and node.op == op else None

    def replayed(self) -> Graph:
        """Returns the rewritten graph, once all its nodes were replayed."""
        return self.graph_of(self.graph)

    def replay(self, node: Node, rule: Rule | None) -> bool:
        """Appends the node, or what its rule puts in its place, and returns whether there is anything else in its
        place.
        """
        node = replace(node, inputs=tuple(self.renamed.get(name, name) for name in node.inputs))
        self.stand_for(node)
        before = len(self.nodes)
        result = rule(self, node) if rule is not None else None
        for replacement in self.nodes[before:]:
            self.makers[replacement.outputs[0]] = replacement
        if result is None or node.output in self.results:  # a graph output keeps its name
            del self.nodes[before:]
            self.nodes.append(node)
            for name in node.outputs:
                self.makers[name] = node
            return False
        if result != node.output:
            self.renamed[node.output] = result
        return True


def simplify(graph: Graph) -> PassResult[Graph]:
    """The graph after one sweep of all rules."""
    b = Rewriter(graph)
    for node in graph.nodes:
        b.replay(node, RULES.get(node.op))
    return rewritten(graph, b.replayed())


def _identity(b: Rewriter, node: Node) -> Value | None:
    return node.inputs[0]


def _reshape(b: Rewriter, node: Node) -> Value | None:
    source = node.inputs[0]
    inner = b.producer(source, "reshape")
    if inner is not None:
        source = inner.inputs[0]
    if b.types[source].shape == b.types[node.output].shape:
        return source
    if inner is None:
        return None
    return b.emit("reshape", source, shape=b.shape(node.output))


def _transpose(b: Rewriter, node: Node) -> Value | None:
    perm, source = ints(node.attrs, "perm"), node.inputs[0]
    inner = b.producer(source, "transpose")
    if inner is not None:
        first = ints(inner.attrs, "perm")
        perm, source = tuple(first[axis] for axis in perm), inner.inputs[0]
    shape = b.shape(source)
    if perm == tuple(range(len(perm))):
        return source
    moved = [axis for axis in perm if shape[axis] != 1]
    if moved == sorted(moved):
        return b.emit("reshape", source, shape=b.shape(node.output))
    return None if inner is None else b.emit("transpose", source, perm=perm)


def _same_shape(b: Rewriter, node: Node) -> Value | None:
    return node.inputs[0] if b.types[node.inputs[0]] == b.types[node.output] else None


def _reduce(b: Rewriter, node: Node) -> Value | None:
    shape = b.shape(node.inputs[0])
    axes = tuple(axis for axis in ints(node.attrs, "axes") if shape[axis] != 1)
    if axes:
        return None
    return b.emit("reshape", node.inputs[0], shape=b.shape(node.output))


def _cast(b: Rewriter, node: Node) -> Value | None:
    return node.inputs[0] if b.types[node.inputs[0]].dtype == text(node.attrs, "to") else None


def _pow(b: Rewriter, node: Node) -> Value | None:
    x, exponent = node.inputs[0], b.constant_scalar(node.inputs[1])
    if exponent is None or b.shape(x) != b.shape(node.output):
        return None
    if exponent in (1.0, 2.0, 3.0, 4.0):
        square = x if exponent == 1 else b.emit("mul", x, x)
        return b.emit("mul", square, x if exponent == 3 else square) if exponent > 2 else square
    functions = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    return b.emit(functions[exponent], x) if exponent in functions else None


def _neutral(value: float, *, right_only: bool = False) -> Rule:
    """x + 0, x * 1, x - 0, x / 1: the other operand, where its type is already the result's."""

    def rule(b: Rewriter, node: Node) -> Value | None:
        x, y = node.inputs
        for operand, other in ((x, y),) if right_only else ((x, y), (y, x)):
            if b.constant_scalar(other) == value and b.types[operand] == b.types[node.output]:
                return operand
        return None

    return rule


def _clip(b: Rewriter, node: Node) -> Value | None:
    if number(node.attrs, "low") == 0.0 and number(node.attrs, "high") == float("inf"):
        return b.emit("relu", node.inputs[0])
    return None


def _matmul(b: Rewriter, node: Node) -> Value | None:
    """Folds a transpose of an operand's last two axes into the flag."""
    operands, flags = list(node.inputs), [flag(node.attrs, "transpose_a"), flag(node.attrs, "transpose_b")]
    changed = False
    for side, name in enumerate(node.inputs):
        inner = b.producer(name, "transpose")
        perm = ints(inner.attrs, "perm") if inner is not None else ()
        rank = len(perm)
        if inner is None or rank < 2 or perm[-1] == rank - 1 or perm[-2] != rank - 1:
            continue
        outer = (*perm[:-2], perm[-1], perm[-2])
        source = inner.inputs[0]
        operands[side] = source if outer == tuple(range(rank)) else b.emit("transpose", source, perm=outer)
        flags[side] = not flags[side]
        changed = True
    if not changed:
        return None
    return b.emit("matmul", *operands, transpose_a=flags[0], transpose_b=flags[1])


def _where(b: Rewriter, node: Node) -> Value | None:
    """A choice between one value and itself."""
    _, first, second = node.inputs
    same = first == second and b.shape(first) == b.shape(node.output)
    return first if same else None


RULES: Mapping[str, Rule] = {
    "identity": _identity,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _same_shape,
    "slice": _same_shape,
    "pad": _same_shape,
    "cast": _cast,
    "pow": _pow,
    "reduce_sum": _reduce,
    "reduce_mean": _reduce,
    "reduce_max": _reduce,
    "add": _neutral(0.0),
    "sub": _neutral(0.0, right_only=True),
    "mul": _neutral(1.0),
    "div": _neutral(1.0, right_only=True),
    "clip": _clip,
    "matmul": _matmul,
    "where": _where,
}

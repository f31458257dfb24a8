"""The logits in front of the softmaxes or sigmoids with which a model ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.axes.facts import Alike, Axis
from compiler.axes.rules import VIEWS, facts_of
from compiler.graph import Array, Graph, Node
from compiler.ops.record import number
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import CLASSIFYING, LossKind, LossSpec, LossTerm
from compiler.values import Value

DONE_BY_LOSS: Mapping[LossKind, Sequence[str]] = {
    **dict.fromkeys(CLASSIFYING, ("softmax", "safe_softmax")),
    "bce_with_logits": ("sigmoid",),
}
"""Kinds of losses that do on their own what a model may have done."""
_MOVED: Mapping[str, slice] = {
    **dict.fromkeys((*VIEWS, "broadcast_to", "gather", "slice"), slice(1)),
    "concat": slice(None),
    "where": slice(1, None),
}
"""Operators that compute nothing: the operands whose elements they hand on."""
_SHARES = frozenset(("sigmoid", "softmax", "safe_softmax"))
_SHARES_OF_SHARES = frozenset(("maximum", "minimum", "mul", "reduce_max", "reduce_mean"))


def expose_logits(graph: Graph, spec: LossSpec) -> Graph:
    """The graph with what losses read in front of softmaxes or sigmoids, moved as the outputs behind them are."""
    outputs = {graph.name_of(value): value for value in graph.outputs}
    b = GraphBuilder(graph)
    for term in spec.each:
        output = outputs.get(term.output) if term.output else graph.outputs[0]
        if output is not None:
            in_front(b, graph, output, term)
    return b.graph_of(graph)


def in_front(b: GraphBuilder, graph: Graph, output: Value, term: LossTerm) -> Value | None:
    """What one of the loss's own operators makes an output of, in its shape; None if none of them does.

    It is of `graph` itself after `expose_logits`.
    """
    operators = DONE_BY_LOSS.get(term.kind, ())
    rank = len(graph.types[output].shape)
    axis = rank - 1 if term.class_axis is None else term.class_axis
    axes = _class_axes(graph, operators)
    if output not in axes or axes[output] not in (axis, None):
        return None
    there = {
        (node.op, node.inputs, tuple(node.attrs.items())): node.output for node in graph.nodes if node.op in _MOVED
    }
    instead: dict[Value, Value] = {}
    for node in _behind(graph, output, operators):
        if node.op in operators:
            instead[node.output] = node.inputs[0]
            continue
        inputs = tuple(instead.get(value, value) for value in node.inputs)
        key = (node.op, inputs, tuple(node.attrs.items()))
        layer = b.layer
        b.stand_for(node)
        if key in there:
            instead[node.output] = there[key]
        else:
            (instead[node.output],) = b.emit_many(node.op, inputs, outputs=(b.fresh(),), **node.attrs)
        b.layer = layer
    return instead[output]


def lies_between_0_and_1(graph: Graph, output: Value) -> bool:
    """True if what makes an output shows that its elements are shares: they are no logits, whoever reads them."""
    constants = graph.arrays.keys() - set(graph.parameters)
    shares = {value for value in constants if _is_within(graph.arrays[value])}
    for node in graph.nodes:
        passes_on = node.op in _MOVED or node.op in _SHARES_OF_SHARES
        operands = node.inputs[_MOVED.get(node.op, slice(None))]
        if node.op in _SHARES or _is_clipped(node) or (passes_on and shares.issuperset(operands)):
            shares.update(node.outputs)
    return output in shares and output not in graph.arrays


def _is_within(array: Array) -> bool:
    return array.size > 0 and bool(array.min() >= 0 and array.max() <= 1)


def _is_clipped(node: Node) -> bool:
    return node.op == "clip" and number(node.attrs, "low") >= 0 and number(node.attrs, "high") <= 1


def _class_axes(graph: Graph, operators: Sequence[str]) -> dict[Value, int | None]:
    """Of values that are all of them moved results of the operators: the softmaxes' axis; None for a sigmoid's."""
    axes: dict[Value, int | None] = {}
    for node in graph.nodes:
        if node.op in operators:
            axes[node.output] = None if "sigmoid" in operators else len(graph.types[node.output].shape) - 1
            continue
        moved = node.inputs[_MOVED[node.op]] if node.op in _MOVED else ()
        if moved and all(value in axes for value in moved):
            places = {None if axes[value] is None else _moved_axis(graph, node, value, axes[value]) for value in moved}
            if len(places) == 1 and ("sigmoid" in operators or None not in places):
                axes[node.output] = places.pop()
    return axes


def _moved_axis(graph: Graph, node: Node, operand: Value, axis: int | None) -> int | None:
    """Where an operand's axis is in a node's result, whole and with nothing chosen along it; None if it is not."""
    before, after = graph.types[operand].shape, graph.types[node.output].shape
    if node.op == "reshape":
        is_last = axis == len(before) - 1 and before[-1:] == after[-1:]
        return len(after) - 1 if is_last else None
    facts = [fact for fact in facts_of(node, lambda value: graph.types[value].shape) if isinstance(fact, Alike)]
    moved = node.inputs[_MOVED[node.op]]
    places = [fact.to for fact in facts if fact.of == Axis(operand, axis or 0) and fact.to.is_whole]
    chosen = {fact.to for fact in facts if fact.of.value not in moved and after[fact.to.axis] > 1}
    return places[0].axis if places and places[0] not in chosen else None


def _behind(graph: Graph, output: Value, operators: Sequence[str]) -> list[Node]:
    """The nodes between what is in front of the operators and an output, in the graph's order."""
    wanted, nodes = {output}, list[Node]()
    for node in reversed(graph.nodes):
        if node.output in wanted:
            nodes.append(node)
            if node.op not in operators:
                wanted.update(node.inputs[_MOVED[node.op]])
    return nodes[::-1]

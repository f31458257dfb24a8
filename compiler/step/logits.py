"""The logits in front of a softmax or sigmoid with which a model ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.axes.rules import VIEWS
from compiler.graph import Graph, Node
from compiler.ops.record import ints
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import CLASSIFYING, LossKind, LossSpec, LossTerm
from compiler.values import Value

DONE_BY_LOSS: Mapping[LossKind, Sequence[str]] = {
    **dict.fromkeys(CLASSIFYING, ("softmax", "safe_softmax")),
    "bce_with_logits": ("sigmoid",),
}
"""Kinds of losses that do on their own what a model may have done."""


def expose_logits(graph: Graph, spec: LossSpec) -> Graph:
    """The graph with what losses read in front of a softmax or sigmoid in the shape of the outputs behind it."""
    outputs = {graph.name_of(value): value for value in graph.outputs}
    b = GraphBuilder(graph)
    for term in spec.each:
        output = outputs.get(term.output) if term.output else graph.outputs[0]
        chain = _chain(graph, output, term) if output is not None else None
        if chain is not None:
            _seen_through(b, graph, *chain)
    return b.graph_of(graph)


def in_front(b: GraphBuilder, graph: Graph, output: Value, term: LossTerm) -> Value | None:
    """What one of the loss's own operators makes an output of, in its shape; None if none of them does.

    It is of `graph` itself after `expose_logits`.
    """
    chain = _chain(graph, output, term)
    return None if chain is None else _seen_through(b, graph, *chain)


def _seen_through(b: GraphBuilder, graph: Graph, value: Value, views: Sequence[Node]) -> Value:
    """A value through the views of another; nodes that are there already are not written again."""
    there = {(node.op, node.inputs, tuple(node.attrs.items())): node.output for node in graph.nodes if node.op in VIEWS}
    for view in reversed(views):
        key = (view.op, (value,), tuple(view.attrs.items()))
        layer = b.layer
        b.stand_for(view)
        (value,) = (there[key],) if key in there else b.emit_many(view.op, (value,), outputs=(b.fresh(),), **view.attrs)
        b.layer = layer
    return value


def _chain(graph: Graph, output: Value, term: LossTerm) -> tuple[Value, list[Node]] | None:
    """The operand of a softmax along the classes, or of a sigmoid, and the views between that and an output."""
    operators = DONE_BY_LOSS.get(term.kind, ())
    makers, views, value = graph.producers(), list[Node](), output
    rank = len(graph.types[output].shape)
    axis: int | None = rank - 1 if term.class_axis is None else term.class_axis
    while (node := makers.get(value)) is not None and node.op not in operators:
        if node.op not in VIEWS:
            return None
        axis = _before(node, axis, graph)
        views.append(node)
        value = node.inputs[0]
    is_along = "sigmoid" in operators or axis == len(graph.types[value].shape) - 1
    return (node.inputs[0], views) if node is not None and is_along else None


def _before(view: Node, axis: int | None, graph: Graph) -> int | None:
    """Where an axis of a view's result is in its operand; None if it is not one there."""
    if axis is None or view.op == "identity":
        return axis
    if view.op == "transpose":
        return ints(view.attrs, "perm")[axis]
    before, after = graph.types[view.inputs[0]].shape, graph.types[view.output].shape
    is_last = axis == len(after) - 1 and before[-1:] == after[-1:]
    return len(before) - 1 if is_last else None

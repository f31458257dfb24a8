"""A graph's gradients, without a model around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compiler.channels.slices import WHOLE
from compiler.graph import Graph
from compiler.rewriting.builder import GraphBuilder
from compiler.step.autodiff import differentiate
from compiler.step.training import Term, TrainingGraph
from compiler.values import Value


def with_gradients(graph: Graph, targets: Iterable[Value]) -> Graph:
    """The graph's output, then the gradients of the sum of its squares for `targets`."""
    b = GraphBuilder(graph)
    y = graph.outputs[0]
    axes = tuple(range(len(b.shape(y))))
    loss = b.emit("reduce_sum", b.emit("mul", y, y), axes=axes, keepdims=False)
    whole = replace(b.graph_of(graph), outputs=(y,))
    step = TrainingGraph(whole, loss, y, (Term("graph", loss, None),), {}, graph.inputs)
    return differentiate(step, dict.fromkeys(targets, WHOLE)).graph

"""Sigmoids and softmaxes that are spelled out are taken for what they are, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.graph import Graph, Parameter, TensorType
from compiler.passes.activations import name_activations
from compiler.passes.eliminate_dead import without_dead
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import all_named
from tests.compiler.passes.gradients import with_gradients

SHAPE = (2, 3, 4)
X, Y = all_named("x", "y")
NUMBERS = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
HUGE = 200.0
"""Its exponential is no float32."""


def successor(b: GraphBuilder, value: Value) -> Value:
    return b.emit("add", b.constant(1.0), value)


def divided(b: GraphBuilder) -> Value:
    unit = b.constant(1.0)
    return b.emit("div", unit, b.emit("add", b.emit("exp", b.emit("neg", X)), unit))


def reciprocal(b: GraphBuilder) -> Value:
    return b.emit("reciprocal", successor(b, b.emit("exp", b.emit("neg", X))))


def exponentials(b: GraphBuilder) -> Value:
    exponential = b.emit("exp", X)
    return b.emit("div", exponential, successor(b, exponential))


def summed(b: GraphBuilder, axis: int = 2, x: Value = X, y: Value | None = None) -> Value:
    exponential = b.emit("exp", x)
    total = b.emit("reduce_sum", exponential if y is None else b.emit("exp", y), axes=(axis,), keepdims=True)
    return b.emit("div", exponential, total)


def less_largest(b: GraphBuilder, axis: int) -> Value:
    return summed(b, axis, b.emit("sub", X, b.emit("reduce_max", X, axes=(axis,), keepdims=True)))


SPELLINGS: dict[str, tuple[Callable[[GraphBuilder], Value], str]] = {
    "1 / (1 + exp(-x))": (divided, "sigmoid"),
    "reciprocal": (reciprocal, "sigmoid"),
    "exp(x) / (1 + exp(x))": (exponentials, "sigmoid"),
    "softmax": (summed, "softmax"),
    "exp(log_softmax(x))": (lambda b: b.emit("exp", b.emit("log_softmax", X)), "softmax"),
    "softmax of the middle axis": (lambda b: summed(b, 1), "softmax"),
    "softmax, less the largest": (lambda b: less_largest(b, 2), "softmax"),
    "softmax of the first axis, less the largest": (lambda b: less_largest(b, 0), "softmax"),
}
OTHERS: dict[str, Callable[[GraphBuilder], Value]] = {
    "2 / (1 + exp(-x))": lambda b: b.emit("div", b.constant(2.0), successor(b, b.emit("exp", b.emit("neg", X)))),
    "1 / (1 + exp(x))": lambda b: b.emit("reciprocal", successor(b, b.emit("exp", X))),
    "exp(x) / sum(exp(y))": lambda b: summed(b, y=Y),
    "exp(x) / (1 + exp(y))": lambda b: b.emit("div", b.emit("exp", X), successor(b, b.emit("exp", Y))),
}


def graph_of(form: Callable[[GraphBuilder], Value]) -> Graph:
    b = GraphBuilder()
    b.types.update({value: TensorType("f32", SHAPE) for value in (X, Y)})
    output = form(b)
    return Graph(tuple(b.nodes), (X, Y), (output,), b.types, b.arrays)


def operators(graph: Graph) -> list[str]:
    return [node.op for node in without_dead(graph).nodes]


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_becomes_a_node_with_the_same_values_and_gradients(name: str) -> None:
    form, operator = SPELLINGS[name]
    graph = graph_of(form)
    rewritten = name_activations(graph).subject
    assert [op for op in operators(rewritten) if op != "transpose"] == [operator]
    feeds = {X: NUMBERS, Y: NUMBERS}
    graphs = [with_gradients(whole, (X,)) for whole in (graph, rewritten)]
    wanted, given = ([evaluate_graph(whole, feeds)[value] for value in whole.outputs] for whole in graphs)
    for exact, array in zip(wanted, given, strict=True):
        np.testing.assert_allclose(array, exact, rtol=1e-5, atol=1e-6)
    huge = evaluate_graph(graphs[1], {X: NUMBERS * HUGE, Y: NUMBERS})
    assert all(np.isfinite(huge[value]).all() for value in graphs[1].outputs)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name: str) -> None:
    graph = graph_of(OTHERS[name])
    assert operators(name_activations(graph).subject) == operators(graph)


def test_a_unit_that_may_learn_is_no_number() -> None:
    graph = graph_of(divided)
    (unit,) = graph.arrays
    learning = replace(graph, parameters={unit: Parameter("unit", (), (), (), "weight", "layer")})
    assert operators(name_activations(learning).subject) == operators(graph)

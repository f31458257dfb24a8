"""Joining norms with their scale and shift keeps the values, in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler.graph import Graph, TensorType
from compiler.passes.normalization import join_norms
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import all_named

SHAPE, WIDTH = (2, 3, 8), (8,)
X, WEIGHT, BIAS = all_named("x", "weight", "bias")


def layer_norm(b: GraphBuilder) -> Value:
    return b.emit("add", b.emit("mul", b.emit("normalize", X, epsilon=1e-5), WEIGHT), BIAS)


def scale_first(b: GraphBuilder) -> Value:
    return b.emit("add", BIAS, b.emit("mul", WEIGHT, b.emit("normalize", X, epsilon=1e-5)))


def root_mean_square(b: GraphBuilder) -> Value:
    return b.emit("mul", b.emit("rms_normalize", X, epsilon=1e-5), WEIGHT)


def _inside(b: GraphBuilder) -> Value:
    return b.emit("add", b.emit("reduce_mean", b.emit("mul", X, X), axes=(2,), keepdims=True), b.constant(1e-5))


def spelled_out(b: GraphBuilder) -> Value:
    return b.emit("mul", WEIGHT, b.emit("mul", X, b.emit("reciprocal", b.emit("sqrt", _inside(b)))))


def reciprocal_root(b: GraphBuilder) -> Value:
    return b.emit("mul", b.emit("mul", b.emit("rsqrt", _inside(b)), X), WEIGHT)


def divided(b: GraphBuilder) -> Value:
    return b.emit("mul", b.emit("div", X, b.emit("sqrt", _inside(b))), WEIGHT)


FORMS: list[Callable[[GraphBuilder], Value]] = [
    layer_norm,
    scale_first,
    root_mean_square,
    spelled_out,
    reciprocal_root,
    divided,
]


def graph_of(form: Callable[[GraphBuilder], Value], *more: Value) -> Graph:
    b = GraphBuilder()
    b.types.update({X: TensorType("f32", SHAPE), WEIGHT: TensorType("f32", WIDTH), BIAS: TensorType("f32", WIDTH)})
    output = form(b)
    return Graph(tuple(b.nodes), (X, WEIGHT, BIAS), (output, *more), b.types, b.arrays)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_norm_becomes_one_node(form: Callable[[GraphBuilder], Value]) -> None:
    whole = graph_of(lambda b: b.emit("exp", form(b)))
    joined = join_norms(whole).subject
    last = {name: node for node in joined.nodes for name in node.outputs}[joined.nodes[-1].inputs[0]]
    assert last.op == "layer_norm"
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=whole.types[name].shape) for name in whole.inputs}
    (output,) = whole.outputs
    np.testing.assert_allclose(evaluate_graph(joined, feeds)[output], evaluate_graph(whole, feeds)[output], rtol=1e-6)


def test_a_normalised_value_that_is_read_elsewhere_stays() -> None:
    b = GraphBuilder()
    b.types.update({X: TensorType("f32", SHAPE), WEIGHT: TensorType("f32", WIDTH)})
    n = b.emit("normalize", X, epsilon=1e-5)
    y = b.emit("mul", n, WEIGHT)
    graph = Graph(tuple(b.nodes), (X, WEIGHT), (y, n), b.types, b.arrays)
    assert [node.op for node in join_norms(graph).subject.nodes] == ["normalize", "mul"]

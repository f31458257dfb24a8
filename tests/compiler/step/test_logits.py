"""What a loss reads in place of an output that is not its logits, where a graph holds other numbers of that value."""

from __future__ import annotations

import numpy as np

from compiler.graph import Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import LossTerm
from compiler.step.logits import logits_of
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import all_named


def test_a_whole_number_is_no_bound_of_probabilities() -> None:
    (x,) = all_named("x")
    b = GraphBuilder()
    b.types[x] = TensorType("f32", (2, 3))
    whole = [b.array_value(np.asarray(number, np.int64)) for number in (0, 1)]
    share = b.emit("sigmoid", x)
    product = b.emit("mul", share, share)
    graph = Graph(tuple(b.nodes), (x,), (product,), b.types, b.arrays)
    logits = logits_of(b, graph, product, LossTerm(kind="bce_with_logits"))
    assert logits is not None
    assert logits.source == "probabilities"
    assert not {operand for node in b.nodes for operand in node.inputs}.intersection(whole)
    numbers = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    probabilities = 1 / (1 + np.exp(-numbers.astype(np.float64))) ** 2
    written = Graph(tuple(b.nodes), (x,), (logits.value,), b.types, b.arrays)
    given = evaluate_graph(written, {x: numbers})[logits.value]
    np.testing.assert_allclose(given, np.log(probabilities / (1 - probabilities)), rtol=1e-4)

"""Recognising attention: every form that exporters write becomes one node and keeps its values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler.graph import Array, Graph, Parameter, TensorType
from compiler.passes.attention import fuse_attention
from compiler.passes.eliminate_dead import without_dead
from compiler.passes.guarded_softmax import unguard_softmax
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import all_named, named
from tests.compiler.passes.gradients import with_gradients

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 3
Q, K, V, SEEN, MASK, BIAS = all_named("q", "k", "v", "seen", "mask", "bias")
Build = Callable[[GraphBuilder], Value]


def builder_with(**shapes: tuple[int, ...]) -> GraphBuilder:
    b = GraphBuilder()
    b.types.update({named(name): TensorType("f32", shape) for name, shape in shapes.items()})
    return b


def graph_of(b: GraphBuilder, output: Value, *inputs: Value) -> Graph:
    return Graph(tuple(b.nodes), inputs, (output,), b.types, b.arrays)


def heads_first(b: GraphBuilder, name: Value) -> Value:
    return b.emit("transpose", name, perm=(0, 2, 1, 3))


def operands() -> GraphBuilder:
    return builder_with(q=(BATCH, QUERIES, HEADS, WIDTH), k=(BATCH, KEYS, HEADS, WIDTH), v=(BATCH, KEYS, HEADS, WIDTH))


def product(b: GraphBuilder) -> Value:
    return b.emit("matmul", heads_first(b, Q), heads_first(b, K), transpose_a=False, transpose_b=True)


def weighted(b: GraphBuilder, scores: Value, *, guard: bool = False) -> Value:
    weights = b.emit("softmax", scores)
    if guard:
        weights = b.emit("where", b.emit("is_nan", weights), b.constant(0.0), weights)
    return heads_first(b, b.emit("matmul", weights, heads_first(b, V), transpose_a=False, transpose_b=False))


def plain(b: GraphBuilder) -> Value:
    return weighted(b, product(b))


def scaled_operands(b: GraphBuilder) -> Value:
    q, k = b.emit("mul", heads_first(b, Q), b.constant(0.5)), b.emit("div", K, b.constant(3.0))
    across = b.emit("transpose", k, perm=(0, 2, 3, 1))
    return weighted(b, b.emit("matmul", q, across, transpose_a=False, transpose_b=False))


def guarded_mask(b: GraphBuilder) -> Value:
    b.types[SEEN] = TensorType("bool", (BATCH, 1, 1, KEYS))
    mask = b.emit("where", SEEN, b.constant(0.0), b.constant(-np.inf))
    return weighted(b, b.emit("add", b.emit("mul", product(b), b.constant(0.3)), mask), guard=True)


def causal(b: GraphBuilder) -> Value:
    lower = b.constant(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES))
    b.types[SEEN] = TensorType("bool", (BATCH, 1, 1, KEYS))
    mask = b.emit("where", b.emit("and", lower, SEEN), b.constant(0.0), b.constant(-np.inf))
    return weighted(b, b.emit("add", mask, product(b)), guard=True)


def hidden_scores(b: GraphBuilder) -> Value:
    lower = b.constant(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES))
    return weighted(b, b.emit("where", lower, product(b), b.constant(-1e9)))


LOWEST = float(np.finfo(np.float32).min)


def run_time_mask(b: GraphBuilder, *, low: float, lower: bool) -> Value:
    """0 where a key is seen and `low` elsewhere, padding and perhaps later keys."""
    b.types[SEEN] = TensorType("bool", (BATCH, 1, 1, KEYS))
    own = b.constant(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES))
    seen = b.emit("and", own, SEEN) if lower else SEEN
    return b.emit("where", seen, b.constant(0.0), b.constant(low))


def causal_by_a_number(b: GraphBuilder) -> Value:
    """As transformers' eager attention has it: a row of padding spreads over all keys, the later ones too."""
    return weighted(b, b.emit("add", product(b), run_time_mask(b, low=LOWEST, lower=True)))


def causal_twice(b: GraphBuilder) -> Value:
    """As older GPT-2: later keys are lower than padding by a whole number of that size."""
    lower = b.constant(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES))
    hidden = b.emit("where", lower, product(b), b.constant(LOWEST))
    return weighted(b, b.emit("add", hidden, run_time_mask(b, low=LOWEST, lower=True)))


def a_row_of_constants(b: GraphBuilder) -> Value:
    mask = np.where(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES), 0, LOWEST).astype(np.float32)
    mask[1] = LOWEST
    return weighted(b, b.emit("add", product(b), b.constant(mask)))


def padding_by_infinity(b: GraphBuilder) -> Value:
    b.types[SEEN] = TensorType("bool", (BATCH, 1, 1, KEYS))
    return weighted(b, b.emit("where", SEEN, product(b), b.constant(-np.inf)), guard=True)


def nothing_hidden(b: GraphBuilder) -> Value:
    return weighted(b, b.emit("add", product(b), b.constant(np.zeros((BATCH, 1, QUERIES, KEYS), np.float32))))


CASES: dict[str, tuple[Build, int, bool]] = {
    "plain": (plain, 3, False),
    "scaled operands": (scaled_operands, 3, False),
    "guarded mask": (guarded_mask, 4, False),
    "causal and padding": (causal, 4, True),
    "hidden scores": (hidden_scores, 3, True),
    "causal by a number": (causal_by_a_number, 4, False),
    "causal twice": (causal_twice, 4, True),
    "a row of constants": (a_row_of_constants, 4, False),
    "padding by infinity": (padding_by_infinity, 4, False),
    "nothing hidden": (nothing_hidden, 3, False),
}


def stopped_padding(b: GraphBuilder) -> Value:
    """A row of padding spreads evenly and passes no gradient to its scores."""
    b.types[SEEN] = TensorType("bool", (BATCH, 1, 1, KEYS))
    return weighted(b, b.emit("where", SEEN, product(b), b.constant(-1e9)))


def stopped_later_keys(b: GraphBuilder) -> Value:
    lower = b.constant(np.tril(np.ones((QUERIES, KEYS), bool), KEYS - QUERIES))
    hidden = b.emit("where", lower, product(b), b.constant(LOWEST))
    return weighted(b, b.emit("add", hidden, run_time_mask(b, low=LOWEST, lower=False)))


@pytest.mark.parametrize("build", [stopped_padding, stopped_later_keys])
def test_a_number_in_place_of_scores_that_may_weigh_something_is_left_alone(build: Build) -> None:
    b = operands()
    graph = graph_of(b, build(b), Q, K, V, SEEN)
    assert fuse_attention(graph).subject.nodes == graph.nodes


@pytest.mark.parametrize("name", CASES)
def test_a_form_becomes_one_node_with_the_same_values(name: str) -> None:
    build, count, is_causal = CASES[name]
    b = operands()
    output = build(b)
    graph = graph_of(b, output, *(value for value in (Q, K, V, SEEN) if value in b.types))
    fused = fuse_attention(without_dead(unguard_softmax(graph).subject)).subject
    (node,) = [node for node in fused.nodes if node.op == "attention"]
    assert (len(node.inputs), node.attrs["causal"]) == (count, is_causal)
    check_same(graph, fused)


def feeds_of(graph: Graph) -> dict[Value, Array]:
    rng = np.random.default_rng(3)
    feeds: dict[Value, Array] = {name: rng.normal(size=graph.types[name].shape) for name in graph.inputs}
    if SEEN in feeds:
        feeds[SEEN] = rng.random(graph.types[SEEN].shape) < 0.7
        feeds[SEEN][0] = False  # nobody sees anything in the first sample
        feeds[SEEN][1, ..., 0] = True
    return feeds


def check_same(graph: Graph, fused: Graph) -> None:
    feeds = feeds_of(graph)
    with np.errstate(invalid="ignore"):
        (want,) = outputs_of(graph, feeds)
    unguarded = with_gradients(without_dead(unguard_softmax(graph).subject), (Q, K, V))
    found = outputs_of(with_gradients(fused, (Q, K, V)), feeds)
    for mine, wanted in zip(found, [want, *outputs_of(unguarded, feeds)[1:]], strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-7)


def outputs_of(graph: Graph, feeds: dict[Value, Array]) -> list[np.ndarray]:
    values = evaluate_graph(graph, feeds)
    return [values[name] for name in graph.outputs]


def test_repeated_key_heads_are_read_once() -> None:
    groups, repeats = 2, HEADS // 2
    b = builder_with(q=(BATCH, QUERIES, HEADS, WIDTH), k=(BATCH, KEYS, groups, WIDTH), v=(BATCH, KEYS, groups, WIDTH))

    def repeated(name: Value) -> Value:
        first = b.emit("reshape", heads_first(b, name), shape=(BATCH, groups, 1, KEYS, WIDTH))
        spread = b.emit("broadcast_to", first, shape=(BATCH, groups, repeats, KEYS, WIDTH))
        return b.emit("reshape", spread, shape=(BATCH, HEADS, KEYS, WIDTH))

    scores = b.emit("matmul", heads_first(b, Q), repeated(K), transpose_a=False, transpose_b=True)
    y = b.emit("matmul", b.emit("softmax", scores), repeated(V), transpose_a=False, transpose_b=False)
    graph = graph_of(b, y, Q, K, V)
    fused = fuse_attention(graph).subject
    (node,) = [node for node in fused.nodes if node.op == "attention"]
    assert fused.types[node.inputs[1]].shape == (BATCH, KEYS, groups, WIDTH)
    check_same(graph, fused)


def test_key_heads_that_broadcast_over_groups() -> None:
    groups, shared = 2, 2
    b = builder_with(
        q=(BATCH, groups, shared, QUERIES, WIDTH), k=(BATCH, groups, 1, KEYS, WIDTH), v=(BATCH, groups, 1, KEYS, WIDTH)
    )
    scores = b.emit("matmul", Q, K, transpose_a=False, transpose_b=True)
    y = b.emit("matmul", b.emit("softmax", scores), V, transpose_a=False, transpose_b=False)
    graph = graph_of(b, y, Q, K, V)
    fused = fuse_attention(graph).subject
    assert [node.op for node in fused.nodes].count("attention") == 1
    check_same(graph, fused)


def test_a_learned_bias_on_the_scores_is_left_alone() -> None:
    b = operands()
    b.types[BIAS] = TensorType("f32", (1, HEADS, QUERIES, KEYS))
    b.arrays[BIAS] = np.zeros((1, HEADS, QUERIES, KEYS), np.float32)
    graph = graph_of(b, weighted(b, b.emit("add", product(b), BIAS)), Q, K, V)
    shape = graph.types[BIAS].shape
    learned = Parameter("bias", shape, shape, (0, 1, 2, 3), "weight", "layer")
    with_parameter = Graph(graph.nodes, graph.inputs, graph.outputs, graph.types, graph.arrays, {BIAS: learned})
    assert fuse_attention(with_parameter).subject.nodes == with_parameter.nodes


def test_weights_that_the_model_returns_are_left_alone() -> None:
    b = operands()
    weights = b.emit("softmax", product(b))
    y = b.emit("matmul", weights, heads_first(b, V), transpose_a=False, transpose_b=False)
    graph = Graph(tuple(b.nodes), (Q, K, V), (y, weights), b.types, b.arrays)
    assert fuse_attention(graph).subject.nodes == graph.nodes


def test_a_soft_mask_between_two_scalings_is_left_alone() -> None:
    b = operands()
    b.types[MASK] = TensorType("f32", (KEYS,))
    scores = b.emit("mul", b.emit("add", product(b), MASK), b.constant(0.5))
    graph = graph_of(b, weighted(b, scores), Q, K, V, MASK)
    assert fuse_attention(graph).subject.nodes == graph.nodes

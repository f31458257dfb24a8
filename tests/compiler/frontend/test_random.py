"""Random generators: the published bits, distributions, independence, and on what a draw depends."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from compiler.errors import LimitExceeded, ModelError, UnsupportedOperator
from compiler.graph import Array, Graph
from compiler.kernels.philox import philox
from tests.compiler.frontend.cases import CASES, Case
from tests.compiler.frontend.cases.case import X
from tests.compiler.frontend.onnx_graphs import feeds_for, imported, model_of, node
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import by_value

COUNT = 100_000
PUBLISHED = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
"""Known answers that its authors give beside their implementation (Random123, `kat_vectors`)."""


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_the_generator_is_the_published_one(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, np.uint64) for word in key)
    assert tuple(map(int, philox((c0, c1, c2, c3), (k0, k1)))) == words


def drawn(graph: Graph, *, seed: int = 0, step: int = 1) -> Array:
    """The first output of a graph; data inputs as `feeds_for` draws them."""
    fed = {
        value: np.asarray(seed if value.kind == "random_seed" else step)
        for value in graph.inputs
        if value.role == "hyper"
    }
    values = evaluate_graph(graph, {**by_value(graph, feeds_for(graph)), **fed})
    return values[graph.outputs[0]]


def generator(op: str, *, count: int = COUNT, **attributes: object) -> Graph:
    return imported(Case(op, (("f32", (4, count // 4)),), attributes).model(), batch=4)


def distance(sample: Array, distribution: Array) -> float:
    """Kolmogorov and Smirnov's largest distance between two distribution functions; `distribution` at the sample."""
    places = np.arange(1, sample.size + 1) / sample.size
    return float(np.abs(np.sort(distribution.reshape(-1)) - places).max())


def phi(x: Array) -> Array:
    return np.vectorize(lambda one: 0.5 * (1 + math.erf(one / math.sqrt(2))))(x)


def test_uniform_numbers_are_uniform() -> None:
    u = drawn(generator("RandomUniformLike"))
    assert u.min() >= 0
    assert u.max() < 1
    assert distance(u, u) < 1.95 / math.sqrt(COUNT)  # one in a thousand is farther off
    moments = [(u**power).mean() for power in (1, 2, 3)]
    np.testing.assert_allclose(moments, [1 / 2, 1 / 3, 1 / 4], atol=5 / math.sqrt(COUNT))
    spread = drawn(generator("RandomUniformLike", low=-2.0, high=6.0))
    np.testing.assert_allclose(spread, 8 * u - 2, atol=1e-6)


def test_normal_numbers_are_normal() -> None:
    z = drawn(generator("RandomNormalLike"))
    assert np.isfinite(z).all()
    assert distance(z, phi(z)) < 1.95 / math.sqrt(COUNT)
    np.testing.assert_allclose([(z**p).mean() for p in (1, 2, 3, 4)], [0, 1, 0, 3], atol=12 / math.sqrt(COUNT))
    assert 3.5 < np.abs(z).max() < 6
    np.testing.assert_allclose(drawn(generator("RandomNormalLike", mean=3.0, scale=0.5)), 3 + z / 2, atol=1e-6)


def test_bernoulli_follows_its_probabilities() -> None:
    made = node("Bernoulli", ["p"], ["y"])
    graph = imported(model_of([made], {"p": ("f32", ("batch", 25_000))}), batch=4)
    (p,), wanted = graph.data_inputs(), np.array([0.0, 0.25, 0.9, 1.0])
    fed = {value: np.asarray(1) for value in graph.inputs if value != p}
    values = evaluate_graph(graph, {p: np.repeat(wanted[:, None], 25_000, axis=1), **fed})
    rates = values[graph.outputs[0]].mean(axis=1)
    np.testing.assert_allclose(rates, wanted, atol=4 * 0.5 / math.sqrt(25_000))
    assert rates[0] == 0
    assert rates[3] == 1


def correlation(x: Array, y: Array) -> float:
    return abs(float(np.corrcoef(x.reshape(-1), y.reshape(-1))[0, 1]))


def test_steps_seeds_nodes_and_neighbours_are_independent() -> None:
    nodes = [node("RandomNormalLike", ["x"], [name]) for name in ("y", "z")]
    graph = imported(model_of(nodes, {"x": ("f32", ("batch", COUNT // 4))}, outputs=("y", "z")), batch=4)
    fed = {value: np.asarray(1) for value in graph.inputs if value.role == "hyper"}
    values = evaluate_graph(graph, {**by_value(graph, feeds_for(graph)), **fed})
    both = [values[output] for output in graph.outputs]
    others = [
        drawn(graph, seed=1, step=2),
        drawn(graph, seed=1, step=3),
        drawn(graph, seed=2),
        drawn(graph, seed=1 << 40),
    ]
    for x, y in itertools.combinations([*both, *others], 2):
        assert correlation(x, y) < 4 / math.sqrt(COUNT)
    flat = both[0].reshape(-1)
    for apart in (1, 2, 4, 8, 1024):
        assert correlation(flat[apart:], flat[:-apart]) < 4 / math.sqrt(COUNT)


def test_a_draw_depends_on_seed_step_and_node_alone() -> None:
    graph = generator("RandomNormalLike", count=400)
    np.testing.assert_array_equal(drawn(graph, seed=5, step=9), drawn(graph, seed=5, step=9))
    again = generator("RandomNormalLike", count=400)
    np.testing.assert_array_equal(drawn(graph, seed=5, step=9), drawn(again, seed=5, step=9))
    own = generator("RandomNormalLike", count=400, seed=11.0)
    np.testing.assert_array_equal(drawn(own, seed=5), drawn(own, seed=6))
    assert (drawn(own, step=1) != drawn(own, step=2)).mean() > 0.99
    longer = generator("RandomNormalLike", count=800)
    np.testing.assert_array_equal(drawn(longer).reshape(-1)[:400], drawn(graph).reshape(-1))


@pytest.mark.parametrize("case", [case for case in CASES if case.drawn and case.inputs], ids=lambda case: case.name)
def test_every_row_draws(case: Case) -> None:
    graph = imported(case.model())
    values = drawn(graph)
    assert values.shape == graph.types[graph.outputs[0]].shape
    assert values.dtype == bool or np.unique(values).size > 1


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_a_shape_that_is_an_attribute(op: str) -> None:
    nodes = [node(op, [], ["noise"], shape=[2, 3]), node("Add", ["x", "noise"], ["y"])]
    graph = imported(model_of(nodes, {"x": ("f32", ("batch", 3))}))
    assert np.unique(drawn(graph)).size == 6


def test_absurd_draws_are_refused() -> None:
    nodes = [
        node("RandomNormal", [], ["noise"], shape=[1 << 20, 1 << 20]),
        node("ReduceSum", ["noise"], ["s"]),
        node("Add", ["x", "s"], ["y"]),
    ]
    with pytest.raises(LimitExceeded, match="draws"):
        imported(model_of(nodes, {"x": ("f32", ("batch", 3))}, infer_shapes=False))
    with pytest.raises(ModelError, match="ONNX type 11"):
        imported(Case("Bernoulli", (X,), {"dtype": 11}).model())
    with pytest.raises(UnsupportedOperator, match="ONNX type 11"):
        imported(Case("RandomNormalLike", (X,), {"dtype": 11}).model())

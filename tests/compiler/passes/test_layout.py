"""Transposes move through reshapes that keep their axes apart, and cancel."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Graph, TensorType
from compiler.passes import CLEAN_UP, run_passes
from compiler.passes.layout import sink_transposes
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.evaluate import evaluate_graph
from tests.compiler.named import named

# (shape, first permutation, reshape, second permutation, transposes that remain)
CHAINS = {
    "patches to tokens": ((2, 4, 5, 3), (0, 3, 1, 2), (2, 3, 20), (0, 2, 1), 0),
    "heads split and merged": ((2, 3, 4, 5), (0, 2, 3, 1), (2, 4, 5, 3), (0, 3, 1, 2), 0),
    "an axis split in two": ((2, 4, 6), (0, 2, 1), (2, 3, 2, 4), (0, 3, 1, 2), 0),
    "a unit axis in front": ((4, 6), (1, 0), (1, 6, 4), (0, 2, 1), 0),
    "unit axes dropped": ((1, 4, 1, 6), (0, 3, 2, 1), (6, 4), (1, 0), 0),
    "axes that are no neighbours": ((2, 3, 4), (2, 0, 1), (8, 3), (1, 0), 2),
    "axes in the other order": ((3, 4, 5), (1, 0, 2), (12, 5), (1, 0), 2),
    "channels shuffled": ((2, 5, 7, 3, 4), (0, 4, 3, 1, 2), (2, 12, 5, 7), (0, 2, 3, 1), 1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_keeps_its_values(name: str) -> None:
    shape, first, reshape, second, left = CHAINS[name]
    b = GraphBuilder()
    x = named("x")
    b.types[x] = TensorType("f32", shape)
    moved = b.emit("reshape", b.emit("transpose", x, perm=first), shape=reshape)
    y = b.emit("exp", b.emit("transpose", moved, perm=second))
    graph = Graph(tuple(b.nodes), (x,), (y,), b.types, b.arrays)
    sunk = run_passes(graph, (sink_transposes, *CLEAN_UP))
    assert [node.op for node in sunk.nodes].count("transpose") == left
    drawn = np.random.default_rng(0).normal(size=shape)
    want = evaluate_graph(graph, {x: drawn})[y]
    np.testing.assert_array_equal(evaluate_graph(sunk, {x: drawn})[y], want)

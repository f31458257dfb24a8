"""Transposes move through reshapes that keep their axes apart, and cancel."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Graph, TensorType
from compiler.passes import CLEAN_UP, run_passes
from compiler.passes.layout import sink_transposes
from compiler.rewriting.builder import GraphBuilder
from tests.compiler.graph_interpreter import evaluate_graph
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


# operator, attributes for [N, C, H, W], further operands
ALONG: dict[str, tuple[str, dict[str, object], tuple[np.ndarray, ...]]] = {
    "lookup": ("gather", {"axis": 2}, (np.asarray([0, 3, 1, 1]),)),
    "resampling": (
        "resample",
        {"axis": 3},
        (np.asarray([[0, 1, 4], [1, 2, 0]], np.int32), np.asarray([[0.5, 1, 2], [0.25, 0, 1]], np.float32)),
    ),
    "running sum": ("cumulative_sum", {"axis": 1, "exclusive": False, "reverse": True}, ()),
    "largest": ("top_k", {"axis": 1, "k": 2, "largest": True}, ()),
    "broadcast": ("broadcast_to", {"shape": (2, 3, 4, 5)}, ()),
}


@pytest.mark.parametrize("name", ALONG)
def test_operators_along_an_axis_follow_it(name: str) -> None:
    op, attributes, operands = ALONG[name]
    b = GraphBuilder()
    x = named("x")
    b.types[x] = TensorType("f32", (2, 4, 5, 3) if name != "broadcast" else (2, 1, 5, 3))
    tables = [b.constant(operand) for operand in operands]
    made = b.emit(op, b.emit("transpose", x, perm=(0, 3, 1, 2)), *tables, **attributes)  # type: ignore[arg-type]
    y = b.emit("identity", b.emit("transpose", made, perm=(0, 2, 3, 1)))
    graph = Graph(tuple(b.nodes), (x,), (y,), b.types, b.arrays)
    sunk = run_passes(graph, (sink_transposes, *CLEAN_UP))
    assert "transpose" not in [node.op for node in sunk.nodes]
    drawn = np.random.default_rng(0).normal(size=b.types[x].shape)
    want = evaluate_graph(graph, {x: drawn})[y]
    np.testing.assert_array_equal(evaluate_graph(sunk, {x: drawn})[y], want)

"""Passes of pure algebra on random graphs: before and after mean the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.graph import Graph, Node, TensorType
from compiler.passes import CLEAN_UP, run_passes
from compiler.passes.eliminate_common import eliminate_common
from compiler.passes.narrow_gradients import narrow_gradients
from compiler.passes.simplify import simplify
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import PassResult, until_stable
from compiler.values import Value
from tests.compiler.named import named
from tests.compiler.passes.random_graphs import assert_means_the_same, graphs

MANY = settings(max_examples=150)


@given(graphs())
@MANY
def test_simplify(graph: Graph) -> None:
    assert_means_the_same(graph, simplify(graph))


@given(graphs(), st.data())
@MANY
def test_eliminate_common(graph: Graph, data: st.DataObject) -> None:
    """With some of its nodes written twice."""
    doubled = twice(graph, data.draw(st.sets(st.integers(0, max(0, len(graph.nodes) - 1)))))
    result = eliminate_common(doubled)
    assert_means_the_same(doubled, result)
    pure = [n for n in result.subject.nodes if not any(name in doubled.outputs for name in n.outputs)]
    most = Counter((n.op, n.inputs, tuple(sorted(n.attrs.items()))) for n in pure).most_common(1)
    assert not most or most[0][1] == 1, "no two equal pure nodes"


def twice(graph: Graph, which: set[int]) -> Graph:
    """The graph with copies of some nodes, that read copies; each output that has a copy is an output twice."""
    b = GraphBuilder(graph)
    nodes: list[Node] = []
    copy_of: dict[Value, Value] = {}
    for number, node in enumerate(graph.nodes):
        nodes.append(node)
        if number in which:
            copy = b.fresh()
            b.types[copy] = b.types[node.output]
            nodes.append(replace(node, inputs=tuple(copy_of.get(name, name) for name in node.inputs), outputs=(copy,)))
            copy_of[node.output] = copy
    outputs = (*graph.outputs, *(copy_of[name] for name in graph.outputs if name in copy_of))
    return replace(graph, nodes=tuple(nodes), outputs=outputs, types=b.types, next_number=b.next_number)


@given(graphs())
@MANY
def test_cleaned_up_until_nothing_changes(graph: Graph) -> None:
    cleaned = run_passes(graph, (until_stable(CLEAN_UP),))
    assert_means_the_same(graph, PassResult(cleaned, True))
    assert not simplify(cleaned).modified
    assert not eliminate_common(cleaned).modified


@st.composite
def gradients(draw: st.DrawFn) -> Graph:
    """Weight-gradients, sums of them, and slices of those along one axis or more."""
    b = GraphBuilder()
    inputs: list[Value] = []

    def operand(*shape: int) -> Value:
        name = named(f"x{len(inputs)}")
        b.types[name] = TensorType("f32", shape)
        inputs.append(name)
        return b.emit("tanh", name) if draw(st.booleans()) else name

    family = draw(st.sampled_from(("matmul", "conv2d_weight_grad", "depthwise_weight_grad")))
    b.phase = "backward"
    made = [_weight_gradient(draw, b, operand, family) for _ in range(draw(st.integers(1, 3)))]
    gradient = made[0]
    for other in made[1:]:
        gradient = b.emit("add", gradient, other)
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        bounds = [_bounds(draw, extent) for extent in b.shape(gradient)]
        if draw(st.booleans()):  # most slices cut one axis
            kept = draw(st.integers(0, len(bounds) - 1))
            bounds = [
                cut if axis == kept else (0, n)
                for axis, (cut, n) in enumerate(zip(bounds, b.shape(gradient), strict=True))
            ]
        starts, stops = (tuple(cut[side] for cut in bounds) for side in (0, 1))
        steps = tuple(draw(st.sampled_from((1, 1, 1, 1, 2))) for _ in bounds)
        outputs.append(b.emit("neg", b.emit("slice", gradient, starts=starts, stops=stops, steps=steps)))
    outputs += [gradient] * draw(st.booleans())
    return Graph(tuple(b.nodes), tuple(inputs), tuple(outputs), b.types, b.arrays)


def _bounds(draw: st.DrawFn, extent: int) -> tuple[int, int]:
    start = draw(st.integers(0, extent - 1))
    return start, draw(st.integers(start + 1, extent))


def _weight_gradient(draw: st.DrawFn, b: GraphBuilder, operand: Callable[..., Value], family: str) -> Value:
    """A gradient of a weight of 4 x 5, or of 3 x 2 x 4 (x 5) for a convolution."""
    if family == "matmul":
        ta, tb = draw(st.booleans()), draw(st.booleans())
        x = operand(*((3, 4) if ta else (4, 3)))
        d_y = operand(*((5, 3) if tb else (3, 5)))
        return b.emit("matmul", x, d_y, transpose_a=ta, transpose_b=tb)
    strides = draw(st.sampled_from(((1, 1), (2, 1))))
    attrs: dict[str, Any] = {"strides": strides, "pads": (1, 0, 1, 1), "dilations": (1, 1)}
    x, channels = operand(2, 5, 4, 4), 5 if family == "conv2d_weight_grad" else 4
    d_y = operand(2, (5 + 2 - 3) // strides[0] + 1, (4 + 1 - 2) // strides[1] + 1, channels)
    shape = (3, 2, 4, 5) if family == "conv2d_weight_grad" else (3, 2, 4)
    return b.emit(family, x, d_y, shape=shape, **attrs)


@given(gradients())
@MANY
def test_narrow_gradients(graph: Graph) -> None:
    assert_means_the_same(graph, narrow_gradients(graph))


@given(gradients())
@MANY
def test_narrowed_gradients_cleaned_up(graph: Graph) -> None:
    narrowed = run_passes(graph, (narrow_gradients, until_stable(CLEAN_UP)))
    assert_means_the_same(graph, PassResult(narrowed, True))

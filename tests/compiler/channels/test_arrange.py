"""Putting channels side by side changes no output, and each window holds the channels that were wanted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.channels.arrange import Arrangement, ChannelRequest, arrange
from compiler.channels.atoms import Atom, extent_of, factors, unite
from compiler.channels.orders import accepted, order_of
from compiler.graph import Graph, Parameter
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.verify import find_problem
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.passes.random_graphs import feeds_of, graphs

JUMPS = frozenset({"floor", "sign"})
"""Another order of a sum rounds otherwise, which these may turn into another number."""


def with_parameters(graph: Graph, values: list[Value]) -> Graph:
    """The graph with some of its inputs as parameters."""
    drawn = feeds_of(graph, seed=3)
    parameters = {
        value: Parameter(f"p{value.number}", shape, shape, tuple(range(len(shape))), "weight", "")
        for value in values
        for shape in (graph.types[value].shape,)
    }
    inputs = tuple(value for value in graph.inputs if value not in parameters)
    return replace(
        graph, inputs=inputs, parameters=parameters, arrays={**graph.arrays, **{v: drawn[v] for v in parameters}}
    )


def check(before: Graph, wanted: list[ChannelRequest], feeds: dict[Value, np.ndarray]) -> Arrangement:
    """The arrangement, once nothing is wrong with it."""
    made = arrange(before, wanted)
    after = made.graph
    assert not find_problem(after), find_problem(after)
    with np.errstate(all="ignore"):
        old, new = evaluate_graph(before, feeds), evaluate_graph(after, feeds)
    for value in before.outputs:
        np.testing.assert_allclose(new[value], old[value], rtol=1e-9, atol=1e-9)
    for value, own in after.parameters.items():
        np.testing.assert_array_equal(
            own.to_file(after.arrays[value]), before.parameters[value].to_file(before.arrays[value])
        )
    for one in wanted:
        numbers = np.arange(before.types[one.value].size).reshape(before.parameters[one.value].file_shape)
        inside, window = after.parameters[one.value].to_inside(numbers), made.windows[one.value]
        found = inside.take(range(window.start, window.start + window.size), axis=window.axis)
        expected = before.parameters[one.value].to_inside(numbers).take(one.channels, axis=one.axis)
        assert sorted(found.ravel()) == sorted(expected.ravel())
    return made


@st.composite
def _tasks(draw: st.DrawFn) -> tuple[Graph, list[ChannelRequest]]:
    graph = draw(graphs())
    assume(not any(node.op in JUMPS for node in graph.nodes))
    wide = [value for value in graph.inputs if max(graph.types[value].shape, default=1) > 1]
    assume(wide)
    values = draw(st.lists(st.sampled_from(wide), min_size=1, unique=True))
    graph = with_parameters(graph, [value for value in values if value not in graph.outputs])
    wanted = []
    for value in graph.parameters:
        shape = graph.types[value].shape
        axis = draw(st.sampled_from([axis for axis, extent in enumerate(shape) if extent > 1]))
        channels = draw(st.sets(st.integers(0, shape[axis] - 1), min_size=1, max_size=shape[axis] - 1))
        wanted.append(ChannelRequest(value, axis, tuple(sorted(channels))))
    return graph, wanted


@settings(max_examples=300)
@given(_tasks())
def test_random_graphs_mean_the_same_in_any_order(task: tuple[Graph, list[ChannelRequest]]) -> None:
    graph, wanted = task
    feeds = {value: array for value, array in feeds_of(graph).items() if value in graph.inputs}
    check(graph, wanted, feeds)


# ----------------------------------------------------------------------------------------------- what hangs together


class Net:
    """A graph that is written node by node; parameters are random."""

    def __init__(self) -> None:
        self.b = GraphBuilder()
        self.random = np.random.default_rng(1)
        self.parameters: dict[Value, Parameter] = {}
        self.inputs: list[Value] = []

    def held(self, *shape: int) -> Value:
        """A parameter."""
        value = self.b.array_value(self.random.normal(size=shape).astype(np.float32))
        axes = tuple(range(len(shape)))
        self.parameters[value] = Parameter(f"p{len(self.parameters)}", shape, shape, axes, "weight", "", len(shape) - 2)
        return value

    def given(self, *shape: int) -> Value:
        """An input."""
        value = self.held(*shape)
        del self.parameters[value]
        self.b.arrays.pop(value)
        self.inputs.append(value)
        return value

    def check(self, output: Value, **wanted: tuple[Value, int, tuple[int, ...]]) -> Arrangement:
        graph = Graph((), tuple(self.inputs), (output,), {}, {}, self.parameters)
        graph = replace(self.b.graph_of(graph), parameters=self.parameters)
        feeds = {value: self.random.normal(size=graph.types[value].shape) for value in self.inputs}
        return check(graph, [ChannelRequest(*request) for request in wanted.values()], feeds)


PRODUCT: dict[str, Any] = {"transpose_a": False, "transpose_b": False}
DENSE: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def test_what_is_read_through_one_axis_is_reordered_together() -> None:
    """x -> dense -> depth-wise -> (+ a bias, in groups) -> halves joined -> flattened."""
    n = Net()
    x = n.given(2, 5, 5, 3)
    first, deep, grouped, bias = n.held(1, 1, 3, 8), n.held(3, 3, 8), n.held(1, 1, 4, 6), n.held(8)
    y = n.b.emit("add", n.b.emit("conv2d", x, first, **DENSE), bias)
    y = n.b.emit("depthwise_conv2d", n.b.emit("relu", y), deep, **DENSE)
    y = n.b.emit("conv2d", y, grouped, **DENSE)
    y = n.b.emit("concat", y, n.b.emit("neg", y), axis=3)
    last = n.held(3 * 3 * 12, 4)
    flat = n.b.emit("reshape", n.b.emit("transpose", y, perm=(0, 3, 1, 2)), shape=(2, 108))
    made = n.check(
        n.b.emit("matmul", flat, last, **PRODUCT),
        deep=(deep, 2, (1, 3, 5, 7)),  # the same of each of two groups
        grouped=(grouped, 3, (1, 4)),  # the same of each group again
        last=(last, 0, tuple(c * 9 + p for c in (1, 4, 7, 10) for p in range(9))),
    )
    assert made.alone == ()
    assert made.graph.parameters[bias].orders, "what is added to reordered channels is reordered"
    assert made.graph.parameters[deep].parted == 2, "a range in each of the groups"


def test_a_set_across_blocks_stays_alone() -> None:
    n = Net()
    x, w, v = n.given(2, 4), n.held(4, 6), n.held(6, 4)
    y = n.b.emit("reshape", n.b.emit("matmul", x, w, **PRODUCT), shape=(2, 3, 2))
    y = n.b.emit("softmax", y)
    arrangement = n.check(
        n.b.emit("matmul", n.b.emit("reshape", y, shape=(2, 6)), v, **PRODUCT), v=(v, 0, (0, 3, 4)), w=(w, 0, (0, 2))
    )
    assert [(one.value, one.reason.split()[0]) for one in arrangement.alone] == [(v, "they"), (w, "the")]
    assert [node.op for node in arrangement.graph.nodes][:2] == ["gather", "gather"]


def test_of_sets_that_conflict_the_larger_parameter_is_a_range() -> None:
    n = Net()
    x, w = n.given(2, 4), n.held(4, 9)
    wide, narrow = n.held(9, 50), n.held(9, 3)
    hidden = n.b.emit("tanh", n.b.emit("matmul", x, w, **PRODUCT))
    total = n.b.emit("reduce_sum", n.b.emit("matmul", hidden, wide, **PRODUCT), axes=(1,), keepdims=True)
    arrangement = n.check(
        n.b.emit("add", n.b.emit("matmul", hidden, narrow, **PRODUCT), total),
        narrow=(narrow, 0, (0, 5)),
        wide=(wide, 0, (5, 7)),
    )
    assert [one.value for one in arrangement.alone] == [narrow]


def test_ranges_alone_move_nothing() -> None:
    n = Net()
    x, w, v = n.given(2, 4), n.held(4, 9), n.held(9, 3)
    arrangement = n.check(
        n.b.emit("matmul", n.b.emit("relu", n.b.emit("matmul", x, w, **PRODUCT)), v, **PRODUCT),
        v=(v, 0, (2, 3, 4)),
        w=(w, 1, (4, 5)),
    )
    assert not arrangement.alone
    assert not any(own.orders for own in arrangement.graph.parameters.values())


def test_an_operator_without_a_rule_pins() -> None:
    n = Net()
    x, w, v = n.given(2, 4), n.held(4, 9), n.held(9, 3)
    y = n.b.emit("dropout", n.b.emit("matmul", x, w, **PRODUCT), ratio=0.5, stream=1, seed=-1)
    output = n.b.emit("matmul", y, v, **PRODUCT)
    graph = replace(n.b.graph_of(Graph((), (x,), (output,), {})), parameters=n.parameters)
    arrangement = arrange(graph, [ChannelRequest(v, 0, (1, 5))])
    assert [one.value for one in arrangement.alone] == [v]


# ------------------------------------------------------------------------------------------------------------ orders


@given(st.lists(st.frozensets(st.integers(0, 8), min_size=1), max_size=5))
def test_each_accepted_set_is_a_run(wanted: list[frozenset[int]]) -> None:
    kept = accepted(wanted)
    assert not wanted or kept[0] == wanted[0]
    order = order_of(9, kept)
    assert sorted(order) == list(range(9))
    for one in kept:
        places = sorted(order.index(channel) for channel in one)
        assert places[-1] - places[0] + 1 == len(places)
    assert len(kept) == len(wanted) or any(
        not (one <= other or one >= other or one.isdisjoint(other)) for one, other in itertools.combinations(wanted, 2)
    )


@given(st.permutations([2, 3, 4]), st.permutations([2, 3, 4]), st.booleans())
def test_products_are_united_or_pinned(one: list[int], other: list[int], joined: bool) -> None:
    left, right = [Atom(extent) for extent in one], [Atom(24)] if joined else [Atom(extent) for extent in other]
    unite(left, right)
    assert extent_of(left) == extent_of(right) == 24
    same = [a is b for a, b in zip(factors(left), factors(right), strict=False)]
    assert all(same) or any(atom.pinned for atom in (*factors(left), *factors(right)))

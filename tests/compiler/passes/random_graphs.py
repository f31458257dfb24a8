"""Small random graphs of operators that the clean-up passes know rules for, and what they mean in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from hypothesis import strategies as st

from compiler.errors import CompileError
from compiler.graph import Array, Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.rewriting.passes import PassResult
from compiler.rewriting.verify import find_problem
from compiler.values import Value
from tests.compiler.graph_interpreter import evaluate_graph
from tests.compiler.named import named

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 3), (3, 2), (1, 3), (2, 1, 3), (2, 2, 3), (1, 1, 2, 3))
UNARY = ("identity", "neg", "abs", "tanh", "sigmoid", "relu", "floor", "sign", "sin")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max")
SCALARS = (0.0, -0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, math.inf)


class Grown:
    """A graph that grows by one random operator at a time."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.b = GraphBuilder()
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        for number in range(draw(st.integers(1, 3))):
            name = named(f"x{number}")
            self.b.types[name] = TensorType("f32", draw(st.sampled_from(SHAPES)))
            self.inputs.append(name)
        self.values += self.inputs

    def any_value(self) -> Value:
        """One of the values so far, the last ones more often."""
        return self.draw(st.sampled_from(self.values) | st.sampled_from(self.values[-3:]))

    def scalar(self) -> Value:
        value = np.full(self.draw(st.sampled_from(((), (1,), (1, 1)))), self.draw(st.sampled_from(SCALARS)), np.float32)
        return self.b.constant(value)

    def grow(self) -> None:
        """One more operator, unless what was drawn does not fit together."""
        x = self.any_value()
        grower = self.draw(st.sampled_from(GROWERS))
        try:
            made = grower(self, x)
        except CompileError:
            return
        if self.b.types[made].size <= 256:
            self.values.append(made)

    def graph(self) -> Graph:
        last = self.values[len(self.inputs) :] or self.inputs
        outputs = self.draw(st.lists(st.sampled_from(last), min_size=1, max_size=3, unique=True))
        return Graph(tuple(self.b.nodes), tuple(self.inputs), tuple(outputs), self.b.types, self.b.arrays)


def _unary(g: Grown, x: Value) -> Value:
    return g.b.emit(g.draw(st.sampled_from(UNARY)), x)


def _binary(g: Grown, x: Value) -> Value:
    other = g.scalar() if g.draw(st.booleans()) else g.any_value()
    operands = (x, other) if g.draw(st.booleans()) else (other, x)
    return g.b.emit(g.draw(st.sampled_from(BINARY)), *operands)


def _clip(g: Grown, x: Value) -> Value:
    low, high = g.draw(st.sampled_from(((0.0, math.inf), (0.0, 1.0), (-math.inf, 0.5), (-1.0, math.inf))))
    return g.b.emit("clip", x, low=low, high=high)


def _cast(g: Grown, x: Value) -> Value:
    return g.b.emit("cast", x, to="f32")


def _reshape(g: Grown, x: Value) -> Value:
    size = g.b.types[x].size
    shapes = [shape for shape in (*SHAPES, (size,), (1, size), (size, 1)) if math.prod(shape) == size]
    return g.b.emit("reshape", x, shape=g.draw(st.sampled_from(shapes)))


def _transpose(g: Grown, x: Value) -> Value:
    return g.b.emit("transpose", x, perm=tuple(g.draw(st.permutations(range(len(g.b.shape(x)))))))


def _broadcast(g: Grown, x: Value) -> Value:
    grown = tuple(g.draw(st.sampled_from((2, 3, 1))) if extent == 1 else extent for extent in g.b.shape(x))
    return g.b.emit("broadcast_to", x, shape=(*((2,) if g.draw(st.booleans()) else ()), *grown))


def _slice(g: Grown, x: Value) -> Value:
    starts, stops, steps = [], [], []
    for extent in g.b.shape(x):
        start = g.draw(st.integers(0, extent - 1) | st.just(0))
        starts.append(start)
        stops.append(g.draw(st.integers(start + 1, extent) | st.just(extent)))
        steps.append(g.draw(st.sampled_from((1, 1, 2))))
    return g.b.emit("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def _pad(g: Grown, x: Value) -> Value:
    before, after = (tuple(g.draw(st.integers(0, 1)) for _ in g.b.shape(x)) for _ in range(2))
    return g.b.emit("pad", x, before=before, after=after, value=g.draw(st.sampled_from((0.0, -1.5))))


def _reduce(g: Grown, x: Value) -> Value:
    axes = tuple(sorted(g.draw(st.sets(st.integers(0, max(0, len(g.b.shape(x)) - 1)), max_size=2))))
    axes = tuple(axis for axis in axes if axis < len(g.b.shape(x)))
    return g.b.emit(g.draw(st.sampled_from(REDUCTIONS)), x, axes=axes, keepdims=g.draw(st.booleans()))


def _matmul(g: Grown, x: Value) -> Value:
    a, b = g.draw(st.booleans()), g.draw(st.booleans())
    return g.b.emit("matmul", x, g.any_value(), transpose_a=a, transpose_b=b)


GROWERS: tuple[Callable[[Grown, Value], Value], ...] = (
    _unary,
    _binary,
    _binary,
    _clip,
    _cast,
    _reshape,
    _reshape,
    _transpose,
    _transpose,
    _broadcast,
    _slice,
    _pad,
    _reduce,
    _matmul,
    _matmul,
)


@st.composite
def graphs(draw: st.DrawFn, most: int = 10) -> Graph:
    """A graph of up to `most` operators on one to three inputs."""
    grown = Grown(draw)
    for _ in range(draw(st.integers(1, most))):
        grown.grow()
    return grown.graph()


def feeds_of(graph: Graph, seed: int = 0) -> dict[Value, Array]:
    """Inputs for a graph, with zeros among them."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.normal(size=graph.types[name].shape) for name in graph.inputs}
    return {name: np.asarray(np.where(rng.random(x.shape) < 0.1, 0.0, x)) for name, x in drawn.items()}


def outputs_of(graph: Graph, feeds: Mapping[Value, Array]) -> dict[Value, Array]:
    with np.errstate(all="ignore"):
        values = evaluate_graph(graph, feeds)
    return {name: values[name] for name in graph.outputs}


def assert_means_the_same(before: Graph, result: PassResult[Graph]) -> None:
    """The pass kept the outputs' names, types and values, left a valid graph, and says so if it changed nothing."""
    after = result.subject
    assert not find_problem(after), find_problem(after)
    assert after.outputs == before.outputs
    assert [after.types[name] for name in after.outputs] == [before.types[name] for name in before.outputs]
    if not result.modified:
        assert after.nodes == before.nodes, "it says that it changed nothing"
    feeds = feeds_of(before)
    wanted = outputs_of(before, feeds)
    for name, got in outputs_of(after, feeds).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-9, atol=1e-9, err_msg=name)

"""Draws inputs for an operator's examples, and runs single-operator graphs."""

from __future__ import annotations

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.graph import Array, Graph, TensorType
from compiler.ops.record import Example, Operator
from compiler.rewriting.builder import GraphBuilder
from compiler.values import Value


def draw(tensor: TensorType, kind: str, rng: np.random.Generator) -> Array:
    """An array of the given type, drawn as `Example.values` says."""
    if kind.startswith("index:"):
        return rng.integers(0, int(kind[6:]), tensor.shape).astype(ELEMENT_TYPES[tensor.dtype].numpy)
    if kind.startswith("whole:"):
        return rng.integers(-int(kind[6:]), int(kind[6:]) + 1, tensor.shape).astype(np.float64)
    if kind.startswith("bytes:"):
        return rng.integers(0, int(kind[6:]), (*tensor.shape, 4), np.uint8).view(np.int32).reshape(tensor.shape)
    if kind == "bool" or tensor.dtype == "bool":
        return rng.random(tensor.shape) < 0.5
    if tensor.dtype != "f32":
        return rng.integers(-3, 4, tensor.shape).astype(ELEMENT_TYPES[tensor.dtype].numpy)
    if kind == "positive":
        return rng.uniform(0.5, 2.0, tensor.shape)
    if kind == "inner":
        return rng.uniform(-0.9, 0.9, tensor.shape)
    if kind == "above one":
        return rng.uniform(1.1, 3.0, tensor.shape)
    if kind == "unit":
        return rng.uniform(0.0, 1.0, tensor.shape)
    if kind == "apart":
        return rng.permutation(tensor.size).reshape(tensor.shape) * 0.37 - 3.0
    return rng.normal(size=tensor.shape)


def draw_inputs(example: Example, seed: int = 0) -> list[Array]:
    """One array per input of the example, reals in float64."""
    rng = np.random.default_rng(seed)
    kinds = [*example.values, *["normal"] * len(example.inputs)]
    return [np.asarray(draw(tensor, kind, rng)) for tensor, kind in zip(example.inputs, kinds, strict=False)]


def single_node(record: Operator, example: Example) -> tuple[GraphBuilder, tuple[Value, ...], tuple[Value, ...]]:
    """A builder that holds one application of the operator: (builder, inputs, outputs)."""
    builder = GraphBuilder()
    values = tuple(builder.fresh() for _ in example.inputs)
    builder.types.update(zip(values, example.inputs, strict=True))
    outputs = record.infer(example.inputs, example.attrs)
    results = tuple(builder.fresh() for _ in outputs)
    builder.emit_many(record.name, values, outputs=results, **example.attrs)
    return builder, values, results


def as_graph(builder: GraphBuilder, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Graph:
    """The builder's nodes as a graph."""
    return Graph(tuple(builder.nodes), inputs, outputs, builder.types, builder.arrays)

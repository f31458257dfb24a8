"""Rows looked up in a table along an axis, and the gradient: rows added up where they came from.

    gather         y[j] = x[i[j]]              d_x = scatter_add(i, d_y)
    embedding      the same along axis 0, but for d_x of one row, which stands for padding and never learns
    scatter_add    y[r] = sum of u[j] where i[j] = r          d_u = gather(d_y, i)
Source: ONNX Gather, torch.nn.Embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import GatherSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    elementwise_cost,
    integer,
    ints,
)
from compiler.values import Value

_CUBE = TensorType("f32", (2, 3, 4))


def _gather_spec(table: tuple[int, ...], along: int, index: TensorType, dtype: DType, kind: str) -> GatherSpec:
    return GatherSpec(
        kind="gather" if kind == "gather" else "scatter_add",
        outer=prod(table[:along]),
        rows=table[along],
        inner=prod(table[along + 1 :]),
        count=index.size,
        index_dtype="i32" if index.dtype == "i32" else "i64",
        dtype=dtype,
    )


def rows_named(index: Array, rows: int) -> Array:
    """Positions counted from the front; one outside names the nearest row, as kernels have it."""
    wide = index.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + rows, wide), 0, rows - 1)


def _gather_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, index = inputs
    along = integer(attrs, "axis")
    return (np.take(x, rows_named(index, x.shape[along]), axis=along),)


def _gather_infer(inputs: Types, attrs: Attrs) -> Types:
    data, index = inputs
    along = integer(attrs, "axis")
    return (TensorType(data.dtype, data.shape[:along] + index.shape + data.shape[along + 1 :]),)


def _gather_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    along = integer(node.attrs, "axis")
    return (b.emit("scatter_add", node.inputs[1], d_output, axis=along, shape=b.shape(node.inputs[0])), None)


GATHER = Operator(
    name="gather",
    attributes=("axis",),
    infer=_gather_infer,
    evaluate=_gather_evaluate,
    grad=_gather_grad,
    cost=lambda inputs, outputs, attrs: Cost(0, outputs[0].size_bytes + inputs[1].size_bytes, outputs[0].size_bytes),
    lower=lambda inputs, outputs, attrs: _gather_spec(
        inputs[0].shape, integer(attrs, "axis"), inputs[1], inputs[0].dtype, "gather"
    ),
    to_onnx=lambda node, types: [OnnxNode("Gather", node.inputs, node.outputs, {"axis": integer(node.attrs, "axis")})],
    examples=(
        Example((TensorType("f32", (5, 4)), TensorType("i64", (2, 3))), {"axis": 0}, ("normal", "index:5")),
        Example((_CUBE, TensorType("i64", (5,))), {"axis": 1}, ("normal", "index:3")),
    ),
)


def _embedding_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    """Returns gradients as `gather` does, with nothing for the row that stands for padding."""
    table, index = node.inputs
    kind = b.types[index].element.numpy
    padding = b.constant(np.asarray(integer(node.attrs, "padding"), kind))
    hidden = b.emit("reshape", b.emit("equal", index, padding), shape=(*b.shape(index), 1))
    visible = b.emit("where", hidden, b.constant(0.0), d_output)
    return (b.emit("scatter_add", index, visible, axis=0, shape=b.shape(table)), None)


EMBEDDING = replace(
    GATHER,
    name="embedding",
    attributes=("padding",),
    infer=lambda inputs, attrs: _gather_infer(inputs, {"axis": 0}),
    evaluate=lambda inputs, attrs: GATHER.evaluate(inputs, {"axis": 0}),
    grad=_embedding_grad,
    lower=lambda inputs, outputs, attrs: GATHER.lower(inputs, outputs, {"axis": 0}),
    to_onnx=lambda node, types: [OnnxNode("Gather", node.inputs, node.outputs, {"axis": 0})],
    examples=(
        # The padding is no index here: finite differences know nothing of a row that does not learn.
        Example((TensorType("f32", (5, 4)), TensorType("i64", (2, 3))), {"padding": 4}, ("normal", "index:4")),
    ),
)


def _scatter_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    index, d_y = inputs
    shape, along = ints(attrs, "shape"), integer(attrs, "axis")
    result = np.zeros((shape[along], prod(shape[:along]), prod(shape[along + 1 :])), d_y.dtype)
    rows = d_y.reshape(prod(shape[:along]), index.size, prod(shape[along + 1 :])).transpose(1, 0, 2)
    np.add.at(result, rows_named(index.reshape(-1), shape[along]), rows)
    return (result.transpose(1, 0, 2).reshape(shape),)


def _scatter_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    shape, along = ints(node.attrs, "shape"), integer(node.attrs, "axis")
    outer, rows, inner = prod(shape[:along]), shape[along], prod(shape[along + 1 :])
    count = types[node.inputs[0]].size
    index = out.add("Cast", node.inputs[0], to=ELEMENT_TYPES["i64"].onnx)
    index = out.add("Expand", out.add("Reshape", index, out.ints(1, count, 1)), out.ints(outer, count, inner))
    updates = out.add("Reshape", node.inputs[1], out.ints(outer, count, inner))
    zeros = out.add("Expand", out.scalar(0.0), out.ints(outer, rows, inner))
    total = out.add("ScatterElements", zeros, index, updates, axis=1, reduction="add")
    out.add("Reshape", total, out.ints(*shape), output=node.output)
    return out.nodes


SCATTER_ADD = Operator(
    name="scatter_add",
    attributes=("axis", "shape"),
    infer=lambda inputs, attrs: (TensorType(inputs[1].dtype, ints(attrs, "shape")),),
    evaluate=_scatter_evaluate,
    grad=lambda b, node, d, wanted: (None, b.emit("gather", d, node.inputs[0], axis=integer(node.attrs, "axis"))),
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: _gather_spec(
        outputs[0].shape, integer(attrs, "axis"), inputs[0], outputs[0].dtype, "scatter_add"
    ),
    to_onnx=_scatter_onnx,
    examples=(
        Example((TensorType("i64", (2, 3)), TensorType("f32", (2, 3, 4))), {"axis": 0, "shape": (5, 4)}, ("index:5",)),
    ),
)

LOOKUPS = (GATHER, EMBEDDING, SCATTER_ADD)

"""Elements picked, and put, at positions of their own along an axis; of the index, other axes may have extent 1.

    gather_elements(x, i)          y[.. j ..] = x[.. i[j] ..]     d_x = scatter_elements_add(i, d_y)
    scatter_elements_add(i, u)     y[r] = sum of u[j] where i[j] = r            d_u = gather_elements(d_y, i)
    scatter_elements_max(x, i, u)  y[r] = max of x[r] and u[j] where i[j] = r; equal maxima share the gradient evenly
    scatter_elements_mul(x, i, u)  y[r] = x[r] and u[j] where i[j] = r, multiplied; right where factors are zero
    last_writer(i)                 y[r] = 1 + the last j where i[j] = r, else 0
Source: ONNX GatherElements, ScatterElements; gradients as of torch.scatter_reduce.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from compiler.element_types import ELEMENT_TYPES, DType
from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.movement import ElementsSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.lookup import rows_named
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    elementwise_cost,
    integer,
)
from compiler.values import Value

_X = TensorType("f32", (2, 5, 3))
_U = TensorType("f32", (2, 4, 3))
_INDEX = TensorType("i64", (2, 4, 3))
_ROWS = TensorType("i64", (1, 4, 1))
_BY_SAMPLE = TensorType("i32", (2, 4, 1))
_PLACES = "index:5"

# ------------------------------------------------------------------------------------------------------ shapes, specs


def _along(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _check(index: TensorType, picked: tuple[int, ...], axis: int) -> None:
    """Raises: ModelShapeError if the index does not stand for one position per element."""
    if len(index.shape) != len(picked) or not 0 <= axis < len(picked) or index.shape[axis] != picked[axis]:
        raise ModelShapeError(f"{index} does not name elements of {picked} along axis {axis}")
    for side in (slice(None, axis), slice(axis + 1, None)):
        if index.shape[side] != picked[side] and prod(index.shape[side]) != 1:
            raise ModelShapeError(f"{index} does not name elements of {picked} along axis {axis}")


def _spec(
    kind: Literal["gather", "add", "max", "mul", "last"],
    index: TensorType,
    picked: tuple[int, ...],
    *,
    axis: int,
    rows: int,
    dtype: DType,
) -> ElementsSpec:
    return ElementsSpec(
        kind=kind,
        outer=prod(picked[:axis]),
        rows=rows,
        inner=prod(picked[axis + 1 :]),
        count=picked[axis],
        dtype=dtype,
        index_dtype="i32" if index.dtype == "i32" else "i64",
        per_outer=index.shape[:axis] == picked[:axis],
        per_inner=index.shape[axis + 1 :] == picked[axis + 1 :],
    )


def _places(index: Array, picked: tuple[int, ...], axis: int, rows: int) -> tuple[Array, ...]:
    """A NumPy index of the element that each position names."""
    wrapped = np.broadcast_to(rows_named(index, rows), picked)
    grids = np.indices(picked, sparse=True)
    return tuple(wrapped if i == axis else grid for i, grid in enumerate(grids))


def _onnx_index(out: OnnxWriter, name: str, index: TensorType, picked: tuple[int, ...]) -> str:
    wide = out.add("Cast", name, to=ELEMENT_TYPES["i64"].onnx)
    return wide if index.shape == picked else out.add("Expand", wide, out.ints(*picked))


# ------------------------------------------------------------------------------------------------------------ picking


def _gather_infer(inputs: Types, attrs: Attrs) -> Types:
    x, index = inputs
    axis = integer(attrs, "axis")
    picked = _along(x.shape, axis, index.shape[axis] if axis < len(index.shape) else 0)
    _check(index, picked, axis)
    return (TensorType(x.dtype, picked),)


def _gather_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, index = inputs
    axis = integer(attrs, "axis")
    picked = _along(x.shape, axis, index.shape[axis])
    return (x[_places(index, picked, axis, x.shape[axis])],)


def _gather_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, index = node.inputs
    axis = integer(node.attrs, "axis")
    return (b.emit("scatter_elements_add", index, d_output, axis=axis, rows=b.shape(x)[axis]), None)


def _gather_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    index = _onnx_index(out, node.inputs[1], types[node.inputs[1]], types[node.output].shape)
    out.add("GatherElements", node.inputs[0], index, output=node.output, axis=integer(node.attrs, "axis"))
    return out.nodes


GATHER_ELEMENTS = Operator(
    name="gather_elements",
    attributes=("axis",),
    infer=_gather_infer,
    evaluate=_gather_evaluate,
    grad=_gather_grad,
    cost=lambda inputs, outputs, attrs: Cost(0, outputs[0].size_bytes + inputs[1].size_bytes, outputs[0].size_bytes),
    lower=lambda inputs, outputs, attrs: _spec(
        "gather",
        inputs[1],
        outputs[0].shape,
        axis=integer(attrs, "axis"),
        rows=inputs[0].shape[integer(attrs, "axis")],
        dtype=inputs[0].dtype,
    ),
    to_onnx=_gather_onnx,
    examples=(
        Example((_X, _INDEX), {"axis": 1}, ("normal", _PLACES)),
        Example((_X, _BY_SAMPLE), {"axis": 1}, ("normal", _PLACES)),
        Example((TensorType("f32", (3, 7)), TensorType("i64", (3, 9))), {"axis": 1}, ("normal", "index:7")),
    ),
)

# ------------------------------------------------------------------------------------------------------ putting: sums


def _add_infer(inputs: Types, attrs: Attrs) -> Types:
    index, updates = inputs
    axis = integer(attrs, "axis")
    _check(index, updates.shape, axis)
    return (TensorType(updates.dtype, _along(updates.shape, axis, integer(attrs, "rows"))),)


def _add_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    index, updates = inputs
    axis, rows = integer(attrs, "axis"), integer(attrs, "rows")
    result = np.zeros(_along(updates.shape, axis, rows), updates.dtype)
    np.add.at(result, _places(index, updates.shape, axis, rows), updates)
    return (result,)


def _scatter_onnx(out: OnnxWriter, operands: tuple[str, str, str], index: str, attributes: Mapping[str, Any]) -> None:
    start, updates, output = operands
    out.add("ScatterElements", start, index, updates, output=output, **attributes)


def _add_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    index, updates = node.inputs
    zero = out.add("Constant", value=np.zeros((), types[updates].element.numpy))
    zeros = out.add("Expand", zero, out.ints(*types[node.output].shape))
    places = _onnx_index(out, index, types[index], types[updates].shape)
    _scatter_onnx(out, (zeros, updates, node.output), places, {"axis": integer(node.attrs, "axis"), "reduction": "add"})
    return out.nodes


SCATTER_ELEMENTS_ADD = Operator(
    name="scatter_elements_add",
    attributes=("axis", "rows"),
    infer=_add_infer,
    evaluate=_add_evaluate,
    grad=lambda b, node, d, wanted: (
        None,
        b.emit("gather_elements", d, node.inputs[0], axis=integer(node.attrs, "axis")),
    ),
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: _spec(
        "add",
        inputs[0],
        inputs[1].shape,
        axis=integer(attrs, "axis"),
        rows=integer(attrs, "rows"),
        dtype=inputs[1].dtype,
    ),
    to_onnx=_add_onnx,
    examples=(
        Example((_INDEX, _U), {"axis": 1, "rows": 5}, (_PLACES,)),
        Example((_BY_SAMPLE, _U), {"axis": 1, "rows": 5}, (_PLACES,)),
    ),
)

# ------------------------------------------------------------------------------------------ putting: maxima, products


def _combine_infer(inputs: Types, attrs: Attrs) -> Types:
    x, index, updates = inputs
    axis = integer(attrs, "axis")
    _check(index, updates.shape, axis)
    if _along(updates.shape, axis, x.shape[axis]) != x.shape or updates.dtype != x.dtype:
        raise ModelShapeError(f"{updates} does not go into {x} along axis {axis}")
    return (x,)


def _combine_evaluate(function: np.ufunc) -> Any:
    def evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        x, index, updates = inputs
        axis, result = integer(attrs, "axis"), inputs[0].copy()
        function.at(result, _places(index, updates.shape, axis, x.shape[axis]), updates)
        return (result,)

    return evaluate


def _combine_onnx(reduction: str) -> Any:
    def to_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
        out = OnnxWriter(node.output)
        x, index, updates = node.inputs
        places = _onnx_index(out, index, types[index], types[updates].shape)
        attributes = {"axis": integer(node.attrs, "axis"), "reduction": reduction}
        _scatter_onnx(out, (x, updates, node.output), places, attributes)
        return out.nodes

    return to_onnx


class _Places:
    """The moves that gradients of combining scatters are written with: values moved to where they came from,
    and back.
    """

    def __init__(self, b: Emitter, node: Node) -> None:
        self.b, self.axis, self.index = b, integer(node.attrs, "axis"), node.inputs[1]
        self.rows = b.shape(node.inputs[0])[self.axis]

    def picked(self, value: Value) -> Value:
        """Returns what lies where each update goes."""
        return self.b.emit("gather_elements", value, self.index, axis=self.axis)

    def added(self, value: Value) -> Value:
        """Sums over what goes to one place."""
        return self.b.emit("scatter_elements_add", self.index, value, axis=self.axis, rows=self.rows)

    def number(self, condition: Value) -> Value:
        """1 where a condition holds, else 0."""
        return self.b.emit("where", condition, self.b.constant(1.0), self.b.constant(0.0))


def _max_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    x, _, updates = node.inputs
    places = _Places(b, node)
    of_x = places.number(b.emit("equal", x, node.output))
    of_updates = places.number(b.emit("equal", updates, places.picked(node.output)))
    share = b.emit("div", d_output, b.emit("add", of_x, places.added(of_updates)))
    return b.emit("mul", share, of_x), None, b.emit("mul", places.picked(share), of_updates)


def _mul_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    """Returns the gradients of a product: for a factor f, the product of the others, which is y / f, or what is left
    without f if only f is zero.
    """
    x, index, updates = node.inputs
    places, zero, one = _Places(b, node), b.constant(0.0), b.constant(1.0)
    zeros = [b.emit("equal", factor, zero) for factor in (x, updates)]
    safe = [b.emit("where", is_zero, one, factor) for is_zero, factor in zip(zeros, (x, updates), strict=True)]
    product = b.emit("scatter_elements_mul", safe[0], index, safe[1], axis=places.axis)
    count = b.emit("add", places.number(zeros[0]), places.added(places.number(zeros[1])))
    without = b.emit("where", b.emit("equal", count, zero), b.emit("mul", d_output, product), zero)
    only = b.emit("where", b.emit("equal", count, one), b.emit("mul", d_output, product), zero)
    d_x = b.emit("where", zeros[0], only, b.emit("div", without, safe[0]))
    d_updates = b.emit("where", zeros[1], places.picked(only), b.emit("div", places.picked(without), safe[1]))
    return d_x, None, d_updates


def _combining(name: str, function: np.ufunc, kind: Literal["max", "mul"], grad: Any, values: str) -> Operator:
    return Operator(
        name=name,
        attributes=("axis",),
        infer=_combine_infer,
        evaluate=_combine_evaluate(function),
        grad=grad,
        cost=elementwise_cost(1),
        lower=lambda inputs, outputs, attrs: _spec(
            kind,
            inputs[1],
            inputs[2].shape,
            axis=integer(attrs, "axis"),
            rows=outputs[0].shape[integer(attrs, "axis")],
            dtype=outputs[0].dtype,
        ),
        to_onnx=_combine_onnx(kind),
        examples=(
            Example((_X, _INDEX, _U), {"axis": 1}, (values, _PLACES, values)),
            Example((_X, _ROWS, _U), {"axis": 1}, (values, _PLACES, values)),
        ),
    )


SCATTER_ELEMENTS_MAX = _combining("scatter_elements_max", np.maximum, "max", _max_grad, "normal")
SCATTER_ELEMENTS_MUL = _combining("scatter_elements_mul", np.multiply, "mul", _mul_grad, "normal")

# -------------------------------------------------------------------------------------------------------- last writer


def _last_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (index,) = inputs
    axis, rows = integer(attrs, "axis"), integer(attrs, "rows")
    result = np.zeros(_along(index.shape, axis, rows), np.int64)
    order = np.indices(index.shape)[axis] + 1
    np.maximum.at(result, _places(index, index.shape, axis, rows), order)
    return (result,)


def _last_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    (index,) = node.inputs
    shape, axis = types[index].shape, integer(node.attrs, "axis")
    zero = out.add("Constant", value=np.zeros((), np.int64))
    zeros = out.add("Expand", zero, out.ints(*types[node.output].shape))
    line = np.arange(1, shape[axis] + 1).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    order = out.add("Expand", out.add("Constant", value=line), out.ints(*shape))
    places = _onnx_index(out, index, types[index], shape)
    _scatter_onnx(out, (zeros, order, node.output), places, {"axis": axis, "reduction": "max"})
    return out.nodes


LAST_WRITER = Operator(
    name="last_writer",
    attributes=("axis", "rows"),
    infer=lambda inputs, attrs: (
        TensorType("i64", _along(inputs[0].shape, integer(attrs, "axis"), integer(attrs, "rows"))),
    ),
    evaluate=_last_evaluate,
    grad=NotDifferentiable("positions are whole numbers"),
    cost=elementwise_cost(0),
    lower=lambda inputs, outputs, attrs: _spec(
        "last", inputs[0], inputs[0].shape, axis=integer(attrs, "axis"), rows=integer(attrs, "rows"), dtype="f32"
    ),
    to_onnx=_last_onnx,
    examples=(Example((_INDEX,), {"axis": 1, "rows": 5}, (_PLACES,)),),
)

ELEMENT_MOVEMENT = (GATHER_ELEMENTS, SCATTER_ELEMENTS_ADD, SCATTER_ELEMENTS_MAX, SCATTER_ELEMENTS_MUL, LAST_WRITER)

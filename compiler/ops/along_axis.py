"""Operators that resample, scan and select along an axis.

    resample(x, i, w)        y[j] = sum over t of w[t, j] x[i[t, j]]; tables of positions and weights [taps, count]
                             d_x = resample_grad(d_y, i, w), the transposed map
    cumulative_sum           y[j] = sum of x up to j        d_x = the sum from the other end
    linear_scan(a, b)        y[j] = a[j] y[j - 1] + b[j]    d_b[j] = d_y[j] + a[j + 1] d_b[j + 1]
                             d_a[j] = d_b[j] y[j - 1]
    top_k(x)                 positions of the k largest (or smallest), in order; values are picked by gather_elements
Source: ONNX Resize, CumSum, CumProd, TopK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.movement import ResampleSpec, ScanSpec, SelectSpec
from compiler.ops.emitter import Emitter, Grads
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
    flag,
    integer,
    reading_cost,
)
from compiler.values import Value

_X = TensorType("f32", (2, 5, 3))


def _along(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


# ----------------------------------------------------------------------------------------------------------- resample


def _resample_infer(inputs: Types, attrs: Attrs) -> Types:
    x, index, weight = inputs
    if index.shape != weight.shape or len(index.shape) != 2:
        raise ModelShapeError(f"tables {index} and {weight} do not fit")
    return (TensorType(x.dtype, _along(x.shape, integer(attrs, "axis"), index.shape[1])),)


def _resample_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, index, weight = inputs
    axis = integer(attrs, "axis")
    column = (-1, *(1 for _ in x.shape[axis + 1 :]))
    terms = (np.take(x, row, axis=axis) * w.reshape(column) for row, w in zip(index, weight, strict=True))
    return (np.asarray(sum(terms)).astype(x.dtype, copy=False),)


def _resample_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    d_y, index, weight = inputs
    axis, rows = integer(attrs, "axis"), integer(attrs, "rows")
    result = np.zeros((rows, *d_y.shape[:axis], *d_y.shape[axis + 1 :]), d_y.dtype)
    moved = np.moveaxis(d_y, axis, 0)
    for row, w in zip(index, weight, strict=True):
        np.add.at(result, row, moved * w.reshape(-1, *(1 for _ in moved.shape[1:])))
    return (np.moveaxis(result, 0, axis),)


def _resample_spec(x: TensorType, y: TensorType, index: TensorType, *, axis: int, is_gradient: bool) -> ResampleSpec:
    """`x` has the rows, `y` the results."""
    return ResampleSpec(
        kind="gradient" if is_gradient else "forward",
        outer=prod(x.shape[:axis]),
        rows=x.shape[axis],
        inner=prod(x.shape[axis + 1 :]),
        count=y.shape[axis],
        taps=index.shape[0],
        dtype=x.dtype,
        index_dtype="i64" if index.dtype == "i64" else "i32",
    )


def _resample_cost(inputs: Types, outputs: Types, attrs: Attrs) -> Cost:
    return Cost(
        2 * inputs[1].shape[0] * max(inputs[0].size, outputs[0].size),
        sum(tensor.size_bytes for tensor in inputs),
        outputs[0].size_bytes,
    )


def _resample_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    """Writes one lookup per tap."""
    out = OnnxWriter(node.output)
    x, index, weight = node.inputs
    axis, taps = integer(node.attrs, "axis"), types[index].shape[0]
    column = out.ints(-1, *(1 for _ in types[x].shape[axis + 1 :]))
    total = ""
    for tap in range(taps):
        picked = out.add("Gather", x, out.add("Gather", index, out.ints(tap), axis=0), axis=axis)
        row = out.add("Squeeze", picked, out.ints(axis))
        scale = out.add("Reshape", out.add("Gather", weight, out.ints(tap), axis=0), column)
        term = out.add("Mul", row, scale)
        total = out.add("Add", total, term) if total else term
    out.add("Identity", total, output=node.output)
    return out.nodes


def _resample_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    """Writes one scatter per tap."""
    out = OnnxWriter(node.output)
    d_y, index, weight = node.inputs
    shape, axis = types[d_y].shape, integer(node.attrs, "axis")
    column = (-1, *(1 for _ in shape[axis + 1 :]))
    total = out.add("Expand", out.scalar(0.0), out.ints(*types[node.output].shape))
    for tap in range(types[index].shape[0]):
        row, scale = (out.add("Gather", table, out.ints(tap), axis=0) for table in (index, weight))
        places = out.add("Expand", out.add("Reshape", row, out.ints(*column)), out.ints(*shape))
        term = out.add("Mul", d_y, out.add("Reshape", scale, out.ints(*column)))
        total = out.add("ScatterElements", total, places, term, axis=axis, reduction="add")
    out.add("Identity", total, output=node.output)
    return out.nodes


_INDEX = TensorType("i32", (2, 7))
_WEIGHT = TensorType("f32", (2, 7))

RESAMPLE = Operator(
    name="resample",
    attributes=("axis",),
    infer=_resample_infer,
    evaluate=_resample_evaluate,
    grad=lambda b, node, d, wanted: (
        b.emit(
            "resample_grad",
            d,
            *node.inputs[1:],
            axis=integer(node.attrs, "axis"),
            rows=b.shape(node.inputs[0])[integer(node.attrs, "axis")],
        ),
        None,
        None,
    ),
    cost=_resample_cost,
    lower=lambda inputs, outputs, attrs: _resample_spec(
        inputs[0], outputs[0], inputs[1], axis=integer(attrs, "axis"), is_gradient=False
    ),
    to_onnx=_resample_onnx,
    examples=(Example((_X, _INDEX, _WEIGHT), {"axis": 1}, ("normal", "index:5")),),
)

RESAMPLE_GRAD = Operator(
    name="resample_grad",
    attributes=("axis", "rows"),
    infer=lambda inputs, attrs: (
        TensorType(inputs[0].dtype, _along(inputs[0].shape, integer(attrs, "axis"), integer(attrs, "rows"))),
    ),
    evaluate=_resample_grad_evaluate,
    grad=lambda b, node, d, wanted: (
        b.emit("resample", d, *node.inputs[1:], axis=integer(node.attrs, "axis")),
        None,
        None,
    ),
    cost=_resample_cost,
    lower=lambda inputs, outputs, attrs: _resample_spec(
        outputs[0], inputs[0], inputs[1], axis=integer(attrs, "axis"), is_gradient=True
    ),
    to_onnx=_resample_grad_onnx,
    examples=(Example((TensorType("f32", (2, 7, 3)), _INDEX, _WEIGHT), {"axis": 1, "rows": 5}, ("normal", "index:5")),),
)

# -------------------------------------------------------------------------------------------------------------- scans


def _cumulative_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    axis, reverse = integer(attrs, "axis"), flag(attrs, "reverse")
    x = np.flip(inputs[0], axis) if reverse else inputs[0]
    y = np.cumsum(x, axis=axis, dtype=x.dtype)
    y = y - x if flag(attrs, "exclusive") else y
    return (np.flip(y, axis) if reverse else y,)


def _cumulative_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    axis, exclusive = integer(node.attrs, "axis"), flag(node.attrs, "exclusive")
    turned = not flag(node.attrs, "reverse")
    return (b.emit("cumulative_sum", d_output, axis=axis, exclusive=exclusive, reverse=turned),)


def _cumulative_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    axis = out.add("Constant", value=np.asarray(integer(node.attrs, "axis"), np.int64))
    flags = {name: int(flag(node.attrs, name)) for name in ("exclusive", "reverse")}
    out.add("CumSum", node.inputs[0], axis, output=node.output, **flags)
    return out.nodes


def _scan_spec(x: TensorType, attrs: Attrs, *, is_linear: bool) -> ScanSpec:
    axis = integer(attrs, "axis")
    return ScanSpec(
        kind="linear" if is_linear else "sum",
        outer=prod(x.shape[:axis]),
        rows=x.shape[axis],
        inner=prod(x.shape[axis + 1 :]),
        dtype=x.dtype,
        exclusive=not is_linear and flag(attrs, "exclusive"),
        reverse=flag(attrs, "reverse"),
    )


CUMULATIVE_SUM = Operator(
    name="cumulative_sum",
    attributes=("axis", "exclusive", "reverse"),
    infer=lambda inputs, attrs: (inputs[0],),
    evaluate=_cumulative_evaluate,
    grad=_cumulative_grad,
    cost=elementwise_cost(1),
    lower=lambda inputs, outputs, attrs: _scan_spec(inputs[0], attrs, is_linear=False),
    to_onnx=_cumulative_onnx,
    examples=tuple(
        Example((_X,), {"axis": axis, "exclusive": exclusive, "reverse": reverse})
        for axis, exclusive, reverse in ((1, False, False), (2, True, False), (0, False, True), (1, True, True))
    ),
)


def _linear_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    axis, reverse = integer(attrs, "axis"), flag(attrs, "reverse")
    a, b = (np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0) for x in inputs)
    y, running = np.empty_like(b), np.zeros_like(b[0])
    for row in range(len(b)):
        y[row] = running = a[row] * running + b[row]
    y = np.moveaxis(y, 0, axis)
    return (np.flip(y, axis) if reverse else y,)


def _shifted(b: Emitter, value: Value, axis: int, towards_end: bool) -> Value:
    """Moves every element on by one along the axis; a zero comes in."""
    shape = b.shape(value)
    start, stop = (0, shape[axis] - 1) if towards_end else (1, shape[axis])
    if stop == start:
        return b.emit("mul", value, b.constant(0.0))
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    stops = tuple(stop if i == axis else extent for i, extent in enumerate(shape))
    sliced = b.emit("slice", value, starts=starts, stops=stops, steps=(1,) * len(shape))
    before = tuple(int(i == axis and towards_end) for i in range(len(shape)))
    after = tuple(int(i == axis and not towards_end) for i in range(len(shape)))
    return b.emit("pad", sliced, before=before, after=after, value=0.0)


def _linear_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    axis, reverse = integer(node.attrs, "axis"), flag(node.attrs, "reverse")
    following = _shifted(b, node.inputs[0], axis, reverse)
    d_b = b.emit("linear_scan", following, d_output, axis=axis, reverse=not reverse)
    d_a = b.emit("mul", d_b, _shifted(b, node.output, axis, not reverse)) if wanted[0] else None
    return d_a, d_b


def _linear_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    """Steps of doubling length: after the k-th, y holds what the last 2^k rows make, and a the product of theirs."""
    out = OnnxWriter(node.output)
    axis, reverse = integer(node.attrs, "axis"), flag(node.attrs, "reverse")
    shape = types[node.output].shape
    a, y = node.inputs
    length, ends = 1, out.ints(axis)
    while length < shape[axis]:
        pads = [0] * (2 * len(shape))
        pads[axis + (len(shape) if reverse else 0)] = length
        start, stop = (length, shape[axis]) if reverse else (0, shape[axis] - length)
        before = [
            out.add("Pad", out.add("Slice", value, out.ints(start), out.ints(stop), ends), out.ints(*pads))
            for value in (a, y)
        ]
        y = out.add("Add", y, out.add("Mul", a, before[1]))
        a = out.add("Mul", a, before[0])
        length *= 2
    out.add("Identity", y, output=node.output)
    return out.nodes


LINEAR_SCAN = Operator(
    name="linear_scan",
    attributes=("axis", "reverse"),
    infer=lambda inputs, attrs: (inputs[1],),
    evaluate=_linear_evaluate,
    grad=_linear_grad,
    cost=elementwise_cost(2),
    lower=lambda inputs, outputs, attrs: _scan_spec(inputs[0], attrs, is_linear=True),
    to_onnx=_linear_onnx,
    examples=(
        Example((_X, _X), {"axis": 1, "reverse": False}),
        Example((_X, _X), {"axis": 2, "reverse": True}),
    ),
)

# ------------------------------------------------------------------------------------------------------------- select


def _top_k_infer(inputs: Types, attrs: Attrs) -> Types:
    (x,) = inputs
    axis, count = integer(attrs, "axis"), integer(attrs, "k")
    if not 1 <= count <= x.shape[axis]:
        raise ModelShapeError(f"{count} of {x.shape[axis]} elements along axis {axis} of {x}")
    return (TensorType("i64", _along(x.shape, axis, count)),)


def _top_k_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    """NumPy sorts NaN last; from the other end, equal ones keep their order if they are turned round before."""
    (x,) = inputs
    axis, count = integer(attrs, "axis"), integer(attrs, "k")
    if flag(attrs, "largest"):
        turned = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(turned, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return (np.take(order, np.arange(count), axis=axis).astype(np.int64),)


def _top_k_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    largest, axis = int(flag(node.attrs, "largest")), integer(node.attrs, "axis")
    count = out.ints(integer(node.attrs, "k"))
    _, index = out.add_pair("TopK", node.inputs[0], count, axis=axis, largest=largest, sorted=1)
    out.add("Identity", index, output=node.output)
    return out.nodes


TOP_K = Operator(
    name="top_k",
    attributes=("axis", "k", "largest"),
    infer=_top_k_infer,
    evaluate=_top_k_evaluate,
    grad=NotDifferentiable("positions are whole numbers"),
    cost=reading_cost(4),
    lower=lambda inputs, outputs, attrs: SelectSpec(
        outer=prod(inputs[0].shape[: integer(attrs, "axis")]),
        rows=inputs[0].shape[integer(attrs, "axis")],
        inner=prod(inputs[0].shape[integer(attrs, "axis") + 1 :]),
        count=integer(attrs, "k"),
        dtype=inputs[0].dtype,
        largest=flag(attrs, "largest"),
    ),
    to_onnx=_top_k_onnx,
    examples=(
        Example((_X,), {"axis": 1, "k": 2, "largest": True}),
        Example((_X,), {"axis": 2, "k": 3, "largest": False}),
    ),
)

ALONG_AXIS = (RESAMPLE, RESAMPLE_GRAD, CUMULATIVE_SUM, LINEAR_SCAN, TOP_K)

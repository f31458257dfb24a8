"""Operators that move elements without arithmetic: views, transposes, slices, padding, concatenation, gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.access import Access, axis, broadcast, identity
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select
from compiler.kernels.spec import MapSpec
from compiler.ops.broadcasting import sum_to
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Cost,
    Example,
    NamedNode,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    View,
    broadcast_shape,
    elementwise_cost,
    integer,
    ints,
    number,
)
from compiler.values import Value

_CUBE = TensorType("f32", (2, 3, 4))
_FREE = Cost(0, 0, 0)


def _copy(inputs: Types, outputs: Types, attrs: Attrs, reads: tuple[Access, ...], expr: Expr | None = None) -> MapSpec:
    return MapSpec(outputs[0].shape, reads, (identity(outputs[0]),), (expr or Ref(0),))


# ----------------------------------------------------------------------------------------------------------- reshape


def _reshape_infer(inputs: Types, attrs: Attrs) -> Types:
    shape = ints(attrs, "shape")
    if prod(shape) != inputs[0].size:
        raise ModelShapeError(f"cannot reshape {inputs[0]} to {shape}")
    return (TensorType(inputs[0].dtype, shape),)


def _reshape_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    out.add("Reshape", node.inputs[0], out.ints(*types[node.output].shape), output=node.output)
    return out.nodes


RESHAPE = Operator(
    name="reshape",
    attributes=("shape",),
    infer=_reshape_infer,
    evaluate=lambda inputs, attrs: (inputs[0].reshape(ints(attrs, "shape")),),
    grad=lambda b, node, d, wanted: (b.emit("reshape", d, shape=b.shape(node.inputs[0])),),
    cost=lambda inputs, outputs, attrs: _FREE,
    lower=lambda inputs, outputs, attrs: View(),
    to_onnx=_reshape_onnx,
    examples=(Example((_CUBE,), {"shape": (6, 4)}),),
)

# --------------------------------------------------------------------------------------------------------- transpose


def _transpose_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    perm = ints(attrs, "perm")
    index = tuple(axis(perm.index(dimension)) for dimension in range(len(perm)))
    return _copy(inputs, outputs, attrs, (Access(inputs[0], index),))


def _transpose_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    inverse = tuple(int(position) for position in np.argsort(ints(node.attrs, "perm")))
    return (b.emit("transpose", d_output, perm=inverse),)


def _transpose_infer(inputs: Types, attrs: Attrs) -> Types:
    perm = ints(attrs, "perm")
    if sorted(perm) != list(range(len(inputs[0].shape))):
        raise ModelShapeError(f"{perm} is not a permutation of the axes of {inputs[0]}")
    return (TensorType(inputs[0].dtype, tuple(inputs[0].shape[i] for i in perm)),)


TRANSPOSE = Operator(
    name="transpose",
    attributes=("perm",),
    infer=_transpose_infer,
    evaluate=lambda inputs, attrs: (np.transpose(inputs[0], ints(attrs, "perm")),),
    grad=_transpose_grad,
    cost=elementwise_cost(0),
    lower=_transpose_lower,
    to_onnx=lambda node, types: [OnnxNode("Transpose", node.inputs, node.outputs, {"perm": ints(node.attrs, "perm")})],
    examples=(Example((_CUBE,), {"perm": (2, 0, 1)}),),
)

# ------------------------------------------------------------------------------------------------------ broadcast_to


def _broadcast_infer(inputs: Types, attrs: Attrs) -> Types:
    shape = ints(attrs, "shape")
    if broadcast_shape(inputs[0].shape, shape) != shape:
        raise ModelShapeError(f"{inputs[0]} does not broadcast to {shape}")
    return (TensorType(inputs[0].dtype, shape),)


def _broadcast_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    out.add("Expand", node.inputs[0], out.ints(*types[node.output].shape), output=node.output)
    return out.nodes


BROADCAST_TO = Operator(
    name="broadcast_to",
    attributes=("shape",),
    infer=_broadcast_infer,
    evaluate=lambda inputs, attrs: (np.broadcast_to(inputs[0], ints(attrs, "shape")),),
    grad=lambda b, node, d, wanted: (sum_to(b, d, b.shape(node.inputs[0])),),
    cost=elementwise_cost(0),
    lower=lambda inputs, outputs, attrs: _copy(inputs, outputs, attrs, (broadcast(inputs[0], outputs[0].shape),)),
    to_onnx=_broadcast_onnx,
    examples=(Example((TensorType("f32", (3, 1)),), {"shape": (2, 3, 4)}),),
)

# ------------------------------------------------------------------------------------------------------------- slice


def _slice_bounds(attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return ints(attrs, "starts"), ints(attrs, "stops"), ints(attrs, "steps")


def _slice_infer(inputs: Types, attrs: Attrs) -> Types:
    starts, stops, steps = _slice_bounds(attrs)
    shape = inputs[0].shape
    if not len(starts) == len(stops) == len(steps) == len(shape):
        raise ModelShapeError(f"slice of {inputs[0]} needs one start, stop and step per axis")
    bounds = zip(starts, stops, steps, shape, strict=True)
    if not all(0 <= start < stop <= extent and step > 0 for start, stop, step, extent in bounds):
        raise ModelShapeError(f"slice {starts} to {stops} by {steps} is empty or outside {inputs[0]}")
    extents = (len(range(*bound)) for bound in zip(starts, stops, steps, strict=True))
    return (TensorType(inputs[0].dtype, tuple(extents)),)


def _slice_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    return (inputs[0][tuple(slice(*bound) for bound in zip(*_slice_bounds(attrs), strict=True))],)


def _slice_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    starts, _, steps = _slice_bounds(attrs)
    index = tuple(axis(i, scale=step, offset=start) for i, (start, step) in enumerate(zip(starts, steps, strict=True)))
    return _copy(inputs, outputs, attrs, (Access(inputs[0], index),))


def _slice_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    starts, _, steps = _slice_bounds(node.attrs)
    shape = b.shape(node.inputs[0])
    for along, (start, step) in enumerate(zip(starts, steps, strict=True)):
        if step == 1:
            continue
        have = b.shape(d_output)
        wide = (*have[:along], shape[along], *have[along + 1 :])
        index = b.constant(start + step * np.arange(have[along], dtype=np.int64))
        d_output = b.emit("scatter_add", index, d_output, axis=along, shape=wide)
    before = tuple(start if step == 1 else 0 for start, step in zip(starts, steps, strict=True))
    have = b.shape(d_output)
    after = tuple(extent - first - size for extent, first, size in zip(shape, before, have, strict=True))
    if not any((*before, *after)):
        return (d_output,)
    return (b.emit("pad", d_output, before=before, after=after, value=0.0),)


def _slice_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    starts, stops, steps = (out.ints(*bound) for bound in _slice_bounds(node.attrs))
    axes = out.ints(*range(len(types[node.output].shape)))
    out.add("Slice", node.inputs[0], starts, stops, axes, steps, output=node.output)
    return out.nodes


SLICE = Operator(
    name="slice",
    attributes=("starts", "stops", "steps"),
    infer=_slice_infer,
    evaluate=_slice_evaluate,
    grad=_slice_grad,
    cost=lambda inputs, outputs, attrs: Cost(0, outputs[0].size_bytes, outputs[0].size_bytes),
    lower=_slice_lower,
    to_onnx=_slice_onnx,
    examples=(
        Example((_CUBE,), {"starts": (0, 1, 0), "stops": (2, 3, 3), "steps": (1, 1, 1)}),
        Example((_CUBE,), {"starts": (0, 0, 1), "stops": (1, 3, 4), "steps": (1, 2, 2)}),
    ),
)


# --------------------------------------------------------------------------------------------------------------- pad


def _pad_infer(inputs: Types, attrs: Attrs) -> Types:
    before, after = ints(attrs, "before"), ints(attrs, "after")
    sides = zip(before, inputs[0].shape, after, strict=True)
    shape = tuple(first + extent + last for first, extent, last in sides)
    if min((*before, *after), default=0) < 0:
        raise ModelShapeError(f"negative padding {before}, {after}", hint="use Slice")
    return (TensorType(inputs[0].dtype, shape),)


def _pad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    widths = list(zip(ints(attrs, "before"), ints(attrs, "after"), strict=True))
    if not widths:
        return (inputs[0],)  # NumPy refuses to pad a scalar by nothing
    return (np.pad(inputs[0], widths, constant_values=number(attrs, "value")),)


def _pad_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    index = tuple(axis(i, offset=-first) for i, first in enumerate(ints(attrs, "before")))
    return _copy(inputs, outputs, attrs, (Access(inputs[0], index, number(attrs, "value")),))


def _pad_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    before, shape = ints(node.attrs, "before"), b.shape(node.inputs[0])
    stops = tuple(first + extent for first, extent in zip(before, shape, strict=True))
    return (b.emit("slice", d_output, starts=before, stops=stops, steps=(1,) * len(shape)),)


def _pad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    pads = out.ints(*ints(node.attrs, "before"), *ints(node.attrs, "after"))
    out.add("Pad", node.inputs[0], pads, out.scalar(number(node.attrs, "value")), output=node.output)
    return out.nodes


PAD = Operator(
    name="pad",
    attributes=("before", "after", "value"),
    infer=_pad_infer,
    evaluate=_pad_evaluate,
    grad=_pad_grad,
    cost=elementwise_cost(0),
    lower=_pad_lower,
    to_onnx=_pad_onnx,
    examples=(Example((_CUBE,), {"before": (0, 1, 2), "after": (1, 0, 3), "value": 0.0}),),
)

# ------------------------------------------------------------------------------------------------------------ concat


def _concat_infer(inputs: Types, attrs: Attrs) -> Types:
    along = integer(attrs, "axis")
    shapes = {tensor.shape[:along] + tensor.shape[along + 1 :] for tensor in inputs}
    if len(shapes) != 1 or not 0 <= along < len(inputs[0].shape):
        raise ModelShapeError(f"cannot concatenate {', '.join(map(str, inputs))} along axis {along}")
    shape = list(inputs[0].shape)
    shape[along] = sum(tensor.shape[along] for tensor in inputs)
    return (TensorType(inputs[0].dtype, tuple(shape)),)


def _concat_starts(shapes: Sequence[tuple[int, ...]], along: int) -> list[int]:
    return [sum(shape[along] for shape in shapes[:i]) for i in range(len(shapes))]


def _concat_lower(inputs: Types, outputs: Types, attrs: Attrs) -> MapSpec:
    along = integer(attrs, "axis")
    starts = _concat_starts([tensor.shape for tensor in inputs], along)
    reads = []
    for tensor, start in zip(inputs, starts, strict=True):
        index = tuple(axis(i, offset=-start if i == along else 0) for i in range(len(tensor.shape)))
        reads.append(Access(tensor, index, 0.0))
    expr: Expr = Ref(len(inputs) - 1)
    for i in reversed(range(len(inputs) - 1)):
        expr = Select(Binary("lt", Index(along), Const(starts[i + 1])), Ref(i), expr)
    return _copy(inputs, outputs, attrs, tuple(reads), expr)


def _concat_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    along = integer(node.attrs, "axis")
    shapes = [b.shape(operand) for operand in node.inputs]
    grads: list[Value | None] = []
    for shape, start, want in zip(shapes, _concat_starts(shapes, along), wanted, strict=True):
        if not want:
            grads.append(None)
            continue
        starts = tuple(start if i == along else 0 for i in range(len(shape)))
        stops = tuple(first + extent for first, extent in zip(starts, shape, strict=True))
        grads.append(b.emit("slice", d_output, starts=starts, stops=stops, steps=(1,) * len(shape)))
    return grads


CONCAT = Operator(
    name="concat",
    attributes=("axis",),
    infer=_concat_infer,
    evaluate=lambda inputs, attrs: (np.concatenate(list(inputs), axis=integer(attrs, "axis")),),
    grad=_concat_grad,
    cost=elementwise_cost(0),
    lower=_concat_lower,
    to_onnx=lambda node, types: [OnnxNode("Concat", node.inputs, node.outputs, {"axis": integer(node.attrs, "axis")})],
    examples=(Example((_CUBE, TensorType("f32", (2, 1, 4)), _CUBE), {"axis": 1}),),
)

MOVEMENT = (RESHAPE, TRANSPOSE, BROADCAST_TO, SLICE, PAD, CONCAT)

"""2-D pooling and its gradients, NHWC. Source: ONNX MaxPool (12) and AveragePool (19), no dilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import PoolSpec
from compiler.ops.emitter import Emitter, Grads
from compiler.ops.record import (
    Example,
    NamedNode,
    NotDifferentiable,
    OnnxNode,
    OnnxWriter,
    Operator,
    Types,
    flag,
    ints,
    reading_cost,
)
from compiler.ops.windows import TO_NCHW, TO_NHWC, output_size
from compiler.values import Value

Kind = Literal["max", "max_grad", "average", "average_grad", "max_places", "places_grad"]
WINDOW = ("kernel", "strides", "pads")
_SECOND = NotDifferentiable("second derivatives of pooling are not needed by any optimizer here")


def window_of(attrs: Attrs) -> dict[str, Any]:
    return {name: ints(attrs, name) for name in WINDOW}


def _infer(inputs: Types, attrs: Attrs) -> Types:
    n, h, w, c = inputs[0].shape
    return (TensorType(inputs[0].dtype, (n, *output_size(h, w, ints(attrs, "kernel"), attrs), c)),)


def pool_spec(kind: Kind, images: TensorType, results: TensorType, attrs: Attrs) -> PoolSpec:
    x, y = images.shape, results.shape
    kernel, strides, pads = (ints(attrs, name) for name in WINDOW)
    return PoolSpec(
        kind=kind,
        dtype=images.dtype,
        n=x[0],
        h=x[1],
        w=x[2],
        c=x[3],
        oh=y[1],
        ow=y[2],
        kernel=(kernel[0], kernel[1]),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        count_pads=flag(attrs, "count_pads") if "count_pads" in attrs else False,
    )


def taps_of(padded: Array, y: tuple[int, ...], attrs: Attrs) -> list[tuple[slice, slice]]:
    (kh, kw), (sh, sw) = ints(attrs, "kernel"), ints(attrs, "strides")
    return [
        (slice(r, r + (y[1] - 1) * sh + 1, sh), slice(s, s + (y[2] - 1) * sw + 1, sw))
        for r in range(kh)
        for s in range(kw)
    ]


def padded_images(x: Array, attrs: Attrs, fill: float) -> Array:
    top, left, bottom, right = ints(attrs, "pads")
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)


def _output_shape(x: Array, attrs: Attrs) -> tuple[int, ...]:
    return (x.shape[0], *output_size(x.shape[1], x.shape[2], ints(attrs, "kernel"), attrs), x.shape[3])


def _counts(shape: tuple[int, ...], y: tuple[int, ...], attrs: Attrs) -> Array:
    if flag(attrs, "count_pads"):
        return np.full((1, y[1], y[2], 1), float(prod(ints(attrs, "kernel"))))
    ones = padded_images(np.ones((1, shape[1], shape[2], 1)), attrs, 0.0)
    return np.asarray(sum(ones[:, rows, columns] for rows, columns in taps_of(ones, y, attrs)))


def _max_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    padded = padded_images(inputs[0], attrs, -np.inf)
    taps = taps_of(padded, _output_shape(inputs[0], attrs), attrs)
    return (np.max([padded[:, rows, columns] for rows, columns in taps], axis=0),)


def _max_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, d_y = inputs
    padded, total = padded_images(x, attrs, -np.inf), np.zeros_like(padded_images(x, attrs, 0.0))
    taps = taps_of(padded, d_y.shape, attrs)
    first = np.argmax([padded[:, rows, columns] for rows, columns in taps], axis=0)
    for tap, (rows, columns) in enumerate(taps):
        total[:, rows, columns] += np.where(first == tap, d_y, 0)
    top, left = ints(attrs, "pads")[:2]
    return (total[:, top : top + x.shape[1], left : left + x.shape[2]],)


def _average_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x = inputs[0]
    padded, y = padded_images(x, attrs, 0.0), _output_shape(x, attrs)
    total = sum(padded[:, rows, columns] for rows, columns in taps_of(padded, y, attrs))
    return ((total / _counts(x.shape, y, attrs)).astype(x.dtype),)


def _average_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    d_y, shape = inputs[0], ints(attrs, "shape")
    share = (d_y / _counts(shape, d_y.shape, attrs)).astype(d_y.dtype)
    total = padded_images(np.zeros(shape, d_y.dtype), attrs, 0.0)
    for rows, columns in taps_of(total, d_y.shape, attrs):
        total[:, rows, columns] += share
    top, left = ints(attrs, "pads")[:2]
    return (total[:, top : top + shape[1], left : left + shape[2]],)


def _max_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    return (b.emit("max_pool_grad", node.inputs[0], d_output, **window_of(node.attrs)),)


def _average_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
    shape, count = b.shape(node.inputs[0]), flag(node.attrs, "count_pads")
    return (b.emit("average_pool_grad", d_output, shape=shape, count_pads=count, **window_of(node.attrs)),)


def onnx_window(attrs: Attrs) -> dict[str, Any]:
    return {"kernel_shape": ints(attrs, "kernel"), "strides": ints(attrs, "strides"), "pads": ints(attrs, "pads")}


def _max_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    y = out.add("MaxPool", out.add("Transpose", node.inputs[0], perm=TO_NCHW), **onnx_window(node.attrs))
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _average_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    y = out.add("AveragePool", x, count_include_pad=int(flag(node.attrs, "count_pads")), **onnx_window(node.attrs))
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _max_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    # MaxPool's second output is the flat position of each maximum in the NCHW input: scatter d_y there.
    out = OnnxWriter(node.output)
    n, h, w, c = types[node.inputs[0]].shape
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    _, where = out.add_pair("MaxPool", x, **onnx_window(node.attrs))
    d_y = out.add("Transpose", node.inputs[1], perm=TO_NCHW)
    flat, places = out.add("Reshape", d_y, out.ints(-1)), out.add("Reshape", where, out.ints(-1))
    zeros = out.add("Expand", out.scalar(0.0), out.ints(n * h * w * c))
    total = out.add("ScatterElements", zeros, places, flat, axis=0, reduction="add")
    out.add("Transpose", out.add("Reshape", total, out.ints(n, c, h, w)), output=node.output, perm=TO_NHWC)
    return out.nodes


def _average_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    n, h, w, c = ints(node.attrs, "shape")
    d_y_shape = types[node.inputs[0]].shape
    kernel, strides, pads = (ints(node.attrs, name) for name in WINDOW)
    counts = _counts((n, h, w, c), d_y_shape, node.attrs).astype(np.float32)
    share = out.add("Div", node.inputs[0], out.add("Constant", value=counts))
    ones = out.add("Constant", value=np.ones((c, 1, *kernel), np.float32))
    x = out.add("Transpose", share, perm=TO_NCHW)
    wide = out.add("ConvTranspose", x, ones, group=c, strides=strides)
    reached = [(d_y_shape[1 + i] - 1) * strides[i] + kernel[i] for i in range(2)]
    grow = [max(0, extent + pads[i] - reached[i]) for i, extent in enumerate((h, w))]
    if any(grow):
        wide = out.add("Pad", wide, out.ints(0, 0, 0, 0, 0, 0, *grow), out.scalar(0.0))
    stops = out.ints(pads[0] + h, pads[1] + w)
    cropped = out.add("Slice", wide, out.ints(pads[0], pads[1]), stops, out.ints(2, 3))
    out.add("Transpose", cropped, output=node.output, perm=TO_NHWC)
    return out.nodes


_X, _Y = TensorType("f32", (2, 6, 7, 3)), TensorType("f32", (2, 3, 3, 3))
_ATTRS: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 0, 0, 0)}
_COUNTED, _UNCOUNTED = {**_ATTRS, "count_pads": True}, {**_ATTRS, "count_pads": False}

POOLING = (
    Operator(
        name="max_pool",
        attributes=WINDOW,
        infer=_infer,
        evaluate=_max_evaluate,
        grad=_max_grad,
        cost=reading_cost(1),
        lower=lambda inputs, outputs, attrs: pool_spec("max", inputs[0], outputs[0], attrs),
        to_onnx=_max_onnx,
        examples=(Example((_X,), _ATTRS, ("apart",)),),
    ),
    Operator(
        name="max_pool_grad",
        attributes=WINDOW,
        infer=lambda inputs, attrs: (inputs[0],),
        evaluate=_max_grad_evaluate,
        grad=_SECOND,
        cost=reading_cost(2),
        lower=lambda inputs, outputs, attrs: pool_spec("max_grad", inputs[0], inputs[1], attrs),
        to_onnx=_max_grad_onnx,
        examples=(Example((_X, _Y), _ATTRS, ("apart",)),),
    ),
    Operator(
        name="average_pool",
        attributes=(*WINDOW, "count_pads"),
        infer=_infer,
        evaluate=_average_evaluate,
        grad=_average_grad,
        cost=reading_cost(1),
        lower=lambda inputs, outputs, attrs: pool_spec("average", inputs[0], outputs[0], attrs),
        to_onnx=_average_onnx,
        examples=(Example((_X,), _COUNTED), Example((_X,), _UNCOUNTED)),
    ),
    Operator(
        name="average_pool_grad",
        attributes=(*WINDOW, "count_pads", "shape"),
        infer=lambda inputs, attrs: (TensorType(inputs[0].dtype, ints(attrs, "shape")),),
        evaluate=_average_grad_evaluate,
        grad=_SECOND,
        cost=reading_cost(1),
        lower=lambda inputs, outputs, attrs: pool_spec("average_grad", outputs[0], inputs[0], attrs),
        to_onnx=_average_grad_onnx,
        examples=(
            Example((_Y,), {**_COUNTED, "shape": _X.shape}),
            Example((_Y,), {**_UNCOUNTED, "shape": _X.shape}),
        ),
    ),
)

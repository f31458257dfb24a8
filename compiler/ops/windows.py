"""Parts that operators with windows over images (NHWC) share: geometry, the patches they read, gradients of what is
linear.

Source: ONNX Conv (opset 11) with NHWC operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.ops.emitter import Emitter, GradRule, Grads
from compiler.ops.record import Example, NamedNode, OnnxWriter, Types, ints
from compiler.values import Value

GEOMETRY = ("strides", "pads", "dilations")
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


def output_extent(extent: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    """Extent of a convolution's (or pool's) output along one axis."""
    return (extent + before + after - (kernel - 1) * dilation - 1) // stride + 1


def output_size(h: int, w: int, kernel: tuple[int, ...], attrs: Attrs) -> tuple[int, int]:
    """Output height and width. Raises: ModelShapeError if the window does not fit."""
    strides, pads = ints(attrs, "strides"), ints(attrs, "pads")
    dilations = ints(attrs, "dilations") if "dilations" in attrs else (1, 1)
    oh = output_extent(h, kernel[0], strides[0], pads[0], pads[2], dilations[0])
    ow = output_extent(w, kernel[1], strides[1], pads[1], pads[3], dilations[1])
    if oh < 1 or ow < 1:
        raise ModelShapeError(f"a window of {kernel} with pads {pads} does not fit an input of {h} x {w}")
    return oh, ow


def geometry(attrs: Attrs) -> dict[str, Any]:
    """The attributes that say how a window moves."""
    return {name: ints(attrs, name) for name in GEOMETRY}


def groups_of(x: tuple[int, ...], w: tuple[int, ...]) -> int:
    """Groups of a convolution: x has so many times the channels that a weight [KH, KW, C / groups, ...] sees."""
    return x[3] // w[2]


def forward_type(inputs: Types, attrs: Attrs) -> Types:
    """The type of y, from those of x and w. Raises: ModelShapeError if they do not fit."""
    x, w = inputs
    if len(x.shape) != 4 or x.shape[3] % w.shape[2] or w.shape[-1] % groups_of(x.shape, w.shape):
        raise ModelShapeError(f"convolution of {x} with weights {w}: channels do not match")
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    return (TensorType(x.dtype, (x.shape[0], oh, ow, w.shape[-1])),)


def patches_of(x: Array, oh: int, ow: int, kernel: tuple[int, ...], attrs: Attrs) -> Array:
    """A view-like array [N, OH, OW, KH, KW, C] of what each output reads."""
    (sh, sw), (top, left, bottom, right) = ints(attrs, "strides"), ints(attrs, "pads")
    dh, dw = ints(attrs, "dilations")
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    result = np.empty((x.shape[0], oh, ow, *kernel, x.shape[3]), x.dtype)
    for r in range(kernel[0]):
        for s in range(kernel[1]):
            rows, columns = slice(r * dh, r * dh + (oh - 1) * sh + 1, sh), slice(s * dw, s * dw + (ow - 1) * sw + 1, sw)
            result[:, :, :, r, s] = padded[:, rows, columns]
    return result


def scatter_patches(patches: Array, shape: tuple[int, ...], attrs: Attrs) -> Array:
    """The transpose of `patches_of`: adds every patch back where it was read."""
    (sh, sw), (top, left, bottom, right) = ints(attrs, "strides"), ints(attrs, "pads")
    dh, dw = ints(attrs, "dilations")
    n, h, w, c = shape
    _, oh, ow, kh, kw, _ = patches.shape
    padded = np.zeros((n, h + top + bottom, w + left + right, c), patches.dtype)
    for r in range(kh):
        for s in range(kw):
            rows, columns = slice(r * dh, r * dh + (oh - 1) * sh + 1, sh), slice(s * dw, s * dw + (ow - 1) * sw + 1, sw)
            padded[:, rows, columns] += patches[:, :, :, r, s]
    return padded[:, top : top + h, left : left + w]


def linear_gradients(forward: str, input_grad: str, weight_grad: str) -> tuple[GradRule, GradRule, GradRule]:
    """The gradients of a family's three operators: each is linear in both operands, the other two are its transposes.

    y = forward(x, w), d_x = input_grad(d_y, w), d_w = weight_grad(x, d_y): whatever one of them computes, its gradient
    by an operand is the operator of the family that computes that operand.
    """

    def to_x(b: Emitter, node: Node, y: Value, w: Value, x: Value) -> Value:
        return b.emit(input_grad, y, w, shape=b.shape(x), **geometry(node.attrs))

    def to_w(b: Emitter, node: Node, x: Value, y: Value, w: Value) -> Value:
        return b.emit(weight_grad, x, y, shape=b.shape(w), **geometry(node.attrs))

    def to_y(b: Emitter, node: Node, x: Value, w: Value) -> Value:
        return b.emit(forward, x, w, **geometry(node.attrs))

    def of_forward(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        x, w = node.inputs
        d_x = to_x(b, node, d_output, w, x) if wanted[0] else None
        return (d_x, to_w(b, node, x, d_output, w) if wanted[1] else None)

    def of_input_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        d_y, w = node.inputs
        d_d_y = to_y(b, node, d_output, w) if wanted[0] else None
        return (d_d_y, to_w(b, node, d_output, d_y, w) if wanted[1] else None)

    def of_weight_grad(b: Emitter, node: Node, d_output: Value, wanted: tuple[bool, ...]) -> Grads:
        x, d_y = node.inputs
        d_x = to_x(b, node, d_y, d_output, x) if wanted[0] else None
        return (d_x, to_y(b, node, x, d_output) if wanted[1] else None)

    return of_forward, of_input_grad, of_weight_grad


def _output_padding(x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: Attrs) -> tuple[int, int]:
    """Rows and columns at the end of x that no window reached."""
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    rests = []
    for i in range(2):
        reached = (y[1 + i] - 1) * strides[i] + (w[i] - 1) * dilations[i] + 1
        rests.append(x[1 + i] + pads[i] + pads[2 + i] - reached)
    return rests[0], rests[1]


def transposed_onnx(
    out: OnnxWriter, d_y: str, w: str, node: NamedNode, types: Mapping[str, TensorType], group: int
) -> None:
    d_x_shape, w_shape, d_y_shape = ints(node.attrs, "shape"), types[node.inputs[1]].shape, types[node.inputs[0]].shape
    rest = _output_padding(d_x_shape, w_shape, d_y_shape, node.attrs)
    # ONNX limits output_padding to below the stride; pads that crop less at the end say the same without the limit.
    top, left, bottom, right = ints(node.attrs, "pads")
    attributes: dict[str, Any] = {**geometry(node.attrs), "pads": (top, left, 0, 0), "group": group}
    wide = out.add("ConvTranspose", d_y, w, **attributes)
    have = (d_x_shape[1] + bottom - rest[0], d_x_shape[2] + right - rest[1])
    grow = tuple(max(0, want - got) for want, got in zip(d_x_shape[1:3], have, strict=True))
    if any(grow):
        wide = out.add("Pad", wide, out.ints(0, 0, 0, 0, 0, 0, *grow), out.scalar(0.0))
    stops = out.ints(d_x_shape[1], d_x_shape[2])
    cropped = out.add("Slice", wide, out.ints(0, 0), stops, out.ints(2, 3))
    out.add("Transpose", cropped, output=node.output, perm=TO_NHWC)


def swapped_geometry(node: NamedNode) -> dict[str, Any]:
    """A weight-gradient is a convolution whose window is d_y: strides and dilations change places."""
    return {
        "strides": ints(node.attrs, "dilations"),
        "dilations": ints(node.attrs, "strides"),
        "pads": ints(node.attrs, "pads"),
    }


PLAIN = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
STRIDED = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
DILATED = {"strides": (1, 2), "pads": (2, 2, 2, 2), "dilations": (2, 1)}
POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def _types(*shapes: tuple[int, ...]) -> Types:
    return tuple(TensorType("f32", shape) for shape in shapes)


def examples_of(
    cases: Sequence[tuple[tuple[int, ...], tuple[int, ...], dict[str, tuple[int, ...]]]], kind: str
) -> tuple[Example, ...]:
    """Examples of one of a family's three operators, from shapes of x and w."""
    examples = []
    for x, w, attrs in cases:
        y = forward_type(_types(x, w), attrs)[0].shape
        if kind == "forward":
            examples.append(Example(_types(x, w), attrs))
        elif kind == "input_grad":
            examples.append(Example(_types(y, w), {**attrs, "shape": x}))
        else:
            examples.append(Example(_types(x, y), {**attrs, "shape": w}))
    return tuple(examples)


def given_shape(inputs: Types, attrs: Attrs) -> Types:
    """The type of a gradient, whose shape is an attribute."""
    return (TensorType(inputs[0].dtype, ints(attrs, "shape")),)

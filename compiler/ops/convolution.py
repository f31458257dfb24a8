"""2-D convolutions, dense and depth-wise, with their two gradients. Activations are NHWC.

Forward:  y[n,p,q,k] = sum_{r,s,c} x[n, p*sh + r*dh - top, q*sw + s*dw - left, c] * w[r,s,c,k]   (zero outside x)
Backward: d_x[n,i,j,c] = sum over (r,s,k) of d_y * w at the outputs that read x[n,i,j,c]
          d_w[r,s,c,k] = sum over (n,p,q) of x * d_y at the input that tap (r,s) reads
The depth-wise family has one filter per channel: w[r,s,c], no k.
Source: ONNX Conv (opset 11) with NHWC operands; gradients by transposition of the linear map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.errors import ModelShapeError
from compiler.graph import Array, Attrs, Node, TensorType
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MatmulSpec
from compiler.ops.emitter import Emitter, GradRule, Grads
from compiler.ops.record import Cost, Example, NamedNode, OnnxNode, OnnxWriter, Operator, Types, ints
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


def _geometry(attrs: Attrs) -> dict[str, Any]:
    return {name: ints(attrs, name) for name in GEOMETRY}


def _forward_infer(inputs: Types, attrs: Attrs) -> Types:
    x, w = inputs
    if len(x.shape) != 4 or x.shape[3] != w.shape[2]:
        raise ModelShapeError(f"convolution of {x} with weights {w}: channels do not match")
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    return (TensorType(x.dtype, (x.shape[0], oh, ow, w.shape[-1])),)


def _patches(x: Array, oh: int, ow: int, kernel: tuple[int, ...], attrs: Attrs) -> Array:
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


def _scatter_patches(patches: Array, shape: tuple[int, ...], attrs: Attrs) -> Array:
    """The transpose of `_patches`: adds every patch back where it was read."""
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


def _gradients(forward: str, input_grad: str, weight_grad: str) -> tuple[GradRule, GradRule, GradRule]:
    """The gradients of a family's three operators: each is linear in both operands, the other two are its transposes.

    y = forward(x, w), d_x = input_grad(d_y, w), d_w = weight_grad(x, d_y): whatever one of them computes, its gradient
    by an operand is the operator of the family that computes that operand.
    """

    def to_x(b: Emitter, node: Node, y: Value, w: Value, x: Value) -> Value:
        return b.emit(input_grad, y, w, shape=b.shape(x), **_geometry(node.attrs))

    def to_w(b: Emitter, node: Node, x: Value, y: Value, w: Value) -> Value:
        return b.emit(weight_grad, x, y, shape=b.shape(w), **_geometry(node.attrs))

    def to_y(b: Emitter, node: Node, x: Value, w: Value) -> Value:
        return b.emit(forward, x, w, **_geometry(node.attrs))

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


_DENSE = _gradients("conv2d", "conv2d_input_grad", "conv2d_weight_grad")
_DEPTHWISE = _gradients("depthwise_conv2d", "depthwise_input_grad", "depthwise_weight_grad")


# ------------------------------------------------------------------------------------------------------------- dense


def _conv_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, w = inputs
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    return (np.tensordot(_patches(x, oh, ow, w.shape[:2], attrs), w, axes=((3, 4, 5), (0, 1, 2))),)


def _spec(kind: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: Attrs) -> ConvSpec | MatmulSpec:
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    if w[:2] == (1, 1) and strides == (1, 1) and not any(pads):
        return _pointwise(kind, x[0] * x[1] * x[2], x[3], w[3])
    return ConvSpec(
        kind="forward" if kind == "forward" else "input_grad" if kind == "input_grad" else "weight_grad",
        n=x[0], h=x[1], w=x[2], c=x[3], k=y[3], oh=y[1], ow=y[2],
        kernel=(w[0], w[1]), strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]), dilations=(dilations[0], dilations[1]),
    )  # fmt: skip


def _pointwise(kind: str, pixels: int, c: int, k: int) -> MatmulSpec:
    """A 1x1 convolution is a matrix product over pixels."""
    if kind == "forward":
        return MatmulSpec(1, pixels, k, c, a_batched=False, b_batched=False)
    if kind == "input_grad":
        return MatmulSpec(1, pixels, c, k, b_transposed=True, a_batched=False, b_batched=False)
    return MatmulSpec(1, c, k, pixels, a_transposed=True, a_batched=False, b_batched=False)


def _conv_cost(x: TensorType, w: TensorType, y: TensorType, written: TensorType) -> Cost:
    taps = w.shape[0] * w.shape[1] * w.shape[2]
    total = x.size_bytes + w.size_bytes + y.size_bytes
    return Cost(2 * y.size * taps, total - written.size_bytes, written.size_bytes)


def _conv_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = out.add("Transpose", node.inputs[1], perm=(3, 2, 0, 1))
    y = out.add("Conv", x, w, **_geometry(node.attrs))
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _output_padding(x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: Attrs) -> tuple[int, int]:
    """Rows and columns at the end of x that no window reached."""
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    rests = []
    for i in range(2):
        reached = (y[1 + i] - 1) * strides[i] + (w[i] - 1) * dilations[i] + 1
        rests.append(x[1 + i] + pads[i] + pads[2 + i] - reached)
    return rests[0], rests[1]


def _transposed_conv(
    out: OnnxWriter, d_y: str, w: str, node: NamedNode, types: Mapping[str, TensorType], group: int
) -> None:
    d_x_shape, w_shape, d_y_shape = ints(node.attrs, "shape"), types[node.inputs[1]].shape, types[node.inputs[0]].shape
    rest = _output_padding(d_x_shape, w_shape, d_y_shape, node.attrs)
    # ONNX limits output_padding to below the stride; pads that crop less at the end say the same without the limit.
    top, left, bottom, right = ints(node.attrs, "pads")
    attributes: dict[str, Any] = {**_geometry(node.attrs), "pads": (top, left, 0, 0), "group": group}
    wide = out.add("ConvTranspose", d_y, w, **attributes)
    have = (d_x_shape[1] + bottom - rest[0], d_x_shape[2] + right - rest[1])
    grow = tuple(max(0, want - got) for want, got in zip(d_x_shape[1:3], have, strict=True))
    if any(grow):
        wide = out.add("Pad", wide, out.ints(0, 0, 0, 0, 0, 0, *grow), out.scalar(0.0))
    stops = out.ints(d_x_shape[1], d_x_shape[2])
    cropped = out.add("Slice", wide, out.ints(0, 0), stops, out.ints(2, 3))
    out.add("Transpose", cropped, output=node.output, perm=TO_NHWC)


def _conv_input_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    d_y = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = out.add("Transpose", node.inputs[1], perm=(3, 2, 0, 1))
    _transposed_conv(out, d_y, w, node, types, 1)
    return out.nodes


def _swapped_geometry(node: NamedNode) -> dict[str, Any]:
    """A weight-gradient is a convolution whose window is d_y: strides and dilations change places."""
    return {
        "strides": ints(node.attrs, "dilations"),
        "dilations": ints(node.attrs, "strides"),
        "pads": ints(node.attrs, "pads"),
    }


def _conv_weight_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    kh, kw = ints(node.attrs, "shape")[:2]
    x = out.add("Transpose", node.inputs[0], perm=(3, 0, 1, 2))
    d_y = out.add("Transpose", node.inputs[1], perm=(3, 0, 1, 2))
    wide = out.add("Conv", x, d_y, **_swapped_geometry(node))
    cropped = out.add("Slice", wide, out.ints(0, 0), out.ints(kh, kw), out.ints(2, 3))
    out.add("Transpose", cropped, output=node.output, perm=(2, 3, 0, 1))
    return out.nodes


_PLAIN = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
_STRIDED = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
_DILATED = {"strides": (1, 2), "pads": (2, 2, 2, 2), "dilations": (2, 1)}
_POINT = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def _types(*shapes: tuple[int, ...]) -> Types:
    return tuple(TensorType("f32", shape) for shape in shapes)


_DENSE_CASES = (
    ((2, 5, 6, 3), (3, 3, 3, 4), _PLAIN),
    ((2, 6, 7, 3), (3, 3, 3, 4), _STRIDED),
    ((1, 7, 8, 2), (3, 3, 2, 3), _DILATED),
    ((2, 4, 5, 3), (1, 1, 3, 4), _POINT),
    ((1, 5, 5, 2), (1, 1, 2, 3), {**_POINT, "strides": (2, 2)}),
)
_DEPTHWISE_CASES = (
    ((2, 5, 6, 3), (3, 3, 3), _PLAIN),
    ((2, 6, 7, 4), (3, 3, 4), _STRIDED),
    ((1, 7, 8, 2), (3, 3, 2), _DILATED),
)


def _examples(
    cases: Sequence[tuple[tuple[int, ...], tuple[int, ...], dict[str, tuple[int, ...]]]], kind: str
) -> tuple[Example, ...]:
    examples = []
    for x, w, attrs in cases:
        y = _forward_infer(_types(x, w), attrs)[0].shape
        if kind == "forward":
            examples.append(Example(_types(x, w), attrs))
        elif kind == "input_grad":
            examples.append(Example(_types(y, w), {**attrs, "shape": x}))
        else:
            examples.append(Example(_types(x, y), {**attrs, "shape": w}))
    return tuple(examples)


def _given_shape(inputs: Types, attrs: Attrs) -> Types:
    return (TensorType(inputs[0].dtype, ints(attrs, "shape")),)


CONV2D = Operator(
    name="conv2d",
    attributes=GEOMETRY,
    infer=_forward_infer,
    evaluate=_conv_evaluate,
    grad=_DENSE[0],
    cost=lambda inputs, outputs, attrs: _conv_cost(inputs[0], inputs[1], outputs[0], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec("forward", inputs[0].shape, inputs[1].shape, outputs[0].shape, attrs),
    to_onnx=_conv_onnx,
    examples=_examples(_DENSE_CASES, "forward"),
)

CONV2D_INPUT_GRAD = Operator(
    name="conv2d_input_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=_given_shape,
    evaluate=lambda inputs, attrs: (
        _scatter_patches(np.tensordot(inputs[0], inputs[1], axes=((3,), (3,))), ints(attrs, "shape"), attrs),
    ),
    grad=_DENSE[1],
    cost=lambda inputs, outputs, attrs: _conv_cost(outputs[0], inputs[1], inputs[0], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec("input_grad", outputs[0].shape, inputs[1].shape, inputs[0].shape, attrs),
    to_onnx=_conv_input_grad_onnx,
    examples=_examples(_DENSE_CASES, "input_grad"),
)


def _conv_weight_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, d_y = inputs
    patches = _patches(x, d_y.shape[1], d_y.shape[2], ints(attrs, "shape")[:2], attrs)
    return (np.tensordot(patches, d_y, axes=((0, 1, 2), (0, 1, 2))),)


CONV2D_WEIGHT_GRAD = Operator(
    name="conv2d_weight_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=_given_shape,
    evaluate=_conv_weight_grad_evaluate,
    grad=_DENSE[2],
    cost=lambda inputs, outputs, attrs: _conv_cost(inputs[0], outputs[0], inputs[1], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec(
        "weight_grad", inputs[0].shape, outputs[0].shape, inputs[1].shape, attrs
    ),
    to_onnx=_conv_weight_grad_onnx,
    examples=_examples(_DENSE_CASES, "weight_grad"),
)

# -------------------------------------------------------------------------------------------------------- depth-wise


def _depthwise_cost(w: TensorType, y: TensorType, inputs: Types, outputs: Types) -> Cost:
    return Cost(
        2 * y.size * w.shape[0] * w.shape[1], sum(tensor.size_bytes for tensor in inputs), outputs[0].size_bytes
    )


def _depthwise_spec(
    kind: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: Attrs
) -> DepthwiseSpec:
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    return DepthwiseSpec(
        kind="forward" if kind == "forward" else "input_grad" if kind == "input_grad" else "weight_grad",
        n=x[0], h=x[1], w=x[2], c=x[3], oh=y[1], ow=y[2],
        kernel=(w[0], w[1]), strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]), dilations=(dilations[0], dilations[1]),
    )  # fmt: skip


def _depthwise_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, w = inputs
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    return (np.einsum("npqrsc,rsc->npqc", _patches(x, oh, ow, w.shape[:2], attrs), w),)


def _depthwise_weight_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, d_y = inputs
    patches = _patches(x, d_y.shape[1], d_y.shape[2], ints(attrs, "shape")[:2], attrs)
    return (np.einsum("npqrsc,npqc->rsc", patches, d_y),)


def _depthwise_weight_nchw(out: OnnxWriter, w: str, shape: tuple[int, ...]) -> str:
    kh, kw, c = shape
    return out.add("Reshape", out.add("Transpose", w, perm=(2, 0, 1)), out.ints(c, 1, kh, kw))


def _depthwise_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    shape = types[node.inputs[1]].shape
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = _depthwise_weight_nchw(out, node.inputs[1], shape)
    y = out.add("Conv", x, w, group=shape[2], **_geometry(node.attrs))
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _depthwise_input_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    shape = types[node.inputs[1]].shape
    d_y = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    _transposed_conv(out, d_y, _depthwise_weight_nchw(out, node.inputs[1], shape), node, types, shape[2])
    return out.nodes


def _depthwise_weight_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    # One group per (sample, channel): each sample's window is its own d_y; then samples are summed.
    out = OnnxWriter(node.output)
    (n, h, w, c), (_, oh, ow, _) = types[node.inputs[0]].shape, types[node.inputs[1]].shape
    kh, kw, _ = ints(node.attrs, "shape")
    x = out.add("Reshape", out.add("Transpose", node.inputs[0], perm=TO_NCHW), out.ints(1, n * c, h, w))
    d_y = out.add("Reshape", out.add("Transpose", node.inputs[1], perm=TO_NCHW), out.ints(n * c, 1, oh, ow))
    wide = out.add("Conv", x, d_y, group=n * c, **_swapped_geometry(node))
    cropped = out.add("Slice", wide, out.ints(0, 0), out.ints(kh, kw), out.ints(2, 3))
    split = out.add("Reshape", cropped, out.ints(n, c, kh, kw))
    total = out.add("ReduceSum", split, out.ints(0), keepdims=0)
    out.add("Transpose", total, output=node.output, perm=(1, 2, 0))
    return out.nodes


DEPTHWISE = Operator(
    name="depthwise_conv2d",
    attributes=GEOMETRY,
    infer=_forward_infer,
    evaluate=_depthwise_evaluate,
    grad=_DEPTHWISE[0],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(inputs[1], outputs[0], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec(
        "forward", inputs[0].shape, inputs[1].shape, outputs[0].shape, attrs
    ),
    to_onnx=_depthwise_onnx,
    examples=_examples(_DEPTHWISE_CASES, "forward"),
)

DEPTHWISE_INPUT_GRAD = Operator(
    name="depthwise_input_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=_given_shape,
    evaluate=lambda inputs, attrs: (
        _scatter_patches(inputs[0][:, :, :, None, None, :] * inputs[1][None, None, None], ints(attrs, "shape"), attrs),
    ),
    grad=_DEPTHWISE[1],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(inputs[1], inputs[0], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec(
        "input_grad", outputs[0].shape, inputs[1].shape, inputs[0].shape, attrs
    ),
    to_onnx=_depthwise_input_grad_onnx,
    examples=_examples(_DEPTHWISE_CASES, "input_grad"),
)

DEPTHWISE_WEIGHT_GRAD = Operator(
    name="depthwise_weight_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=_given_shape,
    evaluate=_depthwise_weight_grad_evaluate,
    grad=_DEPTHWISE[2],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(outputs[0], inputs[1], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec(
        "weight_grad", inputs[0].shape, outputs[0].shape, inputs[1].shape, attrs
    ),
    to_onnx=_depthwise_weight_grad_onnx,
    examples=_examples(_DEPTHWISE_CASES, "weight_grad"),
)

CONVOLUTION = (
    CONV2D,
    CONV2D_INPUT_GRAD,
    CONV2D_WEIGHT_GRAD,
    DEPTHWISE,
    DEPTHWISE_INPUT_GRAD,
    DEPTHWISE_WEIGHT_GRAD,
)

"""Depth-wise 2-D convolution with its two gradients: one filter per channel, w[r,s,c]. Activations are NHWC.

As `compiler.ops.convolution`, with k = c and no sum over channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.spec import DepthwiseSpec
from compiler.ops.record import Cost, NamedNode, OnnxNode, OnnxWriter, Operator, Types, ints
from compiler.ops.windows import (
    DILATED,
    GEOMETRY,
    PLAIN,
    STRIDED,
    TO_NCHW,
    TO_NHWC,
    examples_of,
    forward_type,
    geometry,
    given_shape,
    linear_gradients,
    output_size,
    patches_of,
    scatter_patches,
    swapped_geometry,
    transposed_onnx,
)

_DEPTHWISE = linear_gradients("depthwise_conv2d", "depthwise_input_grad", "depthwise_weight_grad")
_DEPTHWISE_CASES = (
    ((2, 5, 6, 3), (3, 3, 3), PLAIN),
    ((2, 6, 7, 4), (3, 3, 4), STRIDED),
    ((1, 7, 8, 2), (3, 3, 2), DILATED),
)


def _depthwise_cost(w: TensorType, y: TensorType, inputs: Types, outputs: Types) -> Cost:
    return Cost(
        2 * y.size * w.shape[0] * w.shape[1], sum(tensor.size_bytes for tensor in inputs), outputs[0].size_bytes
    )


def _depthwise_spec(
    kind: str, images: TensorType, weights: TensorType, results: TensorType, attrs: Attrs
) -> DepthwiseSpec:
    x, w, y = images.shape, weights.shape, results.shape
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    return DepthwiseSpec(
        kind="forward" if kind == "forward" else "input_grad" if kind == "input_grad" else "weight_grad",
        dtype=images.dtype,
        n=x[0],
        h=x[1],
        w=x[2],
        c=x[3],
        oh=y[1],
        ow=y[2],
        kernel=(w[0], w[1]),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        dilations=(dilations[0], dilations[1]),
    )


def _depthwise_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, w = inputs
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    return (np.einsum("npqrsc,rsc->npqc", patches_of(x, oh, ow, w.shape[:2], attrs), w),)


def _depthwise_weight_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, d_y = inputs
    patches = patches_of(x, d_y.shape[1], d_y.shape[2], ints(attrs, "shape")[:2], attrs)
    return (np.einsum("npqrsc,npqc->rsc", patches, d_y),)


def _depthwise_weight_nchw(out: OnnxWriter, w: str, shape: tuple[int, ...]) -> str:
    kh, kw, c = shape
    return out.add("Reshape", out.add("Transpose", w, perm=(2, 0, 1)), out.ints(c, 1, kh, kw))


def _depthwise_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    shape = types[node.inputs[1]].shape
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = _depthwise_weight_nchw(out, node.inputs[1], shape)
    y = out.add("Conv", x, w, group=shape[2], **geometry(node.attrs))
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _depthwise_input_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    shape = types[node.inputs[1]].shape
    d_y = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    transposed_onnx(out, d_y, _depthwise_weight_nchw(out, node.inputs[1], shape), node, types, shape[2])
    return out.nodes


def _depthwise_weight_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    # One group per (sample, channel): each sample's window is its own d_y; then samples are summed.
    out = OnnxWriter(node.output)
    (n, h, w, c), (_, oh, ow, _) = types[node.inputs[0]].shape, types[node.inputs[1]].shape
    kh, kw, _ = ints(node.attrs, "shape")
    x = out.add("Reshape", out.add("Transpose", node.inputs[0], perm=TO_NCHW), out.ints(1, n * c, h, w))
    d_y = out.add("Reshape", out.add("Transpose", node.inputs[1], perm=TO_NCHW), out.ints(n * c, 1, oh, ow))
    wide = out.add("Conv", x, d_y, group=n * c, **swapped_geometry(node))
    cropped = out.add("Slice", wide, out.ints(0, 0), out.ints(kh, kw), out.ints(2, 3))
    split = out.add("Reshape", cropped, out.ints(n, c, kh, kw))
    total = out.add("ReduceSum", split, out.ints(0), keepdims=0)
    out.add("Transpose", total, output=node.output, perm=(1, 2, 0))
    return out.nodes


DEPTHWISE = Operator(
    name="depthwise_conv2d",
    attributes=GEOMETRY,
    infer=forward_type,
    evaluate=_depthwise_evaluate,
    grad=_DEPTHWISE[0],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(inputs[1], outputs[0], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec("forward", inputs[0], inputs[1], outputs[0], attrs),
    to_onnx=_depthwise_onnx,
    examples=examples_of(_DEPTHWISE_CASES, "forward"),
)

DEPTHWISE_INPUT_GRAD = Operator(
    name="depthwise_input_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=given_shape,
    evaluate=lambda inputs, attrs: (
        scatter_patches(inputs[0][:, :, :, None, None, :] * inputs[1][None, None, None], ints(attrs, "shape"), attrs),
    ),
    grad=_DEPTHWISE[1],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(inputs[1], inputs[0], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec("input_grad", outputs[0], inputs[1], inputs[0], attrs),
    to_onnx=_depthwise_input_grad_onnx,
    examples=examples_of(_DEPTHWISE_CASES, "input_grad"),
)

DEPTHWISE_WEIGHT_GRAD = Operator(
    name="depthwise_weight_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=given_shape,
    evaluate=_depthwise_weight_grad_evaluate,
    grad=_DEPTHWISE[2],
    cost=lambda inputs, outputs, attrs: _depthwise_cost(outputs[0], inputs[1], inputs, outputs),
    lower=lambda inputs, outputs, attrs: _depthwise_spec("weight_grad", inputs[0], outputs[0], inputs[1], attrs),
    to_onnx=_depthwise_weight_grad_onnx,
    examples=examples_of(_DEPTHWISE_CASES, "weight_grad"),
)

DEPTHWISE_OPERATORS = (DEPTHWISE, DEPTHWISE_INPUT_GRAD, DEPTHWISE_WEIGHT_GRAD)

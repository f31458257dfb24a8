"""2-D convolution, dense or in groups, with its two gradients. Activations are NHWC.

Forward:  y[n,p,q,k] = sum_{r,s,c} x[n, p*sh + r*dh - top, q*sw + s*dw - left, c] * w[r,s,c,k]   (zero outside x)
          In g groups (x has g times the channels of w), the k-th of g runs of outputs sums over the k-th run of x.
Backward: d_x[n,i,j,c] = sum over (r,s,k) of d_y * w at the outputs that read x[n,i,j,c]
          d_w[r,s,c,k] = sum over (n,p,q) of x * d_y at the input that tap (r,s) reads
Source: ONNX Conv (opset 11) with NHWC operands; gradients by transposition of the linear map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compiler.element_types import DType
from compiler.graph import Array, Attrs, TensorType
from compiler.kernels.spec import ConvSpec, MatmulSpec
from compiler.ops.record import Cost, NamedNode, OnnxNode, OnnxWriter, Operator, ints
from compiler.ops.windows import (
    DILATED,
    GEOMETRY,
    PLAIN,
    POINT,
    STRIDED,
    TO_NCHW,
    TO_NHWC,
    examples_of,
    forward_type,
    geometry,
    given_shape,
    groups_of,
    linear_gradients,
    output_size,
    patches_of,
    scatter_patches,
    swapped_geometry,
    transposed_onnx,
)

_DENSE = linear_gradients("conv2d", "conv2d_input_grad", "conv2d_weight_grad")


def _conv_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    x, w = inputs
    oh, ow = output_size(x.shape[1], x.shape[2], w.shape[:2], attrs)
    patches, groups = patches_of(x, oh, ow, w.shape[:2], attrs), groups_of(x.shape, w.shape)
    if groups == 1:
        return (np.tensordot(patches, w, axes=((3, 4, 5), (0, 1, 2))),)
    y = np.einsum("npqrsgc,rscgk->npqgk", _grouped(patches, groups), _grouped(w, groups), optimize=True)
    return (y.reshape(*y.shape[:3], w.shape[3]),)


def _grouped(array: Array, groups: int) -> Array:
    """The last axis as (group, channel of it)."""
    return array.reshape(*array.shape[:-1], groups, array.shape[-1] // groups)


def _spec(
    kind: str, images: TensorType, weights: TensorType, results: TensorType, attrs: Attrs
) -> ConvSpec | MatmulSpec:
    """The kernel of one of the family's three operators, from the types of x, w and y."""
    x, w, y = images.shape, weights.shape, results.shape
    strides, pads, dilations = (ints(attrs, name) for name in GEOMETRY)
    groups = groups_of(x, w)
    if groups == 1 and w[:2] == (1, 1) and strides == (1, 1) and not any(pads):
        return _pointwise(kind, x[0] * x[1] * x[2], x[3], w[3], images.dtype)
    return ConvSpec(
        kind="forward" if kind == "forward" else "input_grad" if kind == "input_grad" else "weight_grad",
        dtype=images.dtype,
        n=x[0],
        h=x[1],
        w=x[2],
        c=x[3],
        k=y[3],
        oh=y[1],
        ow=y[2],
        kernel=(w[0], w[1]),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        dilations=(dilations[0], dilations[1]),
        groups=groups,
    )


def _pointwise(kind: str, pixels: int, c: int, k: int, dtype: DType) -> MatmulSpec:
    """A 1x1 convolution is a matrix product over pixels."""
    if kind == "forward":
        return MatmulSpec(1, pixels, k, c, dtype=dtype, a_batched=False, b_batched=False)
    if kind == "input_grad":
        return MatmulSpec(1, pixels, c, k, dtype=dtype, b_transposed=True, a_batched=False, b_batched=False)
    return MatmulSpec(1, c, k, pixels, dtype=dtype, a_transposed=True, a_batched=False, b_batched=False)


def _conv_cost(x: TensorType, w: TensorType, y: TensorType, written: TensorType) -> Cost:
    taps = w.shape[0] * w.shape[1] * w.shape[2]
    total = x.size_bytes + w.size_bytes + y.size_bytes
    return Cost(2 * y.size * taps, total - written.size_bytes, written.size_bytes)


def _conv_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    x = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = out.add("Transpose", node.inputs[1], perm=(3, 2, 0, 1))
    attributes = _group(types[node.inputs[0]].shape, types[node.inputs[1]].shape) | geometry(node.attrs)
    y = out.add("Conv", x, w, **attributes)
    out.add("Transpose", y, output=node.output, perm=TO_NHWC)
    return out.nodes


def _group(x: tuple[int, ...], w: tuple[int, ...]) -> dict[str, Any]:
    groups = groups_of(x, w)
    return {"group": groups} if groups > 1 else {}


def _conv_input_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    d_y = out.add("Transpose", node.inputs[0], perm=TO_NCHW)
    w = out.add("Transpose", node.inputs[1], perm=(3, 2, 0, 1))
    groups = groups_of(ints(node.attrs, "shape"), types[node.inputs[1]].shape)
    transposed_onnx(out, d_y, w, node, types, groups)
    return out.nodes


def _conv_weight_grad_onnx(node: NamedNode, types: Mapping[str, TensorType]) -> Sequence[OnnxNode]:
    out = OnnxWriter(node.output)
    kh, kw, channels, _ = ints(node.attrs, "shape")
    n, h, w, c = types[node.inputs[0]].shape
    attributes = swapped_geometry(node) | _group(types[node.inputs[0]].shape, ints(node.attrs, "shape"))
    x = out.add("Transpose", node.inputs[0], perm=(3, 0, 1, 2))
    if c > channels:
        # Samples take the place of channels: those of one group see that group's d_y.
        split = out.add("Reshape", x, out.ints(c // channels, channels, n, h, w))
        turned = out.add("Transpose", split, perm=(1, 0, 2, 3, 4))
        x = out.add("Reshape", turned, out.ints(channels, c // channels * n, h, w))
    d_y = out.add("Transpose", node.inputs[1], perm=(3, 0, 1, 2))
    wide = out.add("Conv", x, d_y, **attributes)
    cropped = out.add("Slice", wide, out.ints(0, 0), out.ints(kh, kw), out.ints(2, 3))
    out.add("Transpose", cropped, output=node.output, perm=(2, 3, 0, 1))
    return out.nodes


_DENSE_CASES = (
    ((2, 5, 6, 3), (3, 3, 3, 4), PLAIN),
    ((2, 6, 7, 3), (3, 3, 3, 4), STRIDED),
    ((1, 7, 8, 2), (3, 3, 2, 3), DILATED),
    ((2, 4, 5, 3), (1, 1, 3, 4), POINT),
    ((1, 5, 5, 2), (1, 1, 2, 3), {**POINT, "strides": (2, 2)}),
    ((2, 5, 6, 6), (3, 3, 2, 9), STRIDED),
    ((1, 4, 5, 4), (1, 1, 2, 6), POINT),
)
CONV2D = Operator(
    name="conv2d",
    attributes=GEOMETRY,
    infer=forward_type,
    evaluate=_conv_evaluate,
    grad=_DENSE[0],
    cost=lambda inputs, outputs, attrs: _conv_cost(inputs[0], inputs[1], outputs[0], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec("forward", inputs[0], inputs[1], outputs[0], attrs),
    to_onnx=_conv_onnx,
    examples=examples_of(_DENSE_CASES, "forward"),
)


def _conv_input_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (d_y, w), shape = inputs, ints(attrs, "shape")
    groups = groups_of(shape, w.shape)
    if groups == 1:
        return (scatter_patches(np.tensordot(d_y, w, axes=((3,), (3,))), shape, attrs),)
    patches = np.einsum("npqgk,rscgk->npqrsgc", _grouped(d_y, groups), _grouped(w, groups), optimize=True)
    return (scatter_patches(patches.reshape(*patches.shape[:5], shape[3]), shape, attrs),)


CONV2D_INPUT_GRAD = Operator(
    name="conv2d_input_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=given_shape,
    evaluate=_conv_input_grad_evaluate,
    grad=_DENSE[1],
    cost=lambda inputs, outputs, attrs: _conv_cost(outputs[0], inputs[1], inputs[0], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec("input_grad", outputs[0], inputs[1], inputs[0], attrs),
    to_onnx=_conv_input_grad_onnx,
    examples=examples_of(_DENSE_CASES, "input_grad"),
)


def _conv_weight_grad_evaluate(inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    (x, d_y), shape = inputs, ints(attrs, "shape")
    patches, groups = patches_of(x, d_y.shape[1], d_y.shape[2], shape[:2], attrs), groups_of(x.shape, shape)
    if groups == 1:
        return (np.tensordot(patches, d_y, axes=((0, 1, 2), (0, 1, 2))),)
    d_w = np.einsum("npqrsgc,npqgk->rscgk", _grouped(patches, groups), _grouped(d_y, groups), optimize=True)
    return (d_w.reshape(shape),)


CONV2D_WEIGHT_GRAD = Operator(
    name="conv2d_weight_grad",
    attributes=(*GEOMETRY, "shape"),
    infer=given_shape,
    evaluate=_conv_weight_grad_evaluate,
    grad=_DENSE[2],
    cost=lambda inputs, outputs, attrs: _conv_cost(inputs[0], outputs[0], inputs[1], outputs[0]),
    lower=lambda inputs, outputs, attrs: _spec("weight_grad", inputs[0], outputs[0], inputs[1], attrs),
    to_onnx=_conv_weight_grad_onnx,
    examples=examples_of(_DENSE_CASES, "weight_grad"),
)

CONVOLUTION = (CONV2D, CONV2D_INPUT_GRAD, CONV2D_WEIGHT_GRAD)

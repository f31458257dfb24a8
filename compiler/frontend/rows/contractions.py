"""Import rows: convolutions and matrix products. Images are NCHW in ONNX and NHWC inside."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import REAL
from compiler.errors import ModelShapeError
from compiler.frontend import batch_norm
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Known, Operand
from compiler.frontend.shapes import pair, window_pads
from compiler.frontend.source import SourceNode
from compiler.values import Value


def _conv(call: Call) -> Operand:
    """x: [N, C, H, W], w: [K, C / group, KH, KW] -> transpose, conv, bias, transpose back.

    Source: ONNX Conv. Groups are 1 or one per channel.
    """
    call.require_dtype(0, REAL)
    x_shape, w_shape = call.shape(0), call.shape(1)
    if len(x_shape) != 4 or len(w_shape) != 4:
        call.unsupported(f"convolves rank {len(x_shape)}; only 2-D images [N, C, H, W] are supported")
    depthwise = _is_depthwise(call, x_shape[1], w_shape)
    kernel = (w_shape[2], w_shape[3])
    if pair(call, "kernel_shape", kernel) != kernel:
        call.fail(f"kernel_shape contradicts the weight {list(w_shape)}")
    strides, dilations = pair(call, "strides"), pair(call, "dilations")
    pads = window_pads(call, (x_shape[2], x_shape[3]), kernel, strides, dilations)
    x = call.to_last(call.value(0), 1)
    weight, bias = _conv_parameters(call, depthwise)
    op = "depthwise_conv2d" if depthwise else "conv2d"
    y = call.emit(op, x, weight, strides=strides, pads=pads, dilations=dilations)
    result = call.from_last(call.emit("add", y, bias) if bias else y, 1)
    if not bias:
        call.scope.bias_of[result] = call.node.name
    return result


def _is_depthwise(call: Call, channels: int, w_shape: tuple[int, ...]) -> bool:
    group = call.attributes.integer("group", 1)
    if group < 1 or w_shape[1] * group != channels:
        raise ModelShapeError(
            f"weight {list(w_shape)} in {group} groups does not fit {channels} input channels", where=call.node.where
        )
    if group == 1:
        return False
    if group == channels == w_shape[0]:
        return True
    return call.unsupported(
        f"{group} groups of {w_shape[1]} channels to {w_shape[0]} outputs; supported: 1 group, or one per channel",
        "split the convolution into one per group, or use a depth-wise one",
    )


def _conv_parameters(call: Call, depthwise: bool) -> tuple[Value, Value | None]:
    """Graph values of the weight (inside layout) and of the bias (None if an Add or BatchNormalization follows)."""
    order, channel_axis = ((2, 3, 0), 2) if depthwise else ((2, 3, 1, 0), 2)
    weight = call.known(1)
    if weight is None:
        value = call.value(1)
        if depthwise:
            shape = call.shape_of(value)
            value = call.reshape(value, (shape[0], shape[2], shape[3]))
        return call.transpose(value, (1, 2, 0) if depthwise else order), _given_bias(call)
    name = weight.source
    norm = batch_norm.foldable(call.scope, call.node.outputs[0])
    if norm is None or not name or not _fold_fits(call, name):
        value = call.scope.parameter(weight, order, kind="weight", channel_axis=channel_axis)
        return value, _given_bias(call)
    affine = batch_norm.affine_of(call.scope, norm)
    call.scope.absorbed.add(norm.outputs[0])
    folded = batch_norm.fold_weight(weight, affine)
    value = call.scope.parameter(folded, order, kind="weight", channel_axis=channel_axis)
    return value, _folded_bias(call, name, affine, norm)


def _fold_fits(call: Call, name: str) -> bool:
    """A weight or bias that another layer shares cannot absorb this layer's normalisation."""
    if name in call.scope.parameters or _is_shared(call, 1):
        return False
    bias = call.known(2)
    return not call.has(2) or (bias is not None and not _is_shared(call, 2))


def _is_shared(call: Call, index: int) -> bool:
    readers = call.scope.readers.get(call.node.inputs[index], ())
    return sum(reader.op_type not in ("Shape", "Size") for reader in readers) > 1


def _folded_bias(call: Call, weight: str, affine: batch_norm.Affine, norm: SourceNode) -> Value:
    """(bias - mean) * factor + shift, under the convolution's own bias name if it has one."""
    own = call.known(2)
    if own is not None and own.source:
        array = own.array.astype(np.float64) * affine.factor + affine.shift
        merged = Known(own.name, array.astype(np.float32), source=own.source)
        batch_norm.folded_into(call.scope, norm, weight=weight, bias=own.source, own=own)
        return call.scope.parameter(merged, (0,), kind="bias")
    shift = affine.shift if own is None else own.array * affine.factor + affine.shift
    if not batch_norm.learning_shift(call.scope, norm):
        batch_norm.folded_into(call.scope, norm, weight=weight, bias="", own=own)
        return call.constant(shift.astype(np.float32))
    name = call.scope.bias_name(weight)
    batch_norm.folded_into(call.scope, norm, weight=weight, bias=name, own=own)
    return call.scope.created_bias(name, shift.astype(np.float32))


def _given_bias(call: Call) -> Value | None:
    if not call.has(2):
        return None
    known = call.known(2)
    if known is None:
        return call.value(2)
    # PyTorch's exporter, not optimizing, computes zeros for a convolution without bias.
    absent = not known.trainable and not known.array.any()
    return None if absent else call.scope.parameter(known, (0,), kind="bias")


def _gemm(call: Call) -> Operand:
    """alpha A' B' + beta C, A' and B' transposed as the attributes say."""
    call.require_dtype(0, REAL)
    if call.rank(0) != 2 or call.rank(1) != 2:
        raise ModelShapeError(
            f"multiplies ranks {call.rank(0)} and {call.rank(1)}, both must be 2", where=call.node.where
        )
    a = call.value(0)
    transpose_a = bool(call.attributes.integer("transA", 0))
    transpose_b = bool(call.attributes.integer("transB", 0))
    weight = call.known(1)
    if weight is None:
        b = call.value(1)
    else:
        b, transpose_b = call.scope.matrix(weight, (1, 0) if transpose_b else (0, 1))
    y = call.emit("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    y = _times(call, y, call.attributes.number("alpha", 1.0))
    beta = call.attributes.number("beta", 1.0)
    if not call.has(2) or beta == 0.0:
        call.scope.bias_of[y] = call.node.name
        return y
    known = call.known(2)
    bias = call.value(2) if known is None else call.scope.parameter(known, range(known.array.ndim), kind="bias")
    return call.emit("add", y, _times(call, bias, beta))


def _times(call: Call, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else call.emit("mul", value, call.scalar(factor, value))


def _matmul(call: Call) -> Operand:
    """NumPy's matmul; a rank-1 operand is a row (left) or a column (right)."""
    call.require_dtype(0, REAL)
    call.require_dtype(1, REAL)
    a_shape, b_shape = call.shape(0), call.shape(1)
    if not a_shape or not b_shape:
        raise ModelShapeError("multiplies a scalar", where=call.node.where)
    b, transpose_b, has_weight = _right(call)
    a = call.reshape(call.value(0), (1, *a_shape)) if len(a_shape) == 1 else call.value(0)
    b = call.reshape(b, (*b_shape, 1)) if len(b_shape) == 1 else b
    y = call.emit("matmul", a, b, transpose_a=False, transpose_b=transpose_b)
    shape = list(call.shape_of(y))
    if len(a_shape) == 1:
        del shape[-2]
    if len(b_shape) == 1:
        del shape[-1]
    y = call.reshape(y, shape)
    if has_weight:
        call.scope.bias_of[y] = call.node.name
    return y


def _right(call: Call) -> tuple[Value, bool, bool]:
    """(right operand, whether it is stored transposed, whether it is a weight matrix)."""
    weight = call.known(1)
    if weight is not None and weight.trainable and weight.array.ndim == 2:
        name, transposed = call.scope.matrix(weight, (0, 1))
        return name, transposed, True
    return call.value(1), False, False


ROWS: Mapping[str, Rule] = {
    "BatchNormalization": batch_norm.batch_normalization,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
}

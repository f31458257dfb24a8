"""Import rows: convolutions of rank 1 to 3, in any groups, and their transposes.

Images are [N, C, ...] in ONNX and channels last inside. All end as 2-D kernels (`compiler.frontend.sliding.images`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.element_types import REAL
from compiler.errors import ModelShapeError
from compiler.frontend import batch_norm
from compiler.frontend.call import Call, Rule
from compiler.frontend.file.source import SourceNode
from compiler.frontend.scope import KnownOperand, Operand
from compiler.frontend.sliding.images import Groups, convolved, transposed
from compiler.frontend.sliding.windows import Window, per_axis, shared_out, window_of
from compiler.values import Value

_RANKS = (3, 4, 5)


def _conv(call: Call) -> Operand:
    """x: [N, C, ...], w: [K, C / group, ...] -> transpose, convolve, add bias, transpose back. Source: ONNX Conv."""
    x_shape, w_shape = _shapes(call)
    count = call.attributes.integer("group", 1)
    if count < 1 or w_shape[1] * count != x_shape[1] or w_shape[0] % count:
        raise ModelShapeError(
            f"weight {list(w_shape)} in {count} groups does not fit {x_shape[1]} input channels", where=call.node.where
        )
    groups = Groups(count, w_shape[1], w_shape[0] // count)
    window = window_of(call, x_shape[2:], w_shape[2:])
    weight, bias = _parameters(call, groups, w_shape[0])
    x = call.to_last(call.value(0), 1)
    return _finished(call, convolved(call, x, weight, window, groups, bias), bias)


def _conv_transpose(call: Call) -> Operand:
    """x: [N, K, ...], w: [K, C / group, ...] -> y: [N, C, ...]: a convolution's gradient by its input.

    Source: ONNX ConvTranspose (opset 11 and 22); what output_shape and auto_pad do to the pads is ONNX Runtime's.
    """
    x_shape, w_shape = _shapes(call)
    count = call.attributes.integer("group", 1)
    if count < 1 or w_shape[0] != x_shape[1] or w_shape[0] % count:
        raise ModelShapeError(
            f"weight {list(w_shape)} in {count} groups does not fit {x_shape[1]} input channels", where=call.node.where
        )
    groups = Groups(count, w_shape[1], w_shape[0] // count)
    window, size = _transposed_window(call, x_shape[2:], w_shape[2:])
    weight, bias = _parameters(call, groups, count * w_shape[1])
    x = call.to_last(call.value(0), 1)
    return _finished(call, transposed(call, x, weight, window, groups, size, bias), bias)


def _shapes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    call.require_dtype(0, REAL)
    call.require_dtype(1, REAL)
    x_shape, w_shape = call.shape(0), call.shape(1)
    if len(x_shape) not in _RANKS:
        call.unsupported(f"convolves rank {len(x_shape)}; supported: [N, C, ...] with 1 to 3 image axes")
    if len(w_shape) != len(x_shape):
        call.fail(f"its weight {list(w_shape)} does not have the rank of {list(x_shape)}")
    kernel = w_shape[2:]
    if per_axis(call, "kernel_shape", len(kernel), kernel) != kernel:
        call.fail(f"kernel_shape contradicts the weight {list(w_shape)}")
    return x_shape, w_shape


def _transposed_window(call: Call, size: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Window, tuple[int, ...]]:
    """The window, and the extents of y."""
    rank = len(size)
    none = (0,) * rank
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    window = Window(kernel, strides, dilations, none, none)
    extra = call.attributes.integers("output_padding") or none
    if len(extra) != rank or min(extra) < 0:
        call.unsupported(f"output_padding {list(extra)}: expected {rank} numbers >= 0")
    full = tuple((n - 1) * s + r + e for n, s, r, e in zip(size, strides, window.reach, extra, strict=True))
    mode = call.attributes.text("auto_pad", "NOTSET") or "NOTSET"
    first, last = _transposed_pads(call, mode, size, strides, full)
    output_size = tuple(f - a - b for f, a, b in zip(full, first, last, strict=True))
    output_shape = call.attributes.integers("output_shape")
    if output_shape is not None:
        output_size = (
            output_shape[-rank:]
            if len(output_shape) in (rank, rank + 2)
            else call.fail(f"output_shape {list(output_shape)}")
        )
        first, _ = _cropped(call, mode, full, output_size)
    if min(output_size) < 1:
        call.fail(f"its pads leave an output of {list(output_size)}")
    # What is left after the first pad is cut at the end, or continued with zeros.
    last = tuple(max(f - e - a - w, 0) for f, e, a, w in zip(full, extra, first, output_size, strict=True))
    return Window(kernel, strides, dilations, first, last), output_size


def _transposed_pads(
    call: Call, mode: str, size: tuple[int, ...], strides: tuple[int, ...], full: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = len(size)
    pads = call.attributes.integers("pads") or (0,) * (2 * rank)
    if mode == "NOTSET":
        if len(pads) != 2 * rank or min(pads) < 0:
            call.unsupported(f"pads {list(pads)}: expected {2 * rank} numbers >= 0")
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    return _cropped(call, mode, full, tuple(n * s for n, s in zip(size, strides, strict=True)))


def _cropped(
    call: Call, mode: str, full: tuple[int, ...], output_size: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    totals = [max(f - w, 0) for f, w in zip(full, output_size, strict=True)]
    return shared_out(call, mode if mode.startswith("SAME") else "SAME_LOWER", totals)


def _finished(call: Call, y: Value, bias: Value | None) -> Value:
    result = call.from_last(y, 1)
    if not bias:
        call.scope.bias_of[result] = call.node.name
    return result


def _parameters(call: Call, groups: Groups, outputs: int) -> tuple[Value, Value | None]:
    """Graph values of the weight (inside layout) and of the bias (None if an Add or BatchNormalization follows).

    Inside, a weight is [..., C / group, K], with the depth after height and width; [..., K] if a group has one channel.
    """
    if (call.known_operand(2) is None or _bias(call)) and call.has(2) and call.shape(2) != (outputs,):
        call.fail(f"its bias {list(call.shape(2))} is not [{outputs}]")
    is_transposed = call.node.op_type == "ConvTranspose"
    axes = tuple(range(2, call.rank(1)))
    order = (*axes, 0) if groups.is_single else (*axes[-2:], *axes[:-2], 1, 0)
    channel_axis = len(axes) + (is_transposed and not groups.is_single)
    weight = call.known_operand(1)
    if weight is None:
        value = call.value(1)
        if groups.is_single:
            shape = call.shape_of(value)
            value, order = call.reshape(value, (shape[0], *shape[2:])), (*range(1, len(axes) + 1), 0)
        return call.transpose(value, order), _given_bias(call)
    name = weight.source
    norm = batch_norm.foldable(call.scope, call.node.outputs[0])
    if norm is None or not name or not _fold_fits(call, name):
        value = call.scope.parameter(weight, order, kind="weight", channel_axis=channel_axis)
        return value, _given_bias(call)
    affine = batch_norm.affine_of(call.scope, norm)
    call.scope.absorbed.add(norm.outputs[0])
    transposed_groups = groups.count if is_transposed else 0
    folded = batch_norm.fold_weight(weight, affine, transposed_groups=transposed_groups)
    value = call.scope.parameter(folded, order, kind="weight", channel_axis=channel_axis)
    return value, _folded_bias(call, norm, affine, transposed_groups)


def _fold_fits(call: Call, name: str) -> bool:
    """A weight or bias that another layer shares cannot absorb this layer's normalisation."""
    if name in call.scope.parameters or _is_shared(call, 1):
        return False
    bias = call.known_operand(2)
    return not call.has(2) or (bias is not None and not _is_shared(call, 2))


def _is_shared(call: Call, index: int) -> bool:
    readers = call.scope.readers.get(call.node.inputs[index], ())
    return sum(reader.op_type not in ("Shape", "Size") for reader in readers) > 1


def _folded_bias(call: Call, norm: SourceNode, affine: batch_norm.Affine, transposed_groups: int) -> Value:
    """(bias - mean) * factor + shift, under the convolution's own bias name if it has one."""
    weight, own_bias = call.known_operand(1), _bias(call)
    assert weight is not None
    learns = bool(batch_norm.learning_shift(call.scope, norm))
    has_own = own_bias is not None and bool(own_bias.source)
    name = (
        own_bias.source
        if own_bias is not None and own_bias.source
        else call.scope.bias_name(weight.source)
        if learns
        else ""
    )
    batch_norm.folded_into(
        call.scope, norm, weight=weight.source, bias=name, layer_bias=own_bias, transposed_groups=transposed_groups
    )
    if own_bias is not None and has_own:
        array = (own_bias.array.astype(np.float64) * affine.factor + affine.shift).astype(np.float32)
        return call.scope.parameter(KnownOperand(own_bias.name, array, source=own_bias.source), (0,), kind="bias")
    shift = (affine.shift if own_bias is None else own_bias.array * affine.factor + affine.shift).astype(np.float32)
    return call.scope.created_bias(name, shift) if learns else call.constant(shift)


def _given_bias(call: Call) -> Value | None:
    if call.has(2) and call.known_operand(2) is None:
        return call.value(2)
    bias = _bias(call)
    return None if bias is None else call.scope.parameter(bias, (0,), kind="bias")


def _bias(call: Call) -> KnownOperand | None:
    """The known bias. PyTorch's exporter, not optimizing, computes zeros for a convolution that has none."""
    bias = call.known_operand(2)
    return None if bias is None or (not bias.trainable and not bias.array.any()) else bias


ROWS: Mapping[str, Rule] = {"Conv": _conv, "ConvTranspose": _conv_transpose}

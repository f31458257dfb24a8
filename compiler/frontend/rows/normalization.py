"""Import rows: softmax and normalisation along the last axis (others are moved there)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from compiler.element_types import REAL
from compiler.frontend.call import Call, Result, Rule
from compiler.frontend.pieces import over_axis
from compiler.frontend.scope import Operand
from compiler.values import Value


def _softmax(op: str) -> Rule:
    return over_axis(lambda call, x, axis: call.from_last(call.emit(op, call.to_last(x, axis)), axis))


def _trailing(op: str, default_epsilon: float) -> Rule:
    """Normalisation over the axes from `axis` to the last, then scale and bias.

    Source: ONNX LayerNormalization (opset 17), RMSNormalization (opset 23).
    """

    def rule(call: Call) -> Result:
        call.require_dtype(0, REAL)
        call.attributes.ignore("stash_type")
        shape = call.shape(0)
        axis = call.axis(call.attributes.integer("axis", -1), len(shape))
        epsilon = call.attributes.number("epsilon", default_epsilon)
        flat = call.reshape(call.value(0), (*shape[:axis], prod(shape[axis:])))
        y = call.reshape(call.emit(op, flat, epsilon=epsilon), shape)
        if call.has(1):
            y = call.emit("mul", y, call.parameter_input(1, "weight"))
        if call.has(2):
            y = call.emit("add", y, call.parameter_input(2, "bias"))
        if not any(call.node.outputs[1:]):
            return y
        statistics_shape = (*shape[:axis], *(1 for _ in shape[axis:]))
        return (y, *(call.reshape(value, statistics_shape) for value in _moments(call, flat, epsilon)))

    return rule


def _moments(call: Call, rows: Value, epsilon: float) -> tuple[Value, Value]:
    """The mean of each row, and one over its deviation: LayerNormalization's further outputs."""
    last = (len(call.shape_of(rows)) - 1,)
    mean = call.emit("reduce_mean", rows, axes=last, keepdims=True)
    centred = call.emit("sub", rows, mean)
    variance = call.emit("reduce_mean", call.emit("mul", centred, centred), axes=last, keepdims=True)
    return mean, call.emit("rsqrt", call.emit("add", variance, call.scalar(epsilon, variance)))


def _instance_norm(call: Call) -> Operand:
    """Normalizes each channel of each image on its own: [N, C, ...] seen as [N, C, rest]."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) < 3:
        call.fail(f"needs a tensor [N, C, ...], has rank {len(shape)}")
    flat = call.reshape(call.value(0), (*shape[:2], prod(shape[2:])))
    y = call.reshape(call.emit("normalize", flat, epsilon=call.attributes.number("epsilon", 1e-5)), shape)
    return _per_channel(call, y)


def _group_norm(call: Call) -> Operand:
    """[N, C, ...] seen as [N, groups, rest], then scale and bias: per channel (opset 21), per group before.

    Source: ONNX GroupNormalization, opsets 18 and 21.
    """
    call.require_dtype(0, REAL)
    call.attributes.ignore("stash_type")
    shape, groups = call.shape(0), call.attributes.integer("num_groups", 1)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        call.fail(f"{groups} groups do not fit {list(shape)}")
    per_group = call.opset < 21
    if any(call.shape(i) != (groups if per_group else shape[1],) for i in (1, 2)):
        what = f"group, [{groups}], before opset 21" if per_group else f"channel, [{shape[1]}], from opset 21 on"
        call.fail(f"its scale {list(call.shape(1))} and bias {list(call.shape(2))} must have one number per {what}")
    flat = call.reshape(call.value(0), (shape[0], groups, prod(shape[1:]) // groups))
    y = call.emit("normalize", flat, epsilon=call.attributes.number("epsilon", 1e-5))
    if per_group:
        return call.reshape(_per_channel(call, y), shape)
    return _per_channel(call, call.reshape(y, shape))


def _per_channel(call: Call, y: Value) -> Value:
    """Scale and bias along axis 1."""
    last = call.to_last(y, 1)
    scaled = call.emit("mul", last, call.parameter_input(1, "weight"))
    return call.from_last(call.emit("add", scaled, call.parameter_input(2, "bias")), 1)


ROWS: Mapping[str, Rule] = {
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _trailing("normalize", 1e-5),
    "LogSoftmax": _softmax("log_softmax"),
    "RMSNormalization": _trailing("rms_normalize", 1e-5),
    "Softmax": _softmax("softmax"),
}

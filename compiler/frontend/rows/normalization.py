"""Import rows: softmax and normalisation along the last axis (others are moved there)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from compiler.element_types import REAL
from compiler.frontend.call import Call, Rule
from compiler.frontend.scope import Operand
from compiler.values import Value


def _softmax(op: str) -> Rule:
    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        axis = call.axis(call.attributes.integer("axis", -1), call.rank(0))
        return call.from_last(call.emit(op, call.to_last(call.value(0), axis)), axis)

    return rule


def _trailing(op: str, default_epsilon: float) -> Rule:
    """Normalisation over the axes from `axis` to the last, then scale and bias.

    Source: ONNX LayerNormalization (opset 17), RMSNormalization (opset 23).
    """

    def rule(call: Call) -> Operand:
        call.require_dtype(0, REAL)
        call.only_outputs(1)
        call.attributes.ignore("stash_type")
        shape = call.shape(0)
        axis = call.axis(call.attributes.integer("axis", -1), len(shape))
        flat = call.reshape(call.value(0), (*shape[:axis], prod(shape[axis:])))
        y = call.emit(op, flat, epsilon=call.attributes.number("epsilon", default_epsilon))
        y = call.reshape(y, shape)
        if call.has(1):
            y = call.emit("mul", y, call.learned(1, "weight"))
        return call.emit("add", y, call.learned(2, "bias")) if call.has(2) else y

    return rule


def _instance_norm(call: Call) -> Operand:
    """Each channel of each image on its own: [N, C, ...] seen as [N, C, rest]."""
    call.require_dtype(0, REAL)
    shape = call.shape(0)
    if len(shape) < 3:
        call.fail(f"needs a tensor [N, C, ...], has rank {len(shape)}")
    flat = call.reshape(call.value(0), (*shape[:2], prod(shape[2:])))
    y = call.reshape(call.emit("normalize", flat, epsilon=call.attributes.number("epsilon", 1e-5)), shape)
    return _per_channel(call, y)


def _group_norm(call: Call) -> Operand:
    """[N, C, ...] seen as [N, groups, rest], then scale and bias per channel.

    Source: ONNX GroupNormalization, opset 21 (opset 18 has scale and bias per group, which few exporters wrote).
    """
    call.require_dtype(0, REAL)
    call.attributes.ignore("stash_type")
    shape, groups = call.shape(0), call.attributes.integer("num_groups", 1)
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        call.fail(f"{groups} groups do not fit {list(shape)}")
    if call.shape(1) != (shape[1],):
        call.unsupported("scale and bias per group (opset 18) are not supported", "export with opset 21")
    flat = call.reshape(call.value(0), (shape[0], groups, prod(shape[1:]) // groups))
    y = call.reshape(call.emit("normalize", flat, epsilon=call.attributes.number("epsilon", 1e-5)), shape)
    return _per_channel(call, y)


def _per_channel(call: Call, y: Value) -> Value:
    last = call.to_last(y, 1)
    scaled = call.emit("mul", last, call.learned(1, "weight"))
    return call.from_last(call.emit("add", scaled, call.learned(2, "bias")), 1)


ROWS: Mapping[str, Rule] = {
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _trailing("normalize", 1e-5),
    "LogSoftmax": _softmax("log_softmax"),
    "RMSNormalization": _trailing("rms_normalize", 1e-5),
    "Softmax": _softmax("softmax"),
}

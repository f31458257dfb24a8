"""BatchNormalization with frozen statistics: folded into the convolution before it, or kept as an affine map.

Forward: y = (x - mean) * scale / sqrt(var + epsilon) + bias, per channel (axis 1). The statistics never change.
Source: ONNX BatchNormalization, opset 14 and 15; `training_mode` exports are taken in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.element_types import REAL
from compiler.errors import ModelError
from compiler.frontend.call import Call
from compiler.frontend.scope import Known, Operand, Scope
from compiler.frontend.source import SourceNode
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class Affine:
    """y = x * factor + shift per channel, in float64: what a frozen BatchNormalization computes."""

    factor: NDArray[np.float64]
    shift: NDArray[np.float64]


def foldable(scope: Scope, output: str) -> SourceNode | None:
    """The BatchNormalization that is the only reader of `output` and may be folded, or None."""
    readers = scope.readers.get(output, ())
    if scope.batch_norm != "fold" or len(readers) != 1 or readers[0].op_type != "BatchNormalization":
        return None
    node = readers[0]
    known = len(node.inputs) == 5 and all(isinstance(scope.operands.get(name), Known) for name in node.inputs[1:])
    return node if known and node.inputs[0] == output else None


def affine_of(scope: Scope, node: SourceNode) -> Affine:
    """The affine map of a BatchNormalization whose four vectors are known.

    Raises: ModelError if the variance leaves no number to divide by.
    """
    scale, bias, mean, variance = (_vector(scope.operands[name]) for name in node.inputs[1:])
    epsilon = node.attributes.get("epsilon", 1e-5)
    spread = variance + (epsilon if isinstance(epsilon, float) else 1e-5)
    if not (spread > 0).all():
        raise ModelError("its variance is not positive everywhere", where=node.where, hint="export the model again")
    factor = scale / np.sqrt(spread)
    return Affine(factor, bias - mean * factor)


def _vector(operand: Operand) -> NDArray[np.float64]:
    assert isinstance(operand, Known)
    return operand.array.reshape(-1).astype(np.float64)


def fold_weight(weight: Known, affine: Affine, *, groups: int = 0) -> Known:
    """The convolution weight [O, ...] with each output channel scaled.

    `groups`: not 0 for a ConvTranspose, whose weight is [I, O / groups, ...], the inputs of a group one run of I.
    """
    array, ones = weight.array, (1,) * (weight.array.ndim - 1)
    if groups:
        apart = array.reshape(groups, array.shape[0] // groups, *array.shape[1:])
        scaled = apart * affine.factor.reshape(groups, 1, array.shape[1], *ones[1:])
    else:
        scaled = array * affine.factor.reshape(-1, *ones)
    return replace(weight, array=scaled.reshape(array.shape).astype(np.float32))


def batch_normalization(call: Call) -> Operand:
    """The import row; a folded one has nothing left to do."""
    call.attributes.ignore("momentum", "training_mode", "spatial")
    _require_evaluation(call)
    epsilon = call.attributes.number("epsilon", 1e-5)
    if call.node.outputs[0] in call.scope.absorbed:
        return call.operand(0)
    call.require_dtype(0, REAL)
    x = call.value(0)
    axis = 1 if call.rank(0) > 1 else 0
    channels = call.shape(0)[axis]
    if any(call.shape(i) != (channels,) for i in range(1, 5)):
        call.fail(f"its scale, bias, mean and variance must have shape [{channels}]")
    moved = call.to_last(x, axis)
    if call.scope.batch_norm == "fold" and all(call.known(i) is not None for i in range(1, 5)):
        return call.from_last(_folded(call, moved), axis)
    return call.from_last(_frozen(call, moved, epsilon), axis)


def _require_evaluation(call: Call) -> None:
    readers: Mapping[str, Sequence[SourceNode]] = call.scope.readers
    for name in call.node.outputs[1:]:
        if name and readers.get(name):
            call.unsupported(f"its running statistics {name!r} are read", "export the model in evaluation mode")


def _folded(call: Call, x: Value) -> Value:
    """No convolution to fold into: x * factor + shift, both parameters under the names of scale and bias."""
    affine = affine_of(call.scope, call.node)
    values: list[Value] = []
    for index, array in ((1, affine.factor), (2, affine.shift)):
        known = call.known(index)
        assert known is not None
        merged = replace(known, array=array.astype(np.float32))
        kind = "weight" if index == 1 else "bias"
        values.append(call.scope.parameter(merged, (0,), kind=kind))  # type: ignore[arg-type]
    return call.emit("add", call.emit("mul", x, values[0]), values[1])


def _frozen(call: Call, x: Value, epsilon: float) -> Value:
    """(x - mean) * (scale * rsqrt(var + epsilon)) + bias; scale and bias learn, the statistics are constants.

    The mean is subtracted first: multiplying out would lose digits in the gradient of the scale.
    """
    scale, bias = call.learned(1, "weight"), call.learned(2, "bias")
    mean = call.constant(call.array(3, "the running mean"))
    variance = call.array(4, "the running variance").astype(np.float64)
    rsqrt = call.constant((1 / np.sqrt(variance + epsilon)).astype(np.float32))
    centred = call.emit("sub", x, mean)
    return call.emit("add", call.emit("mul", centred, call.emit("mul", scale, rsqrt)), bias)

"""Weights that a file stores in eight bits and scales to real numbers: Constants of what they stand for.

Rewrites, in the protobuf: the last node of what makes real numbers of a stored tensor of whole numbers of eight bits,
by DequantizeLinear or by Cast, Sub and Mul with stored tensors -> a Constant of its result, under the same name.
Requires: a result of as many elements as the tensor. Ensures: a file is read, and written back, in one form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.graph import Array

_EIGHT_BITS = (np.dtype("i1"), np.dtype("u1"))
_Attributes = Mapping[str, Any]


def dequantize(graph: Any, only: Collection[str] | None = None) -> dict[str, int]:
    """Rewrite a graph (protobuf) in place, or `only` some of its values.

    Returns the names of the Constants, with their elements.
    """
    known = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location != tensor.EXTERNAL}
    known |= {node.output[0]: node.attribute[0].t for node in graph.node if _is_constant(node)}
    arrays: dict[str, Array] = {}
    weights: dict[str, tuple[int, Array]] = {}
    sizes: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        rule = _RULES.get(node.op_type) if not node.domain else None
        if (
            rule is None
            or not node.input
            or any(name and name not in known and name not in arrays for name in node.input)
        ):
            continue
        operands = [_array(name, known, arrays) for name in node.input if name]
        first = next((name for name in node.input if name in sizes), "")
        is_start = node.op_type in ("Cast", "DequantizeLinear") and operands[0].dtype in _EIGHT_BITS
        if not first and not is_start:
            continue
        size = sizes[first] if first else operands[0].size
        result = rule(operands, {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute})
        if result is None or result.size != size:
            continue
        arrays[node.output[0]], sizes[node.output[0]] = result, size
        weights[node.output[0]] = (position, result)
    inner = {name for position, _ in weights.values() for name in graph.node[position].input}
    read_elsewhere = {
        name for position, node in enumerate(graph.node) if node.output[0] not in weights for name in node.input
    }
    ends = {name: entry for name, entry in weights.items() if name not in inner or name in read_elsewhere}
    if only is not None:
        ends = {name: entry for name, entry in ends.items() if name in only}
    for name, (position, array) in ends.items():
        label = graph.node[position].name
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        graph.node[position].CopyFrom(onnx.helper.make_node("Constant", [], [name], name=label, value=tensor))
    return {name: int(array.size) for name, (_, array) in ends.items()}


def _is_constant(node: Any) -> bool:
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"


def _array(name: str, known: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array:
    return arrays[name] if name in arrays else np.asarray(numpy_helper.to_array(known[name]))


def _cast(operands: list[Array], attributes: _Attributes) -> Array | None:
    return operands[0].astype(np.float32) if attributes.get("to") == onnx.TensorProto.FLOAT else None


def _scaled(operands: list[Array], attributes: _Attributes) -> Array | None:
    """(x - zero) * scale, each along an axis or for all."""
    x, scale, *zero = operands
    if scale.dtype != np.float32 or attributes.get("block_size", 0):
        return None
    axis = int(attributes.get("axis", 1))
    if scale.ndim > 1 or (scale.ndim == 1 and scale.size > 1 and not -x.ndim <= axis < x.ndim):
        return None
    shape = [scale.size if place == axis % x.ndim else 1 for place in range(x.ndim)] if scale.size > 1 else []
    offset = zero[0].astype(np.float32).reshape(shape) if zero else np.float32(0)
    return np.asarray((x.astype(np.float32) - offset) * scale.reshape(shape), np.float32)


def _elementwise(function: Callable[[Array, Array], Array]) -> Callable[[list[Array], _Attributes], Array | None]:
    def rule(operands: list[Array], attributes: _Attributes) -> Array | None:
        a, b = operands
        is_small = np.broadcast_shapes(a.shape, b.shape) in (a.shape, b.shape)
        return np.asarray(function(a, b), np.float32) if is_small and a.dtype == b.dtype == np.float32 else None

    return rule


_RULES: Mapping[str, Callable[[list[Array], _Attributes], Array | None]] = {
    "Cast": _cast,
    "DequantizeLinear": _scaled,
    "Mul": _elementwise(np.multiply),
    "Sub": _elementwise(np.subtract),
}

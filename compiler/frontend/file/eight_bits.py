"""Weights that a file stores in eight bits and scales to real numbers: Constants of what they stand for.

Rewrites, in the protobuf: the last node of what makes real numbers of a stored tensor of whole numbers of eight bits,
transposed or not, by DequantizeLinear or by Cast and arithmetic with stored tensors -> a Constant of its result, under
the same name.
Requires: a result of as many elements as the tensor. Ensures: a file is read, and written back, in one form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.frontend.file.integer_arithmetic import has_integer_arithmetic, spell_out
from compiler.frontend.file.integer_nodes import names_read
from compiler.frontend.file.stored_tensors import constant_tensor
from compiler.graph import Array

_EIGHT_BITS = ("int4", "int8", "uint4", "uint8")
_SCALED = (*_EIGHT_BITS, "int16", "int32", "uint16")
"""Types that DequantizeLinear scales: biases are stored wider than weights."""
_STARTS = ("Cast", "Transpose")
_Attributes = Mapping[str, Any]


def dequantize(graph: Any, only: Collection[str] | None = None) -> dict[str, int]:
    """Rewrites a graph (protobuf) in place, or `only` some of its values.

    Returns the names of the Constants, with their elements.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location != tensor.EXTERNAL}
    constants = ((node, constant_tensor(node)) for node in graph.node)
    stored |= {node.output[0]: tensor for node, tensor in constants if tensor is not None}
    arrays: dict[str, Array] = {}
    places: dict[str, int] = {}
    for position, node in enumerate(graph.node):
        operands = [name for name in node.input if name]
        if (
            node.domain
            or len(node.output) != 1
            or not operands
            or not all(name in stored or name in arrays for name in operands)
        ):
            continue
        start = next((arrays[name] for name in operands if name in arrays), None)
        result = _result(node, [_array(name, stored, arrays) for name in operands], start)
        if result is not None:
            arrays[node.output[0]], places[node.output[0]] = result, position
    read = {name for node in graph.node if places.keys().isdisjoint(node.output) for name in node.input}
    inner = {name for position in places.values() for name in graph.node[position].input}
    reals = [name for name, array in arrays.items() if array.dtype == np.float32]
    ends = {name: places[name] for name in reals if name in read or name not in inner}
    if only is not None:
        ends = {name: position for name, position in ends.items() if name in only}
    for name, position in ends.items():
        label = graph.node[position].name
        tensor = numpy_helper.from_array(np.ascontiguousarray(arrays[name]), name)
        graph.node[position].CopyFrom(onnx.helper.make_node("Constant", [], [name], name=label, value=tensor))
    _drop_unread(graph, stored.keys() & inner)
    return {name: int(arrays[name].size) for name in ends}


def _drop_unread(graph: Any, names: Collection[str]) -> None:
    """Deletes those of some stored tensors (protobuf) that nothing reads any more."""
    if not names:
        return
    unread = set(names) - set(names_read(graph))
    for entry in [entry for entry in graph.initializer if entry.name in unread]:
        graph.initializer.remove(entry)


def read_integers(graph: Any, learned: Collection[str]) -> None:
    """Rewrites a graph (protobuf) so that `learned` are Constants of real numbers; the rest stays as it is stored.

    Where such a weight belongs to arithmetic in integers, that of the whole graph is spelled out.
    """
    if has_integer_arithmetic(graph):
        spelled = onnx.GraphProto()
        spelled.CopyFrom(graph)
        spell_out(spelled)
        if dequantize(spelled, learned):
            graph.CopyFrom(spelled)
            return
    dequantize(graph, learned)


def _array(name: str, stored: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array | None:
    if name in arrays:
        return arrays[name]
    try:
        return np.asarray(numpy_helper.to_array(stored[name]))
    except Exception:  # malformed tensors raise what NumPy raises; the parser names them
        return None


def _result(node: Any, operands: Sequence[Array | None], start: Array | None) -> Array | None:
    """Computes a node's result from stored tensors; None unless they begin with eight bits and it keeps their
    elements.
    """
    rule = _RULES.get(node.op_type)
    arrays = [array for array in operands if array is not None]
    if rule is None or len(arrays) != len(operands):
        return None
    if start is None:
        types = _SCALED if node.op_type == "DequantizeLinear" else _EIGHT_BITS if node.op_type in _STARTS else ()
        if str(arrays[0].dtype) not in types:
            return None
        start = arrays[0]
    try:
        result = rule(arrays, {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute})
    except (ValueError, TypeError, IndexError, ArithmeticError):  # operands that make no sense: the import refuses them
        return None
    return result if result is not None and result.size == start.size else None


def _transposed(operands: list[Array], attributes: _Attributes) -> Array | None:
    """Transposes whole numbers only: what is real already has its end before."""
    return None if operands[0].dtype == np.float32 else operands[0].transpose(attributes.get("perm"))


def _cast(operands: list[Array], attributes: _Attributes) -> Array | None:
    return operands[0].astype(np.float32) if attributes.get("to") == onnx.TensorProto.FLOAT else None


def _scaled(operands: list[Array], attributes: _Attributes) -> Array | None:
    """(x - zero) * scale, each along an axis or for all."""
    x, scale, *zero = operands
    if scale.dtype != np.float32:
        return None
    axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
    factor = laid_along(scale, x.shape, axis, block)
    offset = laid_along(zero[0].astype(np.float32), x.shape, axis, block) if zero else np.float32(0)
    return np.asarray((x.astype(np.float32) - offset) * factor, np.float32)


def laid_along(scale: Array, shape: Sequence[int], axis: int, block: int) -> Array:
    """A scale, or a zero point, as it broadcasts to `shape`: one number, one along an axis, or one for each block.

    Raises: ValueError where it fits none of these.
    """
    if scale.size == 1 and not block:
        return scale.reshape(())
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} of a tensor of rank {len(shape)}")
    axis %= len(shape)
    if block:
        blocks = [-(-extent // block) if place == axis else extent for place, extent in enumerate(shape)]
        if block < 0 or list(scale.shape) != blocks:
            raise ValueError(
                f"{list(scale.shape)} is no scale for blocks of {block} along axis {axis} of {list(shape)}"
            )
        return np.asarray(scale.repeat(min(block, shape[axis]), axis).take(range(shape[axis]), axis))
    return scale.reshape([scale.size if place == axis else 1 for place in range(len(shape))])


def _elementwise(function: Callable[[Array, Array], Array]) -> Callable[[list[Array], _Attributes], Array | None]:
    def rule(operands: list[Array], attributes: _Attributes) -> Array | None:
        a, b = operands
        is_small = np.broadcast_shapes(a.shape, b.shape) in (a.shape, b.shape)
        return np.asarray(function(a, b), np.float32) if is_small and a.dtype == b.dtype == np.float32 else None

    return rule


_RULES: Mapping[str, Callable[[list[Array], _Attributes], Array | None]] = {
    "Add": _elementwise(np.add),
    "Cast": _cast,
    "DequantizeLinear": _scaled,
    "Div": _elementwise(np.divide),
    "Mul": _elementwise(np.multiply),
    "Sub": _elementwise(np.subtract),
    "Transpose": _transposed,
}

"""The one door to the `onnx` package on the way out: our node records become a checked model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compiler.errors import InternalError
from compiler.graph import Array, TensorType
from compiler.ops.record import OnnxAttribute, OnnxNode

OPSET = 18
IR_VERSION = 10
BESIDE_BYTES = 1 << 10
"""Smaller tensors stay in the model's file: engines read shapes and axes there."""
ALIGNMENT = 64


@dataclass(slots=True)
class DataFileWriter:
    """A data file beside a model, called `location`, that fills as the model is written: its large initializers."""

    location: str
    arrays: list[tuple[int, Array]] = field(default_factory=list)
    """The arrays, each with the byte that it begins at."""
    size_bytes: int = 0

    def take(self, array: Array) -> int:
        """Puts an array behind the others and returns the byte that it begins at."""
        begin = -(-self.size_bytes // ALIGNMENT) * ALIGNMENT
        self.arrays.append((begin, array))
        self.size_bytes = begin + array.nbytes
        return begin


def to_model_proto_bytes(
    *,
    nodes: Sequence[OnnxNode],
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    initializers: Mapping[str, Array],
    name: str,
    metadata: Mapping[str, str] | None = None,
    beside: DataFileWriter | None = None,
) -> bytes:
    """Serialise a model (opset 18), checked by `onnx.checker`; the same arguments give the same bytes.

    Nodes are in topological order; empty input names are left-out optional inputs. Large initializers go into
    `beside`, if there is one.
    Raises: InternalError if the checker refuses the model, naming what it refuses.
    """
    external_arrays = {
        label: array for label, array in initializers.items() if beside is not None and array.nbytes >= BESIDE_BYTES
    }
    graph = helper.make_graph(
        [_node(node, index) for index, node in enumerate(nodes)],
        name,
        list(_values(inputs)),
        list(_values(outputs)),
        [_tensor(array, label) for label, array in initializers.items() if label not in external_arrays],
    )
    model = helper.make_model(
        graph,
        producer_name="pockfarm",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(sorted((metadata or {}).items())))
    _check(model, name, external_arrays)
    if beside is not None:
        model.graph.initializer.extend(_reference(array, label, beside) for label, array in external_arrays.items())
    return bytes(model.SerializeToString(deterministic=True))


def _check(model: Any, name: str, external_arrays: Mapping[str, Array]) -> None:
    """Tensors of a data file that is not written yet are inputs to the checker, which would look for the file."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    checked.graph.input.extend(
        helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))
        for label, array in external_arrays.items()
    )
    try:
        onnx.checker.check_model(checked)
    except onnx.checker.ValidationError as problem:
        raise InternalError(f"the exported model is not valid ONNX: {problem}", where=name) from None


def _reference(array: Array, label: str, beside: DataFileWriter) -> Any:
    """An initializer whose elements lie in the data file."""
    tensor = onnx.TensorProto(
        name=label,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    place = {"location": beside.location, "offset": beside.take(array), "length": array.nbytes}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _tensor(array: Array, label: str) -> Any:
    # `ascontiguousarray` turns a scalar into a vector of one element.
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), label)


def _values(types: Mapping[str, TensorType]) -> Iterator[Any]:
    for label, tensor in types.items():
        yield helper.make_tensor_value_info(label, tensor.element.onnx, list(tensor.shape))


def _node(node: OnnxNode, index: int) -> Any:
    label = f"{node.op_type}_{index}"
    proto = helper.make_node(node.op_type, node.inputs, node.outputs, name=label, domain=node.domain or None)
    for key, value in sorted(node.attributes.items()):
        proto.attribute.append(_attribute(key, value))
    return proto


def _attribute(key: str, value: OnnxAttribute) -> Any:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(key, _tensor(value, ""))
    if isinstance(value, tuple) and not value:
        return helper.make_attribute(key, [], attr_type=onnx.AttributeProto.INTS)
    return helper.make_attribute(key, list(value) if isinstance(value, tuple) else value)

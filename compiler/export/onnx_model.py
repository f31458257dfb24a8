"""The one door to the `onnx` package on the way out: our node records become a checked model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compiler.errors import InternalError
from compiler.graph import Array, TensorType
from compiler.ops.record import OnnxAttribute, OnnxNode

OPSET = 18
IR_VERSION = 10


def to_model_proto_bytes(
    *,
    nodes: Sequence[OnnxNode],
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    initializers: Mapping[str, Array],
    name: str,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Serialise a model (opset 18), checked by `onnx.checker`; the same arguments give the same bytes.

    Nodes are in topological order; empty input names are left-out optional inputs.
    Raises: InternalError if the checker refuses the model, naming what it refuses.
    """
    graph = helper.make_graph(
        [_node(node, index) for index, node in enumerate(nodes)],
        name,
        list(_values(inputs)),
        list(_values(outputs)),
        [_tensor(array, label) for label, array in initializers.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="pockfarm",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(sorted((metadata or {}).items())))
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as problem:
        raise InternalError(f"the exported model is not valid ONNX: {problem}", where=name) from None
    return bytes(model.SerializeToString(deterministic=True))


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

"""Nodes imported by others that stand in for them: where there is no import row, or the row refuses.

The standard's own definitions of operators by others: what stands in for an import row that there is not.

Source: `onnx.defs`, function bodies (some written for the types and attributes of the node at hand).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import CompileError, ModelError, UnsupportedOperator
from compiler.frontend.expansion.bodies import called, called_after, place
from compiler.frontend.expansion.control import Run
from compiler.frontend.expansion.unrolled import UNROLLED
from compiler.frontend.file.parse import parsed_attribute, parsed_node
from compiler.frontend.file.source import OPSETS, AttributeValue, Body, SourceNode
from compiler.frontend.scope import Scope
from compiler.values import Value


def definition(scope: Scope, node: SourceNode, opset: int) -> tuple[Body, int] | None:
    """Returns the definition of an operator in other operators, and the version of the standard in which it is written;
    None if the operator is basic.

    Raises: ModelError if its operands do not fit it.
    """
    if node.domain or any(isinstance(value, Body) for value in node.attributes.values()):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    try:
        written = _written(schema, scope, node, opset)
    except Exception as problem:  # C++: it raises what it likes
        raise ModelError(f"its operands do not fit its definition: {problem}", where=node.where) from None
    if written is None:
        return None
    proto, version = written
    nodes = tuple(parsed_node(inner, position) for position, inner in enumerate(proto.node))
    if node.attributes.get("dtype") != onnx.TensorProto.DOUBLE:
        nodes = tuple(map(_in_single, nodes))
    body = Body(tuple(proto.input), tuple(proto.output), nodes)
    unknown = set(node.attributes) - set(schema.attributes)
    if unknown or len(node.inputs) > len(body.inputs) or len(node.outputs) > len(body.outputs):
        raise ModelError("has attributes, inputs or outputs that its operator has not", where=node.where)
    return called(body, {**_defaults(schema), **node.attributes}, node), max(version, OPSETS[0])


def _in_single(node: SourceNode) -> SourceNode:
    """Definitions cast to double where they are particular about rounding; a step computes in float32."""
    double = node.op_type == "Cast" and node.attributes.get("to") == onnx.TensorProto.DOUBLE
    return replace(node, attributes={**node.attributes, "to": int(onnx.TensorProto.FLOAT)}) if double else node


def _written(schema: Any, scope: Scope, node: SourceNode, opset: int) -> tuple[Any, int] | None:
    """The function (protobuf) of the newest version that the model's does not precede."""
    proto = onnx.FunctionProto()
    versions = [version for version in schema.function_opset_versions if version <= opset]
    if schema.has_function and versions:
        proto.ParseFromString(schema.get_function_with_opset_version(max(versions)))
        return proto, max(versions)
    versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    if schema.has_context_dependent_function and versions:
        types = _types(scope, node.inputs)
        data = schema.get_context_dependent_function_with_opset_version(
            max(versions), _proto(schema, node).SerializeToString(), types
        )
        proto.ParseFromString(data)
        return (proto, max(versions)) if proto.node else None
    return None


def _proto(schema: Any, node: SourceNode) -> Any:
    proto = onnx.helper.make_node(node.op_type, list(node.inputs), list(node.outputs))
    for name, value in node.attributes.items():
        attribute = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        kind = schema.attributes[name].type.value if name in schema.attributes else None
        proto.attribute.append(onnx.helper.make_attribute(name, attribute, attr_type=kind))
    return proto


def _types(scope: Scope, names: Sequence[str]) -> list[bytes]:
    return [_type(scope, name).SerializeToString() if name else b"" for name in names]


def _type(scope: Scope, name: str) -> Any:
    operand = scope.operands[name]
    if isinstance(operand, Value):
        element = ELEMENT_TYPES[scope.builder.types[operand].dtype].onnx
    else:
        element = onnx.helper.np_dtype_to_tensor_dtype(operand.array.dtype)
    return onnx.helper.make_tensor_type_proto(element, scope.shape(operand))


def _defaults(schema: Any) -> Mapping[str, AttributeValue]:
    """The values of attributes that a node leaves out."""
    return {
        name: parsed_attribute(attribute.default_value, "model")
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }


Import = Callable[[Scope, SourceNode, int], None]
"""Imports one node of a version of the standard."""


def stands_in(scope: Scope, node: SourceNode, opset: int, run: Run, import_one: Import) -> bool:
    """Imports a node that its row refuses by what it consists of; False if that is refused too."""
    try:
        if node.op_type in UNROLLED:
            UNROLLED[node.op_type](scope, node, run)
            return True
        return define(scope, node, opset, import_one)
    except ModelError:
        return False


def define(scope: Scope, node: SourceNode, opset: int, import_one: Import) -> bool:
    """Imports the standard's definition of a node's operator in its place; False if it has none."""
    standard = definition(scope, node, opset)
    if standard is None:
        return False
    body, version = standard
    actual = {name: node.operand(position) for position, name in enumerate(body.inputs)}
    nodes, outputs = place(body, actual, node.outputs, node.name, scope.used_names)
    scope.count_nodes(nodes, node.where)
    for inner in nodes:
        try:
            import_one(scope, called_after(inner, node.name), version)
        except CompileError as problem:
            problem.message = f"its definition by other operators needs {inner.op_type}: {problem.message}"
            problem.where = node.where
            raise
    for name, inner_name in zip(node.outputs, outputs, strict=False):
        if name and name != inner_name:
            if not inner_name:
                raise UnsupportedOperator(f"its definition does not say what its output {name!r} is", where=node.where)
            scope.same(name, inner_name)
    return True

"""The one door to the `onnx` package on the way in: model bytes become plain typed records."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import ModelError, UnsupportedOperator
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.file.external_data import fill_in
from compiler.frontend.file.prescan import STANDARD_DOMAINS
from compiler.frontend.file.torch_record import (
    NO_CALL,
    TorchCall,
    TorchRecord,
    told_by,
    torch_call,
    torch_record,
)
from compiler.graph import Array
from compiler.warnings import CompileWarning

OPSETS = range(13, 29)
"""Up to the newest that the `onnx` package knows, whose own cases the tests run; ONNX Runtime may know fewer."""
_OTHER_OPSET = "export again with opset_version=18, or use onnx.version_converter"
_QUOTED = re.compile(r"'([^']*)'")
"""The items of a list of names, as Python prints it: how the exporter stores its metadata."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute inside a function that takes the value of the function's attribute `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Body:
    """A sub-graph of a node, or what a function consists of: nodes that read nothing but names of the body itself.

    What a sub-graph reads from around it, its node has as further inputs: `captured` says which input each is.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[SourceNode, ...]
    initializers: Mapping[str, Array] = field(default_factory=dict)
    captured: Mapping[str, int] = field(default_factory=dict)


AttributeValue = int | float | str | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Body | Reference


@dataclass(frozen=True, slots=True)
class SourceNode:
    """One ONNX node; `inputs` holds "" where an optional input is left out."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    module: str = ""
    """Path of the PyTorch module that it came from (`encoder.layer.0.query`), if the exporter tells."""
    torch_op: str = ""
    """The PyTorch operator that it came from (`aten.linear.default`), if the exporter tells."""
    module_class: str = ""
    """Class of that module (`torch.nn.modules.linear.Linear`), if the exporter tells."""
    call: TorchCall = NO_CALL
    """That operator's call in the exported program, if the exporter tells."""
    domain: str = ""
    """Of a call of a model-local function, that function's; empty for the standard's operators."""
    opset: int = 0
    """Version of the standard that it is written in; 0: the model's."""

    def operand(self, index: int) -> str:
        """Name of input `index`, or an empty text if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def where(self) -> str:
        """How error messages name it."""
        return f"node {self.name!r} ({self.op_type})"


@dataclass(frozen=True, slots=True)
class SourceInput:
    """A graph input: ONNX element type and, per axis, a fixed extent, a symbol, or None (nothing said)."""

    name: str
    element_type: int
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Function:
    """A model-local function: its body, the values of attributes that a call leaves out, its standard's version."""

    body: Body
    defaults: Mapping[str, AttributeValue]
    opset: int


@dataclass(frozen=True, slots=True)
class SourceModel:
    """An ONNX model, parsed.

    The fields after `record` are what the frontend found out about its initializers before the import.
    """

    opset: int
    nodes: tuple[SourceNode, ...]
    inputs: tuple[SourceInput, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    producer: str = ""
    record: TorchRecord | None = None
    functions: Mapping[tuple[str, str], Function] = field(default_factory=dict)
    """(domain, name) -> function, until they are put in place."""
    constants: frozenset[str] = frozenset()
    """Float initializers that are no parameters: buffers, and what an exporter computed."""
    created: frozenset[str] = frozenset()
    """Initializers that the file does not hold: an exporter dropped them, or a plan asks for them."""
    new_biases: tuple[str, ...] = ()
    """Those of them that the author's model does not have either."""
    normed: frozenset[str] = frozenset()
    """Weights that an exporter folded norms into, of files that tell no more than that."""
    unlearnable: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the author's module -> why it cannot learn from this file."""
    warnings: tuple[CompileWarning, ...] = ()

    def value_names(self) -> set[str]:
        """Every name that a value has."""
        made = (name for node in self.nodes for name in node.outputs if name)
        return {*self.initializers, *(value.name for value in self.inputs), *made}


def type_label(code: int) -> str:
    """What people call an element type of ONNX; some have no NumPy type."""
    known = next((row.label for row in ELEMENT_TYPES.values() if row.onnx == code), "")
    names = onnx.TensorProto.DataType
    return known or (names.Name(code).lower() if code in names.values() else f"number {code}")


def free_name(wanted: str, taken: set[str]) -> str:
    """A name that no value has, which is taken from now on: the wanted one, with marks if it takes them."""
    while wanted in taken:
        wanted += "'"
    taken.add(wanted)
    return wanted


def parse_model(model: bytes, external: External = NO_EXTERNAL) -> SourceModel:
    """Parse ONNX bytes that passed `prescan`, with the data files beside them.

    Raises: ModelError (not parseable), UnsupportedOperator (opset).
    """
    proto = _parse(model)
    opset = _opset(proto)
    graph = proto.graph
    if graph.sparse_initializer:
        raise UnsupportedOperator("sparse initializers are not supported", where="graph", hint="store them dense")
    elsewhere = fill_in(proto, external)
    initializers = {
        tensor.name: elsewhere[tensor.name]
        if tensor.name in elsewhere
        else _array(tensor, f"initializer {tensor.name!r}")
        for tensor in graph.initializer
    }
    if len(initializers) != len(graph.initializer):
        raise ModelError("two initializers have the same name", where="graph")
    return SourceModel(
        opset=opset,
        nodes=tuple(parsed_node(node, index) for index, node in enumerate(graph.node)),
        inputs=tuple(_input(value) for value in graph.input if value.name not in initializers),
        outputs=tuple(value.name for value in graph.output),
        initializers=initializers,
        producer=str(proto.producer_name),
        record=torch_record(graph),
        functions={(_plain(found.domain), str(found.name)): _function(found, opset) for found in proto.functions},
    )


def _parse(model: bytes) -> Any:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as problem:  # protobuf's DecodeError has no stable home across its implementations
        raise ModelError(f"cannot be parsed as ONNX: {problem}", where="model", hint="is the file damaged?") from None
    return proto


def _opset(proto: Any) -> int:
    versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
    if len(set(versions)) != 1:
        raise ModelError(f"imports {len(versions)} versions of the standard operators, expected 1", where="model")
    if versions[0] not in OPSETS:
        raise UnsupportedOperator(_outside(versions[0]), where="model", hint=_OTHER_OPSET)
    return int(versions[0])


def _outside(opset: int) -> str:
    return f"opset {opset} is outside {OPSETS[0]} to {OPSETS[-1]}"


def _array(tensor: Any, where: str) -> Array:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as problem:  # malformed tensors raise what NumPy raises
        raise ModelError(f"cannot be read: {problem}", where=where, hint="is the file damaged?") from None


def _input(value: Any) -> SourceInput:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOperator(f"is a {kind or 'value without a type'}", where=f"input {value.name!r}",
                                  hint="every model input must be a tensor")  # fmt: skip
    tensor = value.type.tensor_type
    shape = tuple(_dimension(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return SourceInput(value.name, tensor.elem_type, shape)


def _dimension(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value)
    return str(dim.dim_param) or None if kind == "dim_param" else None


def parsed_node(node: Any, index: int) -> SourceNode:
    """A node (protobuf), its sub-graphs closed; without a name it is called after its place."""
    name = node.name or f"{node.op_type}_{index}"
    where = f"node {name!r} ({node.op_type})"
    attributes = {attribute.name: parsed_attribute(attribute, where) for attribute in node.attribute}
    told = told_by(node)
    origin = _torch_origin(node, told)
    inputs = tuple(node.input)
    if any(isinstance(value, Body) for value in attributes.values()):
        inputs, attributes = _with_captures(inputs, attributes)
    return SourceNode(
        name,
        node.op_type,
        inputs,
        tuple(node.output),
        attributes,
        *origin,
        call=torch_call(told),
        domain=_plain(node.domain),
    )


def _plain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else str(domain)


def _with_captures(
    inputs: tuple[str, ...], attributes: Mapping[str, AttributeValue]
) -> tuple[tuple[str, ...], dict[str, AttributeValue]]:
    """A node's inputs and attributes once all that its sub-graphs read from around it are inputs of the node."""
    free = {name: None for value in attributes.values() if isinstance(value, Body) for name in _free_names(value)}
    places = {name: len(inputs) + position for position, name in enumerate(free)}
    closed = {
        key: replace(value, captured={name: places[name] for name in _free_names(value)})
        if isinstance(value, Body)
        else value
        for key, value in attributes.items()
    }
    return (*inputs, *free), closed


def _free_names(body: Body) -> dict[str, None]:
    """What a body reads and does not make, in order."""
    made = {*body.inputs, *body.initializers, *(name for node in body.nodes for name in node.outputs)}
    read = itertools.chain(body.outputs, *(node.inputs for node in body.nodes))
    return {name: None for name in read if name and name not in made}


def _function(proto: Any, model_opset: int) -> Function:
    where = f"function {proto.name!r}"
    versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
    opset = int(versions[0]) if versions else model_opset
    if opset not in OPSETS:
        raise UnsupportedOperator(_outside(opset), where=where, hint=_OTHER_OPSET)
    nodes = tuple(parsed_node(node, index) for index, node in enumerate(proto.node))
    defaults = {attribute.name: parsed_attribute(attribute, where) for attribute in proto.attribute_proto}
    body = Body(tuple(proto.input), tuple(proto.output), nodes)
    return Function(body, defaults, 0 if opset == model_opset else opset)


def _subgraph(graph: Any, where: str) -> Body:
    if graph.sparse_initializer:
        raise UnsupportedOperator("sparse initializers are not supported", where=where, hint="store them dense")
    initializers = {tensor.name: _array(tensor, f"initializer {tensor.name!r}") for tensor in graph.initializer}
    return Body(
        tuple(value.name for value in graph.input if value.name not in initializers),
        tuple(value.name for value in graph.output),
        tuple(parsed_node(node, index) for index, node in enumerate(graph.node)),
        initializers,
    )


def _torch_origin(node: Any, told: Mapping[str, str]) -> tuple[str, str, str]:
    """(module path, operator, module class) as far as PyTorch's exporters tell.

    Dynamo writes them into metadata; TorchScript writes the path into the node's name.
    """
    modules = _QUOTED.findall(told.get("pkg.torch.onnx.name_scopes", ""))
    if modules:
        # The classes of the modules on the path, then the operator.
        classes = ["", *_QUOTED.findall(told.get("pkg.torch.onnx.class_hierarchy", ""))]
        return (modules[-2] if len(modules) > 1 else "", classes[-1], classes[-2] if len(classes) > 1 else "")
    return (_module_of_path(node.name.split("/")[1:-1]) if node.name.startswith("/") else "", "", "")


def _module_of_path(parts: Sequence[str]) -> str:
    """`/layers/layers.0/query/MatMul` is of module `layers.0.query`: a child in a Sequential repeats its parent."""
    module: list[str] = []
    for part in parts:
        if module and part.startswith(f"{module[-1]}."):
            module.pop()
        module.append(part)
    return ".".join(module)


def parsed_attribute(attribute: Any, where: str) -> AttributeValue:
    """The value of an attribute (protobuf)."""
    kind = onnx.AttributeProto
    if attribute.ref_attr_name:
        return Reference(str(attribute.ref_attr_name))
    match attribute.type:
        case kind.FLOAT:
            return float(attribute.f)
        case kind.INT:
            return int(attribute.i)
        case kind.STRING:
            return _text(attribute.s, where)
        case kind.TENSOR:
            return _array(attribute.t, where)
        case kind.FLOATS:
            return tuple(float(value) for value in attribute.floats)
        case kind.INTS:
            return tuple(int(value) for value in attribute.ints)
        case kind.STRINGS:
            return tuple(_text(value, where) for value in attribute.strings)
        case kind.GRAPH:
            return _subgraph(attribute.g, where)
    if attribute.type == kind.TYPE_PROTO:
        return ""  # an Optional says of what it is one, which its value does too
    raise UnsupportedOperator(f"attribute {attribute.name!r} has a type that is not supported", where=where)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ModelError("a text attribute is not UTF-8", where=where) from None

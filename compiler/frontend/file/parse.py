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

from compiler.errors import ModelError, UnsupportedOperator
from compiler.external import NO_EXTERNAL, External
from compiler.frontend.file.eight_bits import dequantize
from compiler.frontend.file.external_data import fill_in
from compiler.frontend.file.integer_arithmetic import spell_out
from compiler.frontend.file.modes import EVALUATION, MODE
from compiler.frontend.file.prescan import STANDARD_DOMAINS
from compiler.frontend.file.references import advice
from compiler.frontend.file.source import (
    OLDEST_OPSET,
    OPSETS,
    AttributeValue,
    Body,
    Function,
    Reference,
    SourceInput,
    SourceModel,
    SourceNode,
)
from compiler.frontend.file.stored_tensors import Path, StoredTensor, stored_tensors
from compiler.frontend.file.torch_record import told_by, torch_call, torch_record
from compiler.graph import Array
from compiler.warnings import CompileWarning

_QUOTED = re.compile(r"'([^']*)'")
"""The items of a list of names, as Python prints it: how the exporter stores its metadata."""


def parse_model(model: bytes, external: External = NO_EXTERNAL) -> SourceModel:
    """Parses ONNX bytes that passed `prescan`, with the data files beside them.

    Initializers of sub-graphs and functions are among the model's own, under the names of `stored_tensors`.

    Raises: ModelError (not parseable), UnsupportedOperator (opset).
    """
    proto = _parse(model)
    opset = _opset(proto)
    graph = proto.graph
    if graph.sparse_initializer:
        raise UnsupportedOperator("sparse initializers are not supported", where="graph", hint="store them dense")
    external_arrays = fill_in(proto, external)
    spelled = spell_out(graph)
    eight_bits = dequantize(graph)
    initializers = {
        tensor.name: external_arrays[tensor.name]
        if tensor.name in external_arrays
        else _array(tensor, f"initializer {tensor.name!r}")
        for tensor in graph.initializer
    }
    if len(initializers) != len(graph.initializer):
        raise ModelError("two initializers have the same name", where="graph")
    parser = _Parser(stored_tensors(proto), initializers, str(proto.producer_name))
    return SourceModel(
        opset=opset,
        nodes=parser.nodes(graph.node, ()),
        inputs=tuple(_input(value) for value in graph.input if value.name not in initializers),
        outputs=tuple(value.name for value in graph.output),
        initializers=initializers,
        producer=str(proto.producer_name),
        record=torch_record(graph),
        eight_bits=eight_bits,
        constants=spelled.scales,
        warnings=tuple(CompileWarning("model.rounding", "model", remark) for remark in spelled.remarks),
        functions={
            (_plain(function.domain), str(function.name)): parser.function(function, opset, ("functions", number))
            for number, function in enumerate(proto.functions)
        },
    )


def parsed_node(node: Any, index: int) -> SourceNode:
    """A node (protobuf) that is of no file, such as an operator's definition has."""
    return _Parser().node(node, index, (index,))


def parsed_attribute(attribute: Any, where: str) -> AttributeValue:
    """The value of an attribute (protobuf) of no file."""
    return _Parser().attribute(attribute, where, ())


@dataclass(frozen=True, slots=True)
class _Parser:
    """Nodes of one file; tensors of sub-graphs join `initializers`."""

    stored: Mapping[Path, StoredTensor] = field(default_factory=dict)
    initializers: dict[str, Array] = field(default_factory=dict)
    producer: str = ""

    def nodes(self, nodes: Any, path: Path) -> tuple[SourceNode, ...]:
        return tuple(self.node(node, position, (*path, position)) for position, node in enumerate(nodes))

    def node(self, node: Any, index: int, path: Path) -> SourceNode:
        """A node, its sub-graphs closed; without a name it is called after its place."""
        name = node.name or f"{node.op_type}_{index}"
        where = f"node {name!r} ({node.op_type})"
        attributes = {entry.name: self.attribute(entry, where, (*path, entry.name)) for entry in node.attribute}
        metadata = told_by(node)
        inputs = tuple(node.input)
        if any(isinstance(value, Body) for value in attributes.values()):
            inputs, attributes = self._with_captures(inputs, attributes, path)
        return SourceNode(
            name,
            node.op_type,
            inputs,
            tuple(node.output),
            attributes,
            *_torch_origin(node, metadata),
            call=torch_call(metadata),
            domain=_plain(node.domain),
            tensor=self.stored[path].name if path in self.stored else "",
            evaluates=metadata.get(MODE) == EVALUATION,
        )

    def function(self, proto: Any, model_opset: int, path: Path) -> Function:
        where = f"function {proto.name!r}"
        versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
        opset = int(versions[0]) if versions else model_opset
        if not OLDEST_OPSET <= opset <= OPSETS[-1]:
            raise UnsupportedOperator(_outside(opset), where=where, hint=advice("opset", self.producer))
        defaults = {entry.name: self.attribute(entry, where, (*path, entry.name)) for entry in proto.attribute_proto}
        body = Body(tuple(proto.input), tuple(proto.output), self.nodes(proto.node, path))
        return Function(body, defaults, 0 if opset == model_opset else opset)

    def attribute(self, attribute: Any, where: str, path: Path) -> AttributeValue:
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
                return self._subgraph(attribute.g, where, path)
        if attribute.type == kind.TYPE_PROTO:
            return ""  # an Optional says of what it is one, which its value does too
        raise UnsupportedOperator(f"attribute {attribute.name!r} has a type that is not supported", where=where)

    def _subgraph(self, graph: Any, where: str, path: Path) -> Body:
        if graph.sparse_initializer:
            raise UnsupportedOperator("sparse initializers are not supported", where=where, hint="store them dense")
        names = {tensor.name for tensor in graph.initializer}
        if len(names) != len(graph.initializer):
            raise ModelError("two initializers of a sub-graph have the same name", where=where)
        for tensor in graph.initializer:
            stored = self.stored[*path, "initializer", tensor.name]
            self.initializers[stored.name] = _array(tensor, f"initializer {tensor.name!r}")
        return Body(
            tuple(value.name for value in graph.input if value.name not in names),
            tuple(value.name for value in graph.output),
            self.nodes(graph.node, path),
        )

    def _with_captures(
        self, inputs: tuple[str, ...], attributes: Mapping[str, AttributeValue], path: Path
    ) -> tuple[tuple[str, ...], dict[str, AttributeValue]]:
        """A node's inputs and attributes once all that its sub-graphs read from around them are inputs of the node."""
        outside: dict[str, Mapping[str, str]] = {}
        for key, value in attributes.items():
            if isinstance(value, Body):
                outside[key] = {name: self._outside(name, (*path, key)) for name in _free_names(value)}
        free = dict.fromkeys(name for names in outside.values() for name in names.values())
        places = {name: len(inputs) + position for position, name in enumerate(free)}
        closed = {
            key: replace(value, captured={name: places[outer] for name, outer in outside[key].items()})
            if isinstance(value, Body)
            else value
            for key, value in attributes.items()
        }
        return (*inputs, *free), closed

    def _outside(self, name: str, path: Path) -> str:
        """Returns the outer name of a name that a sub-graph reads and does not make."""
        stored = self.stored.get((*path, "initializer", name))
        return name if stored is None else stored.name


def _free_names(body: Body) -> dict[str, None]:
    """Returns the names that a body reads and does not make, in order."""
    inner = {*body.inputs, *(name for node in body.nodes for name in node.outputs)}
    read = itertools.chain(body.outputs, *(node.inputs for node in body.nodes))
    return {name: None for name in read if name and name not in inner}


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
    if not OLDEST_OPSET <= versions[0] <= OPSETS[-1]:
        raise UnsupportedOperator(_outside(versions[0]), where="model", hint=advice("opset", str(proto.producer_name)))
    return int(versions[0])


def _outside(opset: int) -> str:
    return f"opset {opset} is outside {OLDEST_OPSET} to {OPSETS[-1]}"


def _array(tensor: Any, where: str) -> Array:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as problem:  # malformed tensors raise what NumPy raises
        raise ModelError(f"cannot be read: {problem}", where=where, hint="is the file damaged?") from None


def _input(value: Any) -> SourceInput:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOperator(
            f"is a {kind or 'value without a type'}",
            where=f"input {value.name!r}",
            hint="every model input must be a tensor",
        )
    tensor = value.type.tensor_type
    shape = tuple(_dimension(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return SourceInput(value.name, tensor.elem_type, shape)


def _dimension(dim: Any) -> int | str | None:
    """An extent, a symbol, or None: exporters also write -1, 0 and "?" for an extent that is open, each its own."""
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value) if dim.dim_value > 0 else None
    symbol = str(dim.dim_param).strip() if kind == "dim_param" else ""
    return None if symbol in ("", "?", "-1") else symbol


def _plain(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else str(domain)


def _torch_origin(node: Any, metadata: Mapping[str, str]) -> tuple[str, str, str]:
    """(module path, operator, module class) as far as PyTorch's exporters tell.

    Dynamo writes them into metadata; TorchScript writes the path into the node's name.
    """
    modules = _QUOTED.findall(metadata.get("pkg.torch.onnx.name_scopes", ""))
    if modules:
        # The classes of the modules on the path, then the operator.
        classes = ["", *_QUOTED.findall(metadata.get("pkg.torch.onnx.class_hierarchy", ""))]
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


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ModelError("a text attribute is not UTF-8", where=where) from None

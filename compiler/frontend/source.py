"""The one door to the `onnx` package on the way in: model bytes become plain typed records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.errors import ModelError, UnsupportedOperator
from compiler.frontend.prescan import STANDARD_DOMAINS
from compiler.frontend.torch_record import NO_CALL, TorchCall, TorchRecord, told_by, torch_call, torch_record
from compiler.graph import Array
from compiler.warnings import CompileWarning

OPSETS = range(13, 24)
_QUOTED = re.compile(r"'([^']*)'")
"""The items of a list of names, as Python prints it: how the exporter stores its metadata."""

AttributeValue = int | float | str | Array | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


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
class SourceModel:
    """An ONNX model, parsed and checked for form: single assignment, topological order, standard operators.

    The fields after `record` are what the frontend found out about its initializers before the import.
    """

    opset: int
    nodes: tuple[SourceNode, ...]
    inputs: tuple[SourceInput, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Array]
    producer: str = ""
    record: TorchRecord | None = None
    constants: frozenset[str] = frozenset()
    """Float initializers that are no parameters: buffers, and what an exporter computed."""
    created: frozenset[str] = frozenset()
    """Initializers that the file does not hold because an exporter dropped them."""
    unlearnable: Mapping[str, str] = field(default_factory=dict)
    """Parameter of the author's module -> why it cannot learn from this file."""
    warnings: tuple[CompileWarning, ...] = ()

    def value_names(self) -> set[str]:
        """Every name that a value has."""
        made = (name for node in self.nodes for name in node.outputs if name)
        return {*self.initializers, *(value.name for value in self.inputs), *made}


def free_name(wanted: str, taken: set[str]) -> str:
    """A name that no value has, which is taken from now on: the wanted one, with marks if it takes them."""
    while wanted in taken:
        wanted += "'"
    taken.add(wanted)
    return wanted


def parse_model(model: bytes) -> SourceModel:
    """Parse ONNX bytes that passed `prescan`; model-local functions are expanded.

    Raises: ModelError (not parseable, not in single-assignment form), UnsupportedOperator (opset, control flow).
    """
    proto = _expand_functions(_parse(model))
    opset = _opset(proto)
    graph = proto.graph
    if graph.sparse_initializer:
        raise UnsupportedOperator("sparse initializers are not supported", where="graph", hint="store them dense")
    initializers = {tensor.name: _array(tensor, f"initializer {tensor.name!r}") for tensor in graph.initializer}
    if len(initializers) != len(graph.initializer):
        raise ModelError("two initializers have the same name", where="graph")
    source = SourceModel(
        opset=opset,
        nodes=tuple(_node(node, index) for index, node in enumerate(graph.node)),
        inputs=tuple(_input(value) for value in graph.input if value.name not in initializers),
        outputs=tuple(value.name for value in graph.output),
        initializers=initializers,
        producer=str(proto.producer_name),
        record=torch_record(graph),
    )
    _check_form(source)
    return source


def _parse(model: bytes) -> Any:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as problem:  # protobuf's DecodeError has no stable home across its implementations
        raise ModelError(f"cannot be parsed as ONNX: {problem}", where="model", hint="is the file damaged?") from None
    return proto


def _expand_functions(proto: Any) -> Any:
    if not proto.functions:
        return proto
    from onnx import inliner

    try:
        return inliner.inline_local_functions(proto)
    except Exception as problem:  # the inliner is C++ and raises bare RuntimeErrors
        raise ModelError(f"its functions cannot be expanded: {problem}", where="model") from None


def _opset(proto: Any) -> int:
    versions = [entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS]
    if len(set(versions)) != 1:
        raise ModelError(f"imports {len(versions)} versions of the standard operators, expected 1", where="model")
    if versions[0] not in OPSETS:
        raise UnsupportedOperator(
            f"opset {versions[0]} is outside {OPSETS[0]} to {OPSETS[-1]}",
            where="model",
            hint="export again with opset_version=18, or use onnx.version_converter",
        )
    return int(versions[0])


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


def _node(node: Any, index: int) -> SourceNode:
    name = node.name or f"{node.op_type}_{index}"
    where = f"node {name!r} ({node.op_type})"
    if node.domain not in STANDARD_DOMAINS:
        raise UnsupportedOperator(f"domain {node.domain!r} is not part of the ONNX standard", where=where)
    attributes = {attribute.name: _attribute(attribute, where) for attribute in node.attribute}
    told = told_by(node)
    origin = _torch_origin(node, told)
    return SourceNode(
        name, node.op_type, tuple(node.input), tuple(node.output), attributes, *origin, call=torch_call(told)
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


def _attribute(attribute: Any, where: str) -> AttributeValue:
    kind = onnx.AttributeProto
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
        case kind.GRAPH | kind.GRAPHS:
            raise UnsupportedOperator(
                "control flow (a sub-graph) is not supported",
                where=where,
                hint="export with the branch or loop unrolled, e.g. torch.onnx.export(..., dynamo=True)",
            )
    raise UnsupportedOperator(f"attribute {attribute.name!r} has a type that is not supported", where=where)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ModelError("a text attribute is not UTF-8", where=where) from None


def _check_form(source: SourceModel) -> None:
    """Single assignment in topological order."""
    known = set(source.initializers)
    _define(known, [value.name for value in source.inputs], "graph inputs")
    for node in source.nodes:
        for name in node.inputs:
            if name and name not in known:
                raise ModelError(f"reads {name!r}, which nothing before it makes", where=node.where,
                                 hint="nodes must be in topological order")  # fmt: skip
        _define(known, [name for name in node.outputs if name], node.where)
    _check_outputs(source.outputs, known)


def _define(known: set[str], names: Sequence[str], where: str) -> None:
    for name in names:
        if not name or name in known:
            raise ModelError(f"{name!r} is defined twice" if name else "a value has no name", where=where)
        known.add(name)


def _check_outputs(outputs: Iterable[str], known: set[str]) -> None:
    names = list(outputs)
    if not names:
        raise ModelError("the graph has no output", where="graph")
    for name in names:
        if name not in known:
            raise ModelError("no node makes it", where=f"output {name!r}")
    if len(set(names)) != len(names):
        raise ModelError("an output is listed twice", where="graph")

"""The places where an ONNX file holds tensors: initializers and Constant nodes, of the graph, of sub-graphs and of
functions.

Each gets a name that no other value of the file has. What is read under these names can be written back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.frontend.file.source import free_name

Path = tuple[str | int, ...]
"""The way from a file to a place in it: positions of nodes, names of attributes and initializers."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor (protobuf), the name that it has in the whole file, and the one that nodes beside it read it by."""

    name: str
    local: str
    tensor: Any


def stored_tensors(model: Any) -> Mapping[Path, StoredTensor]:
    """Returns all tensors of a model (protobuf) by their places: those of the graph under the names that the file gives
    them.

    Inside sub-graphs and functions, where other places may use the same name, a name has marks if it takes them.
    """
    graph = model.graph
    used_names = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    used_names |= {name for node in graph.node for name in node.output}
    tensors = {path: StoredTensor(local, local, tensor) for path, local, tensor in _in_graph(graph, (), nested=False)}
    nested = itertools.chain(
        _in_bodies(graph.node, ()),
        *(_in_nodes(function.node, ("functions", number)) for number, function in enumerate(model.functions)),
    )
    for path, local, tensor in nested:
        tensors[path] = StoredTensor(free_name(local, used_names), local, tensor)
    return tensors


def constant_tensor(node: Any) -> Any | None:
    """The tensor (protobuf) of a Constant node; None for another node, and for one that holds plain numbers."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or len(node.output) != 1:
        return None
    (attribute,) = node.attribute
    return attribute.t if attribute.name == "value" and attribute.HasField("t") else None


_Places = Iterator[tuple[Path, str, Any]]


def _in_graph(graph: Any, path: Path, *, nested: bool = True) -> _Places:
    for tensor in graph.initializer:
        yield (*path, "initializer", tensor.name), tensor.name, tensor
    yield from _in_nodes(graph.node, path) if nested else _constants(graph.node, path)


def _in_nodes(nodes: Any, path: Path) -> _Places:
    yield from _constants(nodes, path)
    yield from _in_bodies(nodes, path)


def _constants(nodes: Any, path: Path) -> _Places:
    for position, node in enumerate(nodes):
        tensor = constant_tensor(node)
        if tensor is not None:
            yield (*path, position), node.output[0], tensor


def _in_bodies(nodes: Any, path: Path) -> _Places:
    for position, node in enumerate(nodes):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _in_graph(attribute.g, (*path, position, attribute.name))


def read_inside(model: Any, tensors: Mapping[Path, StoredTensor]) -> Iterator[str]:
    """Names of the tensors that nodes of sub-graphs and functions read."""
    names: dict[Path, dict[str, str]] = {}
    for path, stored in tensors.items():
        scope = path[:-2] if path[-2:-1] == ("initializer",) else path[:-1]
        names.setdefault(scope, {})[stored.local] = stored.name

    def read(nodes: Any, path: Path, around: Mapping[str, str], *, nested: bool) -> Iterator[str]:
        local = {**around, **names.get(path, {})}
        for position, node in enumerate(nodes):
            yield from (local.get(name, name) for name in node.input if nested)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    inner = (*path, position, attribute.name)
                    yield from read(attribute.g.node, inner, local, nested=True)
                    visible = {**local, **names.get(inner, {})}
                    yield from (visible.get(value.name, value.name) for value in attribute.g.output)

    yield from read(model.graph.node, (), {}, nested=False)
    for number, function in enumerate(model.functions):
        yield from read(function.node, ("functions", number), {}, nested=True)

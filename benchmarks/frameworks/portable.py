"""The exported model's forward graph as plain data, for frameworks that build their own function from its operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Operator = Callable[[Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True)
class PortableNode:
    """One operator application; images are NHWC, convolution weights HWIO, matrices [inputs, outputs]."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class PortableGraph:
    """Nodes in order, and the arrays that they read: parameters and constants."""

    nodes: tuple[PortableNode, ...]
    inputs: tuple[str, ...]
    output: str
    parameters: Mapping[str, Array]
    constants: Mapping[str, Array]

    def run(self, operators: Mapping[str, Operator], values: Mapping[str, Any]) -> Any:
        """The output, with `values` holding every input, parameter and constant in the framework's own type."""
        known = dict(values)
        for node in self.nodes:
            known[node.output] = operators[node.op]([known[name] for name in node.inputs], node.attrs)
        return known[self.output]


def load_graph(folder: Path) -> PortableGraph:
    """Read `graph.json`, without the guard against fully masked rows that the exporter puts behind each softmax."""
    body = json.loads((folder / "graph.json").read_text())
    nodes = tuple(PortableNode(n["op"], tuple(n["inputs"]), n["output"], n["attrs"]) for n in body["nodes"])
    arrays = {name: np.load(folder / "arrays" / file) for name, file in body["arrays"].items()}
    parameters = {name: arrays.pop(name) for name in body["parameters"]}
    return PortableGraph(without_guards(nodes), tuple(body["inputs"]), body["output"], parameters, arrays)


def feeds_of(graph: PortableGraph, feed: Callable[[str], Array]) -> tuple[PortableGraph, dict[str, Array]]:
    """The inputs of a batch, an image turned to NHWC once instead of in every step, and the graph that reads it so."""
    feeds = {name: feed(name) for name in graph.inputs}
    kept = []
    for node in graph.nodes:
        if node.op == "transpose" and node.inputs[0] in feeds:
            feeds[node.output] = np.ascontiguousarray(feeds[node.inputs[0]].transpose(node.attrs["perm"]))
        else:
            kept.append(node)
    read = {name for node in kept for name in node.inputs}
    left = PortableGraph(tuple(kept), graph.inputs, graph.output, graph.parameters, graph.constants)
    return left, {name: array for name, array in feeds.items() if name in read}


def without_guards(nodes: Sequence[PortableNode]) -> tuple[PortableNode, ...]:
    """`where(is_nan(x), 0, x)` behind a softmax becomes `x`: no row of these models is fully masked."""
    tested = {node.output: node.inputs[0] for node in nodes if node.op == "is_nan"}
    same: dict[str, str] = {}
    kept = []
    for node in nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        if node.op == "where" and tested.get(inputs[0]) == inputs[2]:
            same[node.output] = inputs[2]
        elif node.op != "is_nan":
            kept.append(PortableNode(node.op, inputs, node.output, node.attrs))
    return tuple(kept)

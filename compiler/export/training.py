"""Exports graphs and whole training steps as ONNX models of standard operators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Literal

from compiler.errors import InternalError
from compiler.export.onnx_model import to_model_proto_bytes
from compiler.graph import Graph, Parameter, TensorType
from compiler.ops import OPERATORS
from compiler.ops.record import OnnxNode
from compiler.step.training import TrainingGraph

Weights = Literal["inputs", "embedded"]


def export_graph(graph: Graph, *, name: str, weights: Weights = "embedded") -> bytes:
    """A graph (forward or any other) as ONNX, with parameters as initializers or as inputs in inside layout."""
    embedded = weights == "embedded"
    state = () if embedded else tuple(graph.parameters)
    return _export(graph, (*graph.inputs, *state), set(state), name, _layouts(graph.parameters))


def export_training(step: TrainingGraph, *, name: str = "training", weights: Weights = "inputs") -> bytes:
    """One training step as ONNX: data, labels, state and hyper-parameters in; loss, logits and new state out.

    Parameters that learn and optimizer state are inputs, and their updated values outputs, so a loop that feeds the
    outputs back trains. Frozen parameters are inputs too, or initializers if `weights` is "embedded". All are in
    inside layout; the metadata holds `updates` (input -> output) and per parameter how the file's layout maps to it.
    """
    graph = step.graph
    known = set(graph.parameters)
    frozen = [parameter for parameter in graph.parameters if parameter not in step.updates]
    learning = [parameter for parameter in graph.parameters if parameter in step.updates]
    state = [*learning, *(frozen if weights == "inputs" else ())]
    inputs = [name for name in graph.inputs if name not in known]
    metadata = {
        **_layouts(graph.parameters),
        "loss": step.loss,
        "logits": step.logits,
        "updates": json.dumps(dict(sorted(step.updates.items()))),
    }
    return _export(graph, (*inputs, *state), set(state), name, metadata)


def _export(
    graph: Graph, inputs: tuple[str, ...], without_array: set[str], name: str, metadata: Mapping[str, str]
) -> bytes:
    outputs = tuple(dict.fromkeys(graph.outputs))
    return to_model_proto_bytes(
        nodes=tuple(_onnx_nodes(graph)),
        inputs=_types(graph, inputs),
        outputs=_types(graph, outputs),
        initializers={label: array for label, array in graph.arrays.items() if label not in without_array},
        name=name,
        metadata=metadata,
    )


def _onnx_nodes(graph: Graph) -> Iterator[OnnxNode]:
    for node in graph.nodes:
        yield from OPERATORS[node.op].to_onnx(node, graph.types)


def _types(graph: Graph, names: tuple[str, ...]) -> dict[str, TensorType]:
    missing = [name for name in names if name not in graph.types]
    if missing:
        raise InternalError(f"value {missing[0]!r} has no type", where="export")
    return {name: graph.types[name] for name in names}


def _layouts(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """Metadata: inside = file.reshape(view_shape).transpose(perm)."""
    return {
        f"layout.{name}": json.dumps(
            {"file_shape": parameter.file_shape, "view_shape": parameter.view_shape, "perm": parameter.perm}
        )
        for name, parameter in parameters.items()
    }

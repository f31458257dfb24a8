"""Exports graphs and whole training steps as ONNX models of standard operators.

Names of values in the exported training graph: the model's values keep theirs, and what we add gives way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from compiler.errors import InternalError
from compiler.export.onnx_model import DataFileWriter, to_model_proto_bytes
from compiler.graph import Array, Graph, Node, Parameter, TensorType
from compiler.ops import OPERATORS
from compiler.ops.record import NamedNode, OnnxNode
from compiler.step.training import TrainingGraph
from compiler.values import Names, Value, name_of


class OnnxNames:
    """An injective map from values, and from texts that stand for steps between them, to ONNX names.

    A value of the model is called as the model calls it. Any other is called as people read it (`labels`,
    `hyper.learning_rate`, `fc.weight'`), with marks at its end if the model has such a name, or another value does.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._taken = set(names.values())
        self._given: dict[Value | str, str] = {}

    def of(self, value: Value) -> str:
        """The name of a value."""
        name = self._names.get(value)
        return name if name is not None else self._free(value, name_of(value, self._names))

    def all_of(self, values: Iterable[Value]) -> tuple[str, ...]:
        """The names of values."""
        return tuple(map(self.of, values))

    def between(self, step: str) -> str:
        """The name of a step, which may be as it is unless it is taken."""
        return self._free(step, step)

    def mapped(self, pairs: Mapping[Value, Value]) -> dict[str, str]:
        """Name to name, sorted."""
        return dict(sorted((self.of(value), self.of(other)) for value, other in pairs.items()))

    def _free(self, key: Value | str, name: str) -> str:
        if key not in self._given:
            while name in self._taken:
                name += "'"
            self._taken.add(name)
            self._given[key] = name
        return self._given[key]


Weights = Literal["inputs", "embedded"]


def export_graph(graph: Graph, *, name: str, weights: Weights = "embedded") -> bytes:
    """A graph (forward or any other) as ONNX, with parameters as initializers or as inputs in inside layout."""
    state = () if weights == "embedded" else tuple(graph.parameters)
    names = OnnxNames(graph.names)
    return _export(graph, names, (*graph.inputs, *state), state, name, _layouts(graph.parameters.values()))


def export_training(step: TrainingGraph, *, name: str = "training", weights: Weights = "inputs") -> bytes:
    """Writes one training step as ONNX, as `training_model` does."""
    return training_model(step, name=name, weights=weights)[0]


def training_model(
    step: TrainingGraph,
    *,
    name: str = "training",
    weights: Weights = "inputs",
    notes: Mapping[str, str] | None = None,
    beside: DataFileWriter | None = None,
) -> tuple[bytes, dict[str, Array]]:
    """Writes one training step as ONNX, and returns with it the state before the first step, by the inputs that read
    it.

    Data, labels, state and hyper-parameters in; loss, logits and new state out. Parameters that learn and optimizer
    state are inputs, and their updated values outputs, so a loop that feeds the outputs back trains. Frozen parameters
    are inputs too, or initializers if `weights` is "embedded": the large ones lie in `beside`, if there is one. All are
    in inside layout. The metadata says which name is which, since ours give way to the model's: `loss`, `logits`,
    `labels` (of several, or of another array than `y`: array -> input); `hyper` (kind -> input), `state` (input ->
    [kind, parameter]), `updates` (input -> output); for each parameter how the file's layout maps to it; and the
    `notes`. A step of several micro-batches is its last one: `accumulators` (input -> parameter) take the sums of the
    others' gradients, which are the updates of `step.accumulation`; with a `mean` over labels, its loss is the
    step's, and two more take the sums of the labels that counted and of what they lost.
    """
    graph, names = step.graph, OnnxNames(step.graph.names)
    frozen = [parameter for parameter in graph.parameters if parameter not in step.updates]
    learning = [parameter for parameter in graph.parameters if parameter in step.updates]
    state = [*learning, *(frozen if weights == "inputs" else ())]
    inputs = [value for value in graph.inputs if value not in graph.parameters]
    metadata = {
        **(notes or {}),
        **_layouts(graph.parameters.values()),
        "loss": names.of(step.loss),
        "logits": names.of(step.logits),
        "labels": _label_inputs(step, names),
        "hyper": json.dumps({value.kind: names.of(value) for value in step.hyper}),
        "state": json.dumps(
            {names.of(value): [value.kind, names.of(of)] for value, of in step.optimizer_state.items()}, sort_keys=True
        ),
        "updates": json.dumps(names.mapped(step.updates)),
    }
    if step.accumulators:
        of_parameters = {names.of(value): names.of(of) for value, of in step.accumulators.items()}
        metadata["accumulators"] = json.dumps(of_parameters, sort_keys=True)
        metadata["mean"] = "labels" if step.is_mean_of_labels else "micro_batches"
    model = _export(graph, names, (*inputs, *state), state, name, metadata, beside)
    state_arrays = {names.of(value): np.asarray(graph.arrays[value]) for value in state}
    zeros = {names.of(value): _type(graph, value) for value in step.optimizer_state}
    return model, {
        **state_arrays,
        **{input_name: np.zeros(tensor.shape, tensor.element.numpy) for input_name, tensor in zeros.items()},
    }


def _label_inputs(step: TrainingGraph, names: OnnxNames) -> str:
    if step.plain_labels:
        return names.of(step.labels)
    return json.dumps({array: names.of(value) for value, array in step.label_arrays.items()})


def _export(
    graph: Graph,
    names: OnnxNames,
    inputs: Sequence[Value],
    without_array: Collection[Value],
    name: str,
    metadata: Mapping[str, str],
    beside: DataFileWriter | None = None,
) -> bytes:
    ends = {value: names.of(value) for value in (*inputs, *graph.outputs)}
    return to_model_proto_bytes(
        nodes=tuple(_onnx_nodes(graph, names)),
        inputs={ends[value]: _type(graph, value) for value in inputs},
        outputs={ends[value]: _type(graph, value) for value in dict.fromkeys(graph.outputs)},
        initializers={names.of(value): array for value, array in graph.arrays.items() if value not in without_array},
        name=name,
        metadata=metadata,
        beside=beside,
    )


def _onnx_nodes(graph: Graph, names: OnnxNames) -> Iterator[OnnxNode]:
    """Written with the values' own texts, which no step in between can have, and named when all are there."""
    types = {str(value): tensor for value, tensor in graph.types.items()}
    values = {str(value): value for value in graph.types}

    def named(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.of(values[text]) if text in values else text and names.between(text) for text in texts)

    for node in graph.nodes:
        for onnx_node in OPERATORS[node.op].to_onnx(_in_texts(node), types):
            yield replace(onnx_node, inputs=named(onnx_node.inputs), outputs=named(onnx_node.outputs))


def _in_texts(node: Node) -> NamedNode:
    return NamedNode(node.op, tuple(map(str, node.inputs)), tuple(map(str, node.outputs)), node.attrs)


def _type(graph: Graph, value: Value) -> TensorType:
    if value not in graph.types:
        raise InternalError(f"value {value} has no type", where="export")
    return graph.types[value]


def _layouts(parameters: Collection[Parameter]) -> dict[str, str]:
    """Metadata: inside = file.reshape(view_shape).transpose(perm), then take(orders[axis], axis) where one is given."""
    return {f"layout.{parameter.name}": json.dumps(_layout(parameter)) for parameter in parameters}


def _layout(parameter: Parameter) -> dict[str, object]:
    layout: dict[str, object] = {
        "file_shape": parameter.file_shape,
        "view_shape": parameter.view_shape,
        "perm": parameter.perm,
    }
    return {**layout, "orders": parameter.orders} if parameter.orders else layout

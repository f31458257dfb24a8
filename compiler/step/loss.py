"""The loss: what is measured of the model's output, against which labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.errors import SpecError
from compiler.graph import Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import LossSpec
from compiler.step.classes import class_axis
from compiler.step.training import TrainingGraph
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of


def attach_loss(graph: Graph, spec: LossSpec) -> TrainingGraph:
    """Add the labels input and the mean loss over the logits.

    Shapes: logits [..., V]; labels i64 [...] for cross-entropy (negative ones are ignored), f32 [..., V] for mse. The
    classes V are in the last axis, or in the one that the spec names.
    What is assumed of the output is added to the graph's warnings.
    Raises: SpecError if the named output does not exist or does not fit the loss.
    """
    logits = _logits(graph, spec)
    tensor = graph.types[logits]
    b = GraphBuilder(graph)
    b.layer = "loss"
    labels = b.fresh("labels")
    warnings = _assumed_output(graph, spec)
    axis = None
    if spec.kind == "cross_entropy":
        axis, said = class_axis(graph, logits, spec)
        warnings += said
        b.types[labels] = TensorType("i64", (*tensor.shape[:axis], *tensor.shape[axis + 1 :]))
        loss = _cross_entropy(b, _classes_last(b, logits, axis), labels)
    else:
        b.types[labels] = TensorType("f32", tensor.shape)
        loss = _mean_squared_error(b, logits, labels)
    whole = replace(
        b.graph_of(graph),
        inputs=(*graph.inputs, labels),
        outputs=(loss, logits),
        warnings=graph.warnings + warnings,
    )
    data = graph.data_inputs()
    hyper = tuple(value for value in graph.inputs if value not in data)
    return TrainingGraph(whole, loss, logits, labels, data, spec.kind, axis, hyper=hyper)


def _assumed_output(graph: Graph, spec: LossSpec) -> tuple[CompileWarning, ...]:
    if spec.output or len(graph.outputs) == 1:
        return ()
    first, *others = map(graph.name_of, graph.outputs)
    message = f"the loss reads the model's first output, {first!r}; the others are not used: {few_of(others)}"
    return (CompileWarning("loss.output_assumed", "spec.loss.output", message, f"say loss: {{output: {first}}}"),)


def _logits(graph: Graph, spec: LossSpec) -> Value:
    if not spec.output:
        return graph.outputs[0]
    outputs = {graph.name_of(value): value for value in graph.outputs}
    if spec.output not in outputs:
        raise SpecError(
            f"the model has no output {spec.output!r}",
            where="spec.loss.output",
            hint=f"outputs: {', '.join(outputs)}",
        )
    return outputs[spec.output]


def _classes_last(b: GraphBuilder, logits: Value, axis: int) -> Value:
    rank = len(b.shape(logits))
    if axis == rank - 1:
        return logits
    return b.emit("transpose", logits, perm=(*range(axis), *range(axis + 1, rank), axis))


def _cross_entropy(b: GraphBuilder, logits: Value, labels: Value) -> Value:
    rows = b.emit("cross_entropy", logits, labels)
    axes = tuple(range(len(b.shape(rows))))
    zero = b.constant(np.asarray(0, np.int64))
    counted = b.emit("cast", b.emit("less_equal", zero, labels), to="f32")
    count = b.emit("maximum", b.emit("reduce_sum", counted, axes=axes, keepdims=False), b.constant(1.0))
    total = b.emit("reduce_sum", rows, axes=axes, keepdims=False)
    return b.emit("div", total, count, output=b.fresh("loss"))


def _mean_squared_error(b: GraphBuilder, logits: Value, labels: Value) -> Value:
    error = b.emit("sub", logits, labels)
    axes = tuple(range(len(b.shape(error))))
    return b.emit("reduce_mean", b.emit("mul", error, error), axes=axes, keepdims=False, output=b.fresh("loss"))

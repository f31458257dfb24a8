"""The training graph: a forward graph with its loss, gradients and updates, and what its values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from compiler.errors import SpecError
from compiler.graph import Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import LossSpec, OptimizerSpec
from compiler.step.class_axis import axis_source
from compiler.warnings import CompileWarning, few_of

LABELS = "labels"
HYPER = "hyper."
OPTIMIZER = "optimizer."


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A graph whose outputs are the loss, the logits and the updated state.

    `updates` maps a parameter or optimizer-state value to the value that replaces it after the step;
    `optimizer_state` maps each optimizer-state value (a graph input without data) to its parameter.
    """

    graph: Graph
    loss: str
    logits: str
    data_inputs: tuple[str, ...]
    loss_kind: Literal["cross_entropy", "mse"]
    gradients: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    optimizer_state: Mapping[str, str] = field(default_factory=dict)
    hyper: tuple[str, ...] = ()

    def with_graph(self, graph: Graph) -> TrainingGraph:
        """The same training step with a rewritten graph."""
        return replace(self, graph=graph)


def attach_loss(graph: Graph, spec: LossSpec) -> TrainingGraph:
    """Add the labels input and the mean loss over the logits.

    Shapes: logits [..., V]; labels i64 [...] for cross-entropy (negative ones are ignored), f32 [..., V] for mse.
    What is assumed of the output is added to the graph's warnings.
    Raises: SpecError if the named output does not exist or does not fit the loss.
    """
    logits = _logits(graph, spec)
    tensor = graph.types[logits]
    b = GraphBuilder(graph)
    b.layer = "loss"
    if LABELS in b.types:
        raise SpecError(f"the model already has a value called {LABELS!r}", where="spec.loss")
    warnings = _assumed_output(graph, spec)
    if spec.kind == "cross_entropy":
        warnings += _check_classes(graph, logits)
        b.types[LABELS] = TensorType("i64", tensor.shape[:-1])
        loss = _cross_entropy(b, logits)
    else:
        b.types[LABELS] = TensorType("f32", tensor.shape)
        loss = _mean_squared_error(b, logits)
    whole = replace(
        graph,
        nodes=tuple(b.nodes),
        inputs=(*graph.inputs, LABELS),
        outputs=(loss, logits),
        types=b.types,
        arrays=b.arrays,
        warnings=graph.warnings + warnings,
    )
    return TrainingGraph(whole, loss, logits, graph.inputs, spec.kind)


def _assumed_output(graph: Graph, spec: LossSpec) -> tuple[CompileWarning, ...]:
    if spec.output or len(graph.outputs) == 1:
        return ()
    first, *others = graph.outputs
    message = f"the loss reads the model's first output, {first!r}; the others are not used: {few_of(others)}"
    return (CompileWarning("loss.output_assumed", "spec.loss.output", message, f"say loss: {{output: {first}}}"),)


def _check_classes(graph: Graph, logits: str) -> tuple[CompileWarning, ...]:
    """Cross-entropy is over the last axis. Raises: SpecError if that cannot be the classes."""
    tensor, where = graph.types[logits], "spec.loss.output"
    if len(tensor.shape) < 2:
        raise SpecError(f"cross-entropy needs logits of rank 2 or more, {logits} is {tensor}", where=where)
    if tensor.shape[-1] == 1:
        raise SpecError(
            f"cross-entropy is over the last axis, and {logits}, {tensor}, has 1 class there: its loss is always 0",
            where=where,
            hint="use kind: mse, or an output with a column for each class",
        )
    if len(tensor.shape) == 2 or axis_source(graph, logits, len(tensor.shape) - 1) == "layer":
        return ()
    if axis_source(graph, logits, 1) == "layer":
        turned = ", ".join(map(str, (0, *range(2, len(tensor.shape)), 1)))
        raise SpecError(
            f"cross-entropy is over the last axis, but the layers put the classes of {logits}, {tensor}, in axis 1",
            where=where,
            hint=f"let the model end with logits.permute({turned}), and give labels without that axis",
        )
    return (
        CompileWarning(
            "loss.class_axis_assumed",
            where,
            f"the last axis of {logits}, {tensor}, is taken as its {tensor.shape[-1]} classes; the graph does not tell",
            "let the model's output have the classes last",
        ),
    )


def _logits(graph: Graph, spec: LossSpec) -> str:
    if not spec.output:
        return graph.outputs[0]
    if spec.output not in graph.outputs:
        raise SpecError(
            f"the model has no output {spec.output!r}",
            where="spec.loss.output",
            hint=f"outputs: {', '.join(graph.outputs)}",
        )
    return spec.output


def _cross_entropy(b: GraphBuilder, logits: str) -> str:
    rows = b.emit("cross_entropy", logits, LABELS)
    axes = tuple(range(len(b.shape(rows))))
    zero = b.constant(np.asarray(0, np.int64))
    counted = b.emit("cast", b.emit("less_equal", zero, LABELS), to="f32")
    count = b.emit("maximum", b.emit("reduce_sum", counted, axes=axes, keepdims=False), b.constant(1.0))
    total = b.emit("reduce_sum", rows, axes=axes, keepdims=False)
    return b.emit("div", total, count, name="loss")


def _mean_squared_error(b: GraphBuilder, logits: str) -> str:
    error = b.emit("sub", logits, LABELS)
    axes = tuple(range(len(b.shape(error))))
    return b.emit("reduce_mean", b.emit("mul", error, error), axes=axes, keepdims=False, name="loss")


def add_optimizer(step: TrainingGraph, spec: OptimizerSpec, slices: Mapping[str, tuple[int, int]]) -> TrainingGraph:
    """Add one update node per gradient, and the optimizer state it needs.

    `slices[parameter]` is (axis, start), axis -1 for the whole tensor.
    State is named `optimizer.<momentum|exp_avg|exp_avg_sq>.<parameter>` and has the gradient's shape.
    """
    b = GraphBuilder(step.graph)
    b.phase = "update"
    hyper = [HYPER + "learning_rate"]
    if spec.kind == "adamw":
        hyper += [HYPER + "bias_correction_1", HYPER + "bias_correction_2_sqrt"]
    b.types.update({name: TensorType("f32", ()) for name in hyper})
    states: dict[str, str] = {}
    updates: dict[str, str] = {}
    for parameter, gradient in step.gradients.items():
        b.layer, b.parameter = step.graph.parameters[parameter].layer, parameter
        own = [f"{OPTIMIZER}{kind}.{parameter}" for kind in _state_kinds(spec)]
        b.types.update(dict.fromkeys(own, b.types[gradient]))
        states.update(dict.fromkeys(own, parameter))
        axis, start = slices[parameter]
        replaced = (parameter, *own)
        fresh = tuple(f"{name}'" for name in replaced)
        operands = (parameter, gradient, *own, *hyper)
        b.emit_many(f"{spec.kind}_update", operands, names=fresh, axis=axis, start=start, **_settings(spec))
        updates.update(zip(replaced, fresh, strict=True))
    graph = replace(
        step.graph,
        nodes=tuple(b.nodes),
        types=b.types,
        arrays=b.arrays,
        inputs=(*step.graph.inputs, *hyper, *states),
        outputs=(step.loss, step.logits, *updates.values()),
    )
    return replace(step, graph=graph, updates=updates, optimizer_state=states, hyper=tuple(hyper))


def _state_kinds(spec: OptimizerSpec) -> tuple[str, ...]:
    if spec.kind == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum",) if spec.momentum else ()


def _settings(spec: OptimizerSpec) -> dict[str, Any]:
    if spec.kind == "adamw":
        return {name: getattr(spec, name) for name in ("beta1", "beta2", "eps", "weight_decay")}
    return {"momentum": spec.momentum, "weight_decay": spec.weight_decay}

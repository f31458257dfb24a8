"""The optimizer as nodes of the graph: one update for each gradient, and the state that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from compiler.graph import TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import OptimizerSpec
from compiler.step.plan import UpdatePlan
from compiler.step.training import TrainingGraph
from compiler.values import StateKind, Value

HYPER_KINDS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("learning_rate",),
    "adamw": ("learning_rate", "bias_correction_1", "bias_correction_2_sqrt"),
}
"""The numbers that an optimizer is fed at every step (see `compiler.ops.optimizer`)."""


def add_optimizer(step: TrainingGraph, spec: OptimizerSpec, plan: UpdatePlan) -> TrainingGraph:
    """Add one update node per gradient, and the optimizer state it needs.

    State has the gradient's shape: that of the slice which learns.
    """
    b = GraphBuilder(step.graph)
    b.phase = "update"
    hyper = tuple(b.fresh("hyper", kind) for kind in HYPER_KINDS[spec.kind])
    b.types.update(dict.fromkeys(hyper, TensorType("f32", ())))
    states: dict[Value, Value] = {}
    updates: dict[Value, Value] = dict(step.updates)
    for parameter, gradient in step.gradients.items():
        known = step.graph.parameters[parameter]
        b.layer, b.parameter = known.layer, known.name
        own = [parameter.state(kind) for kind in _state_kinds(spec)]
        b.types.update(dict.fromkeys(own, b.types[gradient]))
        states.update(dict.fromkeys(own, parameter))
        part = plan[parameter]
        replaced = (parameter, *own)
        updated = tuple(value.updated() for value in replaced)
        operands = (parameter, gradient, *own, *hyper)
        b.emit_many(
            f"{spec.kind}_update", operands, outputs=updated, axis=part.axis, start=part.start, **_settings(spec)
        )
        updates.update(zip(replaced, updated, strict=True))
    graph = replace(
        b.graph_of(step.graph),
        inputs=(*step.graph.inputs, *hyper, *states),
        outputs=(*step.results, *updates.values()),
    )
    return replace(step, graph=graph, updates=updates, optimizer_state=states, hyper=(*step.hyper, *hyper))


def _state_kinds(spec: OptimizerSpec) -> tuple[StateKind, ...]:
    if spec.kind == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum",) if spec.momentum else ()


def _settings(spec: OptimizerSpec) -> dict[str, Any]:
    if spec.kind == "adamw":
        return {name: getattr(spec, name) for name in ("beta1", "beta2", "eps", "weight_decay")}
    return {"momentum": spec.momentum, "weight_decay": spec.weight_decay}

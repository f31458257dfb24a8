"""The optimizer as nodes of the graph: one update for each gradient, and the state that it keeps.

Which settings of the optimizer each parameter has: the optimizer's own, or those of the last group that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from compiler.channels.slices import UpdateSlice
from compiler.errors import SpecError
from compiler.graph import AttrValue, Graph, Parameter, TensorType
from compiler.naming import Comparisons
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.optimizer import GroupKind, OptimizerKind, OptimizerSpec, ParameterGroup
from compiler.step import adafactor
from compiler.step.clipping import clip, clip_warnings
from compiler.step.plan import UpdatePlan
from compiler.step.planning.selection import near_parameters
from compiler.step.training import TrainingGraph
from compiler.values import StateKind, Value
from compiler.warnings import CompileWarning, few_of


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that may differ between parameters."""

    weight_decay: float
    factor: float = 1.0
    """A factor of the learning rate."""


def settings_of(graph: Graph, spec: OptimizerSpec, learning: Collection[Value]) -> Mapping[Value, Settings]:
    """The settings of every parameter that learns.

    Raises: SpecError for a group, or one of its names, that matches no parameter of the model (with near names), and
    for more comparisons of names than `compiler.step.planning.names` allows.
    """
    compared = Comparisons(SpecError)
    settings = dict.fromkeys(learning, Settings(spec.weight_decay))
    names = {graph.parameters[value].name: value for value in learning}
    for position, group in enumerate(spec.groups):
        for name in _members(graph, group, compared, f"spec.optimizer.groups[{position}]"):
            if name in names:
                settings[names[name]] = _with(settings[names[name]], group)
    return settings


def group_warnings(graph: Graph, spec: OptimizerSpec, learning: Collection[Value]) -> tuple[CompileWarning, ...]:
    """Groups of parameters that all stay as they are."""
    names = {graph.parameters[value].name for value in learning}
    warnings, compared = [], Comparisons(SpecError)
    for position, group in enumerate(spec.groups):
        where = f"spec.optimizer.groups[{position}]"
        members = _members(graph, group, compared, where)
        if names.isdisjoint(members):
            message = f"none of its {len(members)} parameters learns: {few_of(members)}"
            hint = "the plan freezes them; leave the group out, or let them learn"
            warnings.append(CompileWarning("optimizer.group_frozen", where, message, hint))
    return tuple(warnings)


def _with(before: Settings, group: ParameterGroup) -> Settings:
    decay, factor = group.weight_decay, group.learning_rate_factor
    return Settings(before.weight_decay if decay is None else decay, before.factor if factor is None else factor)


def _members(graph: Graph, group: ParameterGroup, compared: Comparisons, where: str) -> list[str]:
    parameters = graph.named_parameters()
    members: dict[str, None] = {}
    for pattern in dict.fromkeys(group.parameters):
        matched = compared.matching(pattern, parameters, where)
        group_members = [name for name in matched if _is(parameters[name], group.kind)]
        if not group_members:
            raise SpecError(_no_match(pattern, group, len(matched)), where=where, hint=near_parameters(graph, pattern))
        members.update(dict.fromkeys(group_members))
    return list(members)


def _is(parameter: Parameter, kind: GroupKind) -> bool:
    if kind == "vector":
        return len(parameter.file_shape) <= 1
    return kind in ("any", parameter.kind)


def _no_match(pattern: str, group: ParameterGroup, matched: int) -> str:
    if matched:
        return f"{pattern!r} matches {matched} parameters, none of kind {group.kind}"
    return f"no parameter is called {pattern!r}"


_ADAM = ("learning_rate", "bias_correction_1", "bias_correction_2_sqrt")
HYPER_KINDS: Mapping[OptimizerKind, tuple[str, ...]] = {
    "sgd": ("learning_rate",),
    "adamw": _ADAM,
    "adam": _ADAM,
    "adafactor": ("learning_rate", "fresh_share", "inverse_root_step"),
    "lion": ("learning_rate",),
}
"""The numbers that an optimizer is fed at every step; `compiler.step.hyper` says what they are at step t."""


def add_optimizer(step: TrainingGraph, spec: OptimizerSpec, plan: UpdatePlan) -> TrainingGraph:
    """Adds one update per gradient, and the optimizer state it needs.

    State has the gradient's shape, that of the slice which learns, or that of means of it over an axis.
    Raises: SpecError for a group that matches nothing, or a field that needs another.
    """
    _check(spec)
    settings = settings_of(step.graph, spec, step.gradients)
    b = GraphBuilder(step.graph)
    b.phase = "update"
    hyper = tuple(b.fresh("hyper", kind) for kind in HYPER_KINDS[spec.kind])
    b.types.update(dict.fromkeys(hyper, TensorType("f32", ())))
    gradients, warnings = step.gradients, group_warnings(step.graph, spec, step.gradients)
    if spec.clip_norm is not None:
        b.layer = "clip_norm"
        warnings += clip_warnings([b.types[gradient] for gradient in gradients.values()])
        gradients = clip(b, gradients, spec.clip_norm)
    rates = {
        factor: _rate(b, hyper[0], factor) for factor in dict.fromkeys(setting.factor for setting in settings.values())
    }
    states: dict[Value, Value] = {}
    updates: dict[Value, Value] = dict(step.updates)
    for parameter, gradient in gradients.items():
        details = step.graph.parameters[parameter]
        b.layer, b.parameter = details.layer, details.name
        setting = settings[parameter]
        update = _Update(parameter, gradient, plan[parameter], setting, (rates[setting.factor], *hyper[1:]))
        updated = _adafactor(b, step, update, spec) if spec.kind == "adafactor" else _elementwise(b, update, spec)
        updates.update(updated)
        states.update({value: parameter for value in updated if value != parameter})
    graph = replace(
        b.graph_of(step.graph),
        inputs=(*step.graph.inputs, *hyper, *states),
        outputs=(*step.results, *updates.values()),
        warnings=(*step.graph.warnings, *warnings),
    )
    return replace(
        step,
        graph=graph,
        updates=updates,
        optimizer_state={**step.optimizer_state, **states},
        hyper=(*step.hyper, *hyper),
    )


@dataclass(frozen=True, slots=True)
class _Update:
    """The update of one parameter: its gradient, the part of it that learns, and the numbers of the step, the learning
    rate first.
    """

    parameter: Value
    gradient: Value
    part: UpdateSlice
    settings: Settings
    hyper: tuple[Value, ...]


def _check(spec: OptimizerSpec) -> None:
    if spec.nesterov and not spec.momentum:
        hint = "set momentum, such as 0.9"
        message = "Nesterov's is a kind of momentum, and there is none"
        raise SpecError(message, where="spec.optimizer.nesterov", hint=hint)


def _rate(b: GraphBuilder, rate: Value, factor: float) -> Value:
    return rate if factor == 1 else b.emit("mul", rate, b.constant(factor))


def _adafactor(b: GraphBuilder, step: TrainingGraph, update: _Update, spec: OptimizerSpec) -> Mapping[Value, Value]:
    parameter, rates = step.graph.parameters[update.parameter], adafactor.Rates(*update.hyper)
    decay = update.settings.weight_decay
    return adafactor.update(b, update.parameter, parameter, update.gradient, update.part, rates, spec, decay)


def _elementwise(b: GraphBuilder, update: _Update, spec: OptimizerSpec) -> Mapping[Value, Value]:
    """Adds one node, whose state has the gradient's shape."""
    state = [update.parameter.state(kind) for kind in _state_kinds(spec)]
    b.types.update(dict.fromkeys(state, b.types[update.gradient]))
    replaced = (update.parameter, *state)
    updated = tuple(value.updated() for value in replaced)
    b.emit_many(
        "nesterov_update" if spec.nesterov else f"{spec.kind}_update",
        (update.parameter, update.gradient, *state, *update.hyper),
        outputs=updated,
        axis=update.part.axis,
        start=update.part.start,
        **_numbers(spec),
        weight_decay=update.settings.weight_decay,
    )
    return dict(zip(replaced, updated, strict=True))


def _state_kinds(spec: OptimizerSpec) -> tuple[StateKind, ...]:
    if spec.kind in ("adam", "adamw"):
        return ("exp_avg", "exp_avg_sq")
    return ("exp_avg",) if spec.kind == "lion" else ("momentum",) if spec.momentum else ()


def _numbers(spec: OptimizerSpec) -> Mapping[str, AttrValue]:
    names = {"sgd": ("momentum",), "lion": ("beta1", "beta2")}.get(spec.kind, ("beta1", "beta2", "eps"))
    return {name: getattr(spec, name) for name in names}

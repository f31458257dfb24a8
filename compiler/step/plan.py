"""Resolves a sparse plan against a model: exactly which slices of which parameters learn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.channels.orders import is_run
from compiler.channels.slices import WHOLE, UpdateSlice
from compiler.errors import PlanError
from compiler.graph import Graph, Parameter
from compiler.spec.documents import SparsePlan, UpdateRule
from compiler.step.planning.layers import Reach, idle_biases, layers_of
from compiler.step.planning.names import Named
from compiler.step.planning.presets import preset_selections
from compiler.step.planning.selection import chosen_by, near_parameters, selected_by, some_names
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

UpdatePlan = Mapping[Value, UpdateSlice]
"""Parameter -> what learns of it, in the model's order; parameters that do not appear are frozen."""


@dataclass(slots=True)
class _PlanRequest:
    """The requests of a plan: by parameter the rule that decides."""

    rules: dict[str, UpdateRule] = field(default_factory=dict)
    """Rules of the parameters that learn."""
    fixed: dict[str, None] = field(default_factory=dict)
    """Parameters that a preset leaves alone, since their elements are no weights."""
    by_preset: dict[str, bool] = field(default_factory=dict)
    """Whether it was the preset that let them."""
    unlearnable: dict[str, str] = field(default_factory=dict)
    """The parameters that cannot learn, with the place where the plan names them."""
    left_out: list[str] = field(default_factory=list)
    """Parameters that the preset would let learn, and that the loss does not reach."""
    frozen: list[str] = field(default_factory=list)
    """Parameters that would learn if the plan's `frozen` did not say otherwise."""
    cannot: list[str] = field(default_factory=list)
    """Parameters that the preset would let learn, and that this file does not."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The meaning of a plan for a model, and the warnings about it."""

    updates: UpdatePlan
    warnings: tuple[CompileWarning, ...] = ()


def decide_plan(graph: Graph, plan: SparsePlan, reach: Reach | None = None) -> Decided:
    """Applies the plan's preset and rules to the model's parameters; `reach` is what the loss depends on, if known.

    Raises: PlanError naming the rule that matches nothing (with near names), or a plan that trains nothing, or whose
    patterns times the model's names are above a limit.
    """
    model = Named(graph, PlanError)
    request = _request(model, plan, reach)
    by_channel = chosen_by(graph, plan.rules, request.rules)
    chosen = {
        value: _part(graph.parameters[value].shape[axis], axis, channels)
        for value, (axis, channels) in by_channel.chosen.items()
    }
    learning = {
        value: chosen.get(value) or _slice(parameter, request.rules[parameter.name])
        for value, parameter in graph.parameters.items()
        if parameter.may_learn and parameter.name in request.rules
    }
    if not learning and plan.lora is None:
        raise _trains_nothing(graph, plan, request)
    odd = (*_odd_parts(graph, request, chosen), *by_channel.warnings)
    idle = (*_idle_frozen(model, plan), *idle_biases(graph, request.rules))
    return Decided(learning, (*_left_out(graph, plan, request), *odd, *idle))


def resolve_plan(graph: Graph, plan: SparsePlan, reach: Reach | None = None) -> UpdatePlan:
    """`decide_plan` for who is told no warnings."""
    return decide_plan(graph, plan, reach).updates


def _trains_nothing(graph: Graph, plan: SparsePlan, request: _PlanRequest) -> PlanError:
    if request.frozen:
        return PlanError(
            f"`frozen` freezes all {len(request.frozen)} parameters that plan {plan.name!r} lets learn: "
            f"{few_of(request.frozen)}",
            where="plan.frozen",
            hint="leave out what is to learn; it overrides preset and rules",
        )
    if request.fixed:
        reason = next(parameter.fixed for parameter in graph.parameters.values() if parameter.name in request.fixed)
        return PlanError(
            f"plan {plan.name!r} trains nothing: its preset leaves out {few_of([*request.fixed])}: {reason}",
            where="plan",
            hint="a rule that names them lets them learn, as in update: [{parameters: NAME}]",
        )
    in_eight_bits = next((warning for warning in graph.warnings if warning.code == "model.eight_bits"), None)
    if not graph.named_parameters() and in_eight_bits is not None:
        problem = f"plan {plan.name!r} trains nothing: {in_eight_bits.message}"
        return PlanError(problem, where="plan", hint=in_eight_bits.hint)
    if not graph.named_parameters():
        return PlanError(
            f"plan {plan.name!r} trains nothing: there is no parameter in this model that could learn",
            where="plan",
            hint="export the module with its parameters: export_params=True, and layers that have weights",
        )
    return PlanError(
        f"plan {plan.name!r} trains nothing in this model",
        where="plan",
        hint=f"the model has {len(graph.named_parameters())} parameters, such as {some_names(graph)}",
    )


def _odd_parts(graph: Graph, request: _PlanRequest, of_value: Mapping[Value, UpdateSlice]) -> Sequence[CompileWarning]:
    """Warns where a ratio below 1, or a choice of channels, still trains the whole parameter."""
    parameters = graph.named_parameters()
    parts = {name: rule for name, rule in request.rules.items() if rule.ratio < 1}
    whole = [parameters[name] for name, rule in parts.items() if _slice(parameters[name], rule).is_whole]
    without = [parameter.name for parameter in whole if parameter.channel_axis is None]
    rounded = [parameter.name for parameter in whole if parameter.channel_axis is not None]
    chosen = {graph.parameters[value].name: part for value, part in of_value.items()}
    rounded += [name for name, part in chosen.items() if part.is_whole]
    lacking = [name for name, rule in request.rules.items() if rule.channels is not None and name not in chosen]
    warnings = []
    if without:
        message = (
            f"{len(without)} parameters have a ratio below 1 but no input channels of their own (biases, norms, "
            f"tables, shared weights), so all of each learns: {few_of(without)}"
        )
        hint = "a kind: weight in the rule leaves biases out; ratio: 0 freezes a parameter"
        warnings.append(CompileWarning("plan.ratio_without_channels", "plan.update", message, hint))
    if lacking:
        which = few_of(lacking)
        message = f"{len(lacking)} parameters have no axis of the channels chosen, so all of each learns: {which}"
        hint = "a kind: weight in the rule leaves biases out; a later rule with ratio: 0 freezes a parameter"
        warnings.append(CompileWarning("plan.channels_without_axis", "plan.update", message, hint))
    if rounded:
        message = f"{len(rounded)} parameters have so few channels that the ratio rounds up to all: {few_of(rounded)}"
        warnings.append(CompileWarning("plan.ratio_rounded", "plan.update", message, "give a smaller ratio"))
    return warnings


def _idle_frozen(model: Named, plan: SparsePlan) -> Sequence[CompileWarning]:
    """Entries of `frozen` that freeze nothing: a misspelt one lets learn what it was to keep."""
    graph = model.graph
    norms = {name for norm in graph.origins.norms for name in (norm.scale, norm.shift)}
    names = dict.fromkeys((*_may_be_frozen(model).values(), *graph.buffers(), *norms))  # which stay as they are
    idle = [
        pattern for pattern in dict.fromkeys(plan.frozen) if not model.compared.matching(pattern, names, "plan.frozen")
    ]
    if not idle:
        return ()
    message = f"{len(idle)} entries match no parameter of this model, and freeze nothing: {few_of(idle)}"
    return (CompileWarning("plan.frozen_unmatched", "plan.frozen", message, near_parameters(graph, idle[0])),)


def _left_out(graph: Graph, plan: SparsePlan, request: _PlanRequest) -> Sequence[CompileWarning]:
    warnings = []
    if request.left_out:
        message = f"preset {plan.preset} leaves out what the loss does not depend on: {few_of(request.left_out)}"
        hint = "name an output that they feed in the spec's loss, if they are to learn"
        warnings.append(CompileWarning("plan.left_out", "plan.preset", message, hint))
    warnings += _of_fixed(graph, plan, request)
    if request.cannot:
        first = graph.unlearnable[request.cannot[0]]
        message = f"preset {plan.preset} leaves out {few_of(request.cannot)}, which cannot learn: {first.reason}"
        warnings.append(CompileWarning("plan.cannot_learn", "plan.preset", message, first.remedy))
    return warnings


def _of_fixed(graph: Graph, plan: SparsePlan, request: _PlanRequest) -> Iterator[CompileWarning]:
    """Warns about numbers that are no weights: those that stay, and those that a rule lets learn."""
    reasons = {parameter.name: parameter.fixed for parameter in graph.parameters.values() if parameter.fixed}
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in request.fixed if reasons[name] == reason and name not in request.rules]
        if names:
            message = f"preset {plan.preset} leaves out {few_of(names)}: {reason}"
            yield CompileWarning("plan.fixed_numbers", "plan.preset", message, "a rule that names it lets it learn")
        names = [name for name in request.rules if reasons.get(name) == reason]
        if names:
            message = f"{few_of(names)}: {reason}; the plan lets it learn"
            yield CompileWarning(
                "plan.fixed_numbers_learn", "plan.update", message, "freeze it by a rule with ratio: 0"
            )


def _request(model: Named, plan: SparsePlan, reach: Reach | None) -> _PlanRequest:
    """Raises: PlanError."""
    graph = model.graph
    request, layers = _PlanRequest(), layers_of(graph)
    values = {parameter.name: value for value, parameter in graph.parameters.items()}
    for rule, names in preset_selections(model, plan, layers, reach):
        for name in names:
            if name in values and graph.parameters[values[name]].fixed:
                request.fixed.setdefault(name, None)
            else:
                _decide(request, name, rule, "plan.preset" if name in graph.unlearnable else "", by_preset=True)
    for position, rule in enumerate(plan.rules):
        where = f"plan.update[{position}]"
        for name in selected_by(model, rule, layers, where):
            _decide(request, name, rule, where if name in graph.unlearnable else "", by_preset=False)
    for name in _frozen(model, plan):
        if request.rules.pop(name, None) is not None:
            request.frozen.append(name)
        request.unlearnable.pop(name, None)
    request.cannot = [name for name, where in request.unlearnable.items() if where == "plan.preset"]
    _refuse(graph, {name: where for name, where in request.unlearnable.items() if where != "plan.preset"})
    if not request.rules:
        _refuse(graph, request.unlearnable)
    request.left_out = [
        name for name in request.rules if request.by_preset[name] and reach is not None and values[name] not in reach
    ]
    if len(request.left_out) == len(request.rules):
        request.left_out = []  # differentiation says that nothing is reached
    for name in request.left_out:
        del request.rules[name]
    return request


def _decide(request: _PlanRequest, name: str, rule: UpdateRule, unlearnable: str, *, by_preset: bool) -> None:
    """A later rule takes the place of an earlier one; `unlearnable` says where it asks for what cannot learn."""
    request.rules.pop(name, None)
    request.unlearnable.pop(name, None)
    if rule.ratio > 0 and unlearnable:
        request.unlearnable[name] = unlearnable
    elif rule.ratio > 0:
        request.rules[name] = rule
        request.by_preset[name] = by_preset


def _frozen(model: Named, plan: SparsePlan) -> list[str]:
    """Returns the parameters that the plan freezes by `frozen`; the bias that a norm was folded into is frozen with the
    tensor behind it.
    """
    every = _may_be_frozen(model)
    frozen = model.compared.any_of(plan.frozen, dict.fromkeys(every.values()), "plan.frozen")
    return [name for name, owner in every.items() if owner in frozen]


def _may_be_frozen(model: Named) -> Mapping[str, str]:
    """Returns every parameter, and what `frozen` calls it."""
    every = {name: name for name in model.kinds}
    return every | {norm.bias: norm.takes_bias for norm in model.graph.origins.norms if norm.bias}


def _refuse(graph: Graph, places: Mapping[str, str]) -> None:
    """Raises: PlanError for parameters that should learn, each by where the plan says so, and cannot from this file."""
    refused = list(places)
    if refused:
        first = graph.unlearnable[refused[0]]
        raise PlanError(
            f"{few_of(refused)} cannot learn: {first.reason}",
            where=places[refused[0]],
            hint=f"{first.remedy}, or freeze them by a last rule with ratio 0",
        )


def _part(extent: int, axis: int, channels: tuple[int, ...]) -> UpdateSlice:
    if len(channels) == extent:
        return WHOLE
    if is_run(channels):
        return UpdateSlice(axis, channels[0], len(channels))
    return UpdateSlice(axis, 0, len(channels), channels)


def _slice(parameter: Parameter, rule: UpdateRule) -> UpdateSlice:
    axis = parameter.channel_axis
    if axis is None or rule.ratio >= 1:
        return WHOLE
    channels = parameter.shape[axis]
    size = max(1, math.ceil(rule.ratio * channels - 1e-9))
    return WHOLE if size == channels else UpdateSlice(axis, 0, size)

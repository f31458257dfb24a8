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
from compiler.step.planning.chosen import chosen_by
from compiler.step.planning.created import idle_biases
from compiler.step.planning.layers import layers_of
from compiler.step.planning.names import Named
from compiler.step.planning.presets import preset_selections
from compiler.step.planning.reach import Reach
from compiler.step.planning.selection import near_parameters, selected_by, some_names
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of

UpdatePlan = Mapping[Value, UpdateSlice]
"""Parameter -> what learns of it, in the model's order; parameters that do not appear are frozen."""


@dataclass(slots=True)
class _Asked:
    """What a plan asks for: by parameter the rule that decides."""

    rules: dict[str, UpdateRule] = field(default_factory=dict)
    """Of the parameters that learn."""
    fixed: dict[str, None] = field(default_factory=dict)
    """What a preset leaves alone, since its elements are no weights."""
    by_preset: dict[str, bool] = field(default_factory=dict)
    """Whether it was the preset that let them."""
    unlearnable: dict[str, str] = field(default_factory=dict)
    """Where parameters that cannot learn are asked for."""
    left_out: list[str] = field(default_factory=list)
    """What the preset would let learn, and the loss does not reach."""
    frozen: list[str] = field(default_factory=list)
    """What would learn if the plan's `frozen` did not say otherwise."""
    cannot: list[str] = field(default_factory=list)
    """What the preset would let learn, and this file does not."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What a plan means for a model, and what is to be said of it."""

    updates: UpdatePlan
    warnings: tuple[CompileWarning, ...] = ()


def decide_plan(graph: Graph, plan: SparsePlan, reach: Reach | None = None) -> Decided:
    """Apply the plan's preset and rules to the model's parameters; `reach` is what the loss depends on, if known.

    Raises: PlanError naming the rule that matches nothing (with near names), or a plan that trains nothing, or whose
    patterns times the model's names are above a limit.
    """
    model = Named(graph, PlanError)
    asked = _asked(model, plan, reach)
    by_channel = chosen_by(graph, plan.rules, asked.rules)
    chosen = {
        value: _part(graph.parameters[value].shape[axis], axis, channels)
        for value, (axis, channels) in by_channel.chosen.items()
    }
    learning = {
        value: chosen.get(value) or _slice(parameter, asked.rules[parameter.name])
        for value, parameter in graph.parameters.items()
        if parameter.may_learn and parameter.name in asked.rules
    }
    if not learning and plan.lora is None:
        raise _trains_nothing(graph, plan, asked)
    odd = (*_odd_parts(graph, asked, chosen), *by_channel.warnings)
    idle = (*_idle_frozen(model, plan), *idle_biases(graph, asked.rules))
    return Decided(learning, (*_left_out(graph, plan, asked), *odd, *idle))


def resolve_plan(graph: Graph, plan: SparsePlan, reach: Reach | None = None) -> UpdatePlan:
    """`decide_plan` for who is told no warnings."""
    return decide_plan(graph, plan, reach).updates


def _trains_nothing(graph: Graph, plan: SparsePlan, asked: _Asked) -> PlanError:
    if asked.frozen:
        return PlanError(
            f"`frozen` freezes all {len(asked.frozen)} parameters that plan {plan.name!r} lets learn: "
            f"{few_of(asked.frozen)}",
            where="plan.frozen",
            hint="leave out what is to learn; it overrides preset and rules",
        )
    if asked.fixed:
        reason = next(parameter.fixed for parameter in graph.parameters.values() if parameter.name in asked.fixed)
        return PlanError(
            f"plan {plan.name!r} trains nothing: its preset leaves out {few_of([*asked.fixed])}: {reason}",
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


def _odd_parts(graph: Graph, asked: _Asked, of_value: Mapping[Value, UpdateSlice]) -> Sequence[CompileWarning]:
    """Where a ratio below 1, or a choice of channels, still trains the whole parameter."""
    known = graph.named_parameters()
    parts = {name: rule for name, rule in asked.rules.items() if rule.ratio < 1}
    whole = [known[name] for name, rule in parts.items() if _slice(known[name], rule).is_whole]
    without = [parameter.name for parameter in whole if parameter.channel_axis is None]
    rounded = [parameter.name for parameter in whole if parameter.channel_axis is not None]
    chosen = {graph.parameters[value].name: part for value, part in of_value.items()}
    rounded += [name for name, part in chosen.items() if part.is_whole]
    lacking = [name for name, rule in asked.rules.items() if rule.channels is not None and name not in chosen]
    told = []
    if without:
        message = (
            f"{len(without)} parameters have a ratio below 1 but no input channels of their own (biases, norms, "
            f"tables, shared weights), so all of each learns: {few_of(without)}"
        )
        hint = "a kind: weight in the rule leaves biases out; ratio: 0 freezes a parameter"
        told.append(CompileWarning("plan.ratio_without_channels", "plan.update", message, hint))
    if lacking:
        which = few_of(lacking)
        message = f"{len(lacking)} parameters have no axis of the channels chosen, so all of each learns: {which}"
        hint = "a kind: weight in the rule leaves biases out; a later rule with ratio: 0 freezes a parameter"
        told.append(CompileWarning("plan.channels_without_axis", "plan.update", message, hint))
    if rounded:
        message = f"{len(rounded)} parameters have so few channels that the ratio rounds up to all: {few_of(rounded)}"
        told.append(CompileWarning("plan.ratio_rounded", "plan.update", message, "give a smaller ratio"))
    return told


def _idle_frozen(model: Named, plan: SparsePlan) -> Sequence[CompileWarning]:
    """Entries of `frozen` that freeze nothing: a misspelt one lets learn what it was to keep."""
    graph = model.graph
    norms = {name for norm in graph.origins.norms for name in (norm.scale, norm.shift)}
    names = dict.fromkeys((*_may_be_frozen(model).values(), *graph.buffers(), *norms))  # which stay as they are
    idle = [one for one in dict.fromkeys(plan.frozen) if not model.compared.matching(one, names, "plan.frozen")]
    if not idle:
        return ()
    message = f"{len(idle)} entries match no parameter of this model, and freeze nothing: {few_of(idle)}"
    return (CompileWarning("plan.frozen_unmatched", "plan.frozen", message, near_parameters(graph, idle[0])),)


def _left_out(graph: Graph, plan: SparsePlan, asked: _Asked) -> Sequence[CompileWarning]:
    warnings = []
    if asked.left_out:
        message = f"preset {plan.preset} leaves out what the loss does not depend on: {few_of(asked.left_out)}"
        hint = "name an output that they feed in the spec's loss, if they are to learn"
        warnings.append(CompileWarning("plan.left_out", "plan.preset", message, hint))
    warnings += _of_fixed(graph, plan, asked)
    if asked.cannot:
        first = graph.unlearnable[asked.cannot[0]]
        message = f"preset {plan.preset} leaves out {few_of(asked.cannot)}, which cannot learn: {first.reason}"
        warnings.append(CompileWarning("plan.cannot_learn", "plan.preset", message, first.remedy))
    return warnings


def _of_fixed(graph: Graph, plan: SparsePlan, asked: _Asked) -> Iterator[CompileWarning]:
    """What is said of numbers that are no weights: of those that stay, and of those that a rule lets learn."""
    reasons = {parameter.name: parameter.fixed for parameter in graph.parameters.values() if parameter.fixed}
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in asked.fixed if reasons[name] == reason and name not in asked.rules]
        if names:
            message = f"preset {plan.preset} leaves out {few_of(names)}: {reason}"
            yield CompileWarning("plan.fixed_numbers", "plan.preset", message, "a rule that names it lets it learn")
        names = [name for name in asked.rules if reasons.get(name) == reason]
        if names:
            message = f"{few_of(names)}: {reason}; the plan lets it learn"
            yield CompileWarning(
                "plan.fixed_numbers_learn", "plan.update", message, "freeze it by a rule with ratio: 0"
            )


def _asked(model: Named, plan: SparsePlan, reach: Reach | None) -> _Asked:
    """Raises: PlanError."""
    graph = model.graph
    asked, layers = _Asked(), layers_of(graph)
    values = {parameter.name: value for value, parameter in graph.parameters.items()}
    for rule, names in preset_selections(model, plan, layers, reach):
        for name in names:
            if name in values and graph.parameters[values[name]].fixed:
                asked.fixed.setdefault(name, None)
            else:
                _decide(asked, name, rule, "plan.preset" if name in graph.unlearnable else "", by_preset=True)
    for position, rule in enumerate(plan.rules):
        where = f"plan.update[{position}]"
        for name in selected_by(model, rule, layers, where):
            _decide(asked, name, rule, where if name in graph.unlearnable else "", by_preset=False)
    for name in _frozen(model, plan):
        if asked.rules.pop(name, None) is not None:
            asked.frozen.append(name)
        asked.unlearnable.pop(name, None)
    asked.cannot = [name for name, where in asked.unlearnable.items() if where == "plan.preset"]
    _refuse(graph, {name: where for name, where in asked.unlearnable.items() if where != "plan.preset"})
    if not asked.rules:
        _refuse(graph, asked.unlearnable)
    asked.left_out = [
        name for name in asked.rules if asked.by_preset[name] and reach is not None and values[name] not in reach
    ]
    if len(asked.left_out) == len(asked.rules):
        asked.left_out = []  # differentiation says that nothing is reached
    for name in asked.left_out:
        del asked.rules[name]
    return asked


def _decide(asked: _Asked, name: str, rule: UpdateRule, unlearnable: str, *, by_preset: bool) -> None:
    """A later rule takes the place of an earlier one; `unlearnable` says where it asks for what cannot learn."""
    asked.rules.pop(name, None)
    asked.unlearnable.pop(name, None)
    if rule.ratio > 0 and unlearnable:
        asked.unlearnable[name] = unlearnable
    elif rule.ratio > 0:
        asked.rules[name] = rule
        asked.by_preset[name] = by_preset


def _frozen(model: Named, plan: SparsePlan) -> list[str]:
    """What the plan freezes by `frozen`; the bias that a norm was folded into is frozen with the tensor behind it."""
    every = _may_be_frozen(model)
    frozen = model.compared.any_of(plan.frozen, dict.fromkeys(every.values()), "plan.frozen")
    return [name for name, own in every.items() if own in frozen]


def _may_be_frozen(model: Named) -> Mapping[str, str]:
    """Every parameter, and what `frozen` calls it."""
    every = {name: name for name in model.kinds}
    return every | {norm.bias: norm.takes_bias for norm in model.graph.origins.norms if norm.bias}


def _refuse(graph: Graph, asked: Mapping[str, str]) -> None:
    """Raises: PlanError for parameters that should learn, each by where the plan says so, and cannot from this file."""
    refused = list(asked)
    if refused:
        first = graph.unlearnable[refused[0]]
        raise PlanError(
            f"{few_of(refused)} cannot learn: {first.reason}",
            where=asked[refused[0]],
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

"""Resolves a sparse plan against a model: exactly which slices of which parameters learn."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from compiler.channels.choose import choose
from compiler.channels.coupling import couple
from compiler.channels.orders import is_run
from compiler.errors import PlanError
from compiler.graph import Graph, Parameter
from compiler.spec.documents import SparsePlan, UpdateRule
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    """The part of one parameter that learns: `size` channels from `start` along inside axis `axis`; -1 means all.

    Where these do not follow one another yet, `channels` names them in the file's order, and `compiler.step.arranged`
    makes a range of them.
    """

    axis: int = -1
    start: int = 0
    size: int = 0
    channels: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if every element learns."""
        return self.axis < 0


UpdatePlan = Mapping[Value, UpdateSlice]
"""Parameter -> what learns of it, in the model's order; parameters that do not appear are frozen."""

WHOLE = UpdateSlice()


def resolve_plan(graph: Graph, plan: SparsePlan) -> UpdatePlan:
    """Apply the plan's preset and rules to the model's parameters.

    Raises: PlanError naming the rule that matches nothing (with near names), or a plan that trains nothing.
    """
    ratios, chosen = _ratios(graph, plan), _chosen(graph, plan)
    learning = {
        value: chosen.get(value) or _slice(parameter, ratios[parameter.name])
        for value, parameter in graph.parameters.items()
        if parameter.may_learn and ratios[parameter.name] > 0
    }
    if not learning:
        raise PlanError(
            f"plan {plan.name!r} trains nothing in this model",
            where="plan",
            hint=f"the model has {len(graph.named_parameters())} parameters, such as {_some(graph)}",
        )
    return learning


def plan_warnings(graph: Graph, plan: SparsePlan) -> tuple[CompileWarning, ...]:
    """Where a ratio below 1 still trains the whole parameter."""
    known = graph.named_parameters()
    parts = {name: ratio for name, ratio in _ratios(graph, plan).items() if 0 < ratio < 1}
    whole = [known[name] for name, ratio in parts.items() if _slice(known[name], ratio).is_whole]
    chosen = {graph.parameters[value].name: part for value, part in _chosen(graph, plan).items()}
    without = [parameter.name for parameter in whole if parameter.channel_axis is None]
    lacking = [name for name in _by_channels(graph, plan) if name not in chosen]
    rounded = [parameter.name for parameter in whole if parameter.channel_axis is not None]
    rounded += [name for name, part in chosen.items() if part.is_whole]
    told = []
    if without:
        message = (
            f"{len(without)} parameters have a ratio below 1 but no input channels of their own (biases, norms, "
            f"tables, shared weights), so all of each learns: {few_of(without)}"
        )
        hint = "a kind: weight in the rule leaves biases out; ratio: 0 freezes a parameter"
        told.append(CompileWarning("plan.ratio_without_channels", "plan.update", message, hint))
    if lacking:
        message = (
            f"{len(lacking)} parameters have no axis of the channels chosen, so all of each learns: {few_of(lacking)}"
        )
        hint = "a kind: weight in the rule leaves biases out; a later rule with ratio: 0 freezes a parameter"
        told.append(CompileWarning("plan.channels_without_axis", "plan.update", message, hint))
    if rounded:
        message = (
            f"{len(rounded)} parameters have so few input channels that the ratio rounds up to all: {few_of(rounded)}"
        )
        told.append(CompileWarning("plan.ratio_rounded", "plan.update", message, "give a smaller ratio"))
    return tuple(told)


def _ratios(graph: Graph, plan: SparsePlan) -> dict[str, float]:
    """Name of a parameter -> the share of it that the plan lets learn; 0: frozen. Raises: PlanError."""
    ratios = {own.name: _preset_ratio(graph, own, plan.preset) for own in graph.named_parameters().values()}
    wanted = {name: "plan.preset" for name in graph.unlearnable if _preset_wants(graph, name, plan.preset)}
    for position, rule in enumerate(plan.rules):
        where = f"plan.update[{position}]"
        for name in _matches(graph, rule, where):
            if name in ratios:
                ratios[name] = rule.ratio
            if name in graph.unlearnable:
                wanted[name] = where if rule.ratio > 0 else ""
    for name in _frozen(graph, plan):
        ratios[name], wanted[name] = 0.0, ""
    _refuse_unlearnable(graph, wanted)
    return {name: ratios[name] for name in graph.named_parameters()}


def _by_channels(graph: Graph, plan: SparsePlan) -> dict[str, int]:
    """Name of a parameter -> the rule that chooses channels of it: the last one that matches it."""
    found: dict[str, int] = {}
    for position, rule in enumerate(plan.rules):
        for name in _matches(graph, rule, f"plan.update[{position}]"):
            found[name] = position
    frozen = _frozen(graph, plan)
    known = graph.named_parameters()
    return {
        name: position
        for name, position in found.items()
        if plan.rules[position].channels is not None and name not in frozen and name in known
    }


def _chosen(graph: Graph, plan: SparsePlan) -> dict[Value, UpdateSlice]:
    """What the rules with `channels` let learn. Raises: PlanError."""
    rules = _by_channels(graph, plan)
    if not rules:
        return {}
    coupling, found = couple(graph), dict[Value, UpdateSlice]()
    for position in sorted(set(rules.values())):
        asked = plan.rules[position].channels
        values = [value for value, own in graph.parameters.items() if rules.get(own.name) == position]
        if asked is not None:
            for value, (axis, channels) in choose(coupling, asked, values, f"plan.update[{position}]").items():
                found[value] = _part(graph.parameters[value].shape[axis], axis, channels)
    return found


def _part(extent: int, axis: int, channels: tuple[int, ...]) -> UpdateSlice:
    if len(channels) == extent:
        return WHOLE
    if is_run(channels):
        return UpdateSlice(axis, channels[0], len(channels))
    return UpdateSlice(axis, 0, len(channels), channels)


def _frozen(graph: Graph, plan: SparsePlan) -> list[str]:
    """What the plan freezes by `frozen`; the bias that a norm was folded into is frozen with the tensor behind it."""
    every = {name: name for name in (*graph.named_parameters(), *graph.unlearnable)}
    every |= {norm.bias: norm.takes_bias for norm in graph.origins.norms if norm.bias}
    patterns = plan.frozen
    return [name for name, own in every.items() if any(own == one or fnmatchcase(own, one) for one in patterns)]


def _preset_ratio(graph: Graph, parameter: Parameter, preset: str) -> float:
    if preset == "full":
        return 1.0
    if preset == "bias-only":
        return 1.0 if parameter.kind == "bias" else 0.0
    if preset == "last-layer":
        return 1.0 if parameter.name in _last_layer(graph) else 0.0
    return 0.0


def _preset_wants(graph: Graph, name: str, preset: str) -> bool:
    return preset == "full" or (preset == "bias-only" and _kind(graph, name) == "bias")


def _kind(graph: Graph, name: str) -> str:
    """Weight or bias; of a parameter that the file does not hold, only its name tells."""
    known = graph.named_parameters().get(name)
    return known.kind if known is not None else "bias" if name.endswith("bias") else "weight"


def _refuse_unlearnable(graph: Graph, wanted: Mapping[str, str]) -> None:
    """Raises: PlanError for parameters of the author's module that should learn, and cannot from this file."""
    refused = [name for name, where in wanted.items() if where]
    if refused:
        first = graph.unlearnable[refused[0]]
        raise PlanError(
            f"{few_of(refused)} cannot learn: {first.reason}",
            where=wanted[refused[0]],
            hint=f"{first.remedy}, or freeze them by a last rule with ratio 0",
        )


def _last_layer(graph: Graph) -> frozenset[str]:
    """The last contraction's weight and every parameter used after it."""
    first_use: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value in graph.parameters and graph.parameters[value].may_learn:
                first_use.setdefault(value, position)
    contractions = [first_use[value] for value in first_use if graph.parameters[value].channel_axis is not None]
    start = max(contractions, default=max(first_use.values(), default=0))
    return frozenset(graph.parameters[value].name for value, position in first_use.items() if position >= start)


def _matches(graph: Graph, rule: UpdateRule, where: str) -> list[str]:
    found = []
    for pattern in rule.parameters:
        every = dict.fromkeys((*graph.named_parameters(), *graph.unlearnable))
        names = [name for name in every if name == pattern or fnmatchcase(name, pattern)]
        kept = [name for name in names if rule.kind in ("any", _kind(graph, name))]
        if not kept:
            raise PlanError(_no_match(graph, rule, pattern, names), where=where, hint=_near(graph, pattern))
        found += kept
    return found


def _no_match(graph: Graph, rule: UpdateRule, pattern: str, names: list[str]) -> str:
    if names:
        return f"{pattern!r} matches {len(names)} parameters, none of kind {rule.kind}"
    buffers = [name for name in graph.buffers() if name == pattern or fnmatchcase(name, pattern)]
    if buffers:
        return f"{buffers[0]!r} does not learn: every step updates it, as `batch_norm: train` says"
    return f"no parameter is called {pattern!r}"


def _near(graph: Graph, pattern: str) -> str:
    near = difflib.get_close_matches(pattern, graph.named_parameters(), n=3, cutoff=0.5)
    if near:
        return "did you mean " + ", ".join(near) + "?"
    return f"the model has {len(graph.named_parameters())} parameters, such as {_some(graph)}"


def _some(graph: Graph) -> str:
    return ", ".join(list(graph.named_parameters())[:4])


def _slice(parameter: Parameter, ratio: float) -> UpdateSlice:
    axis = parameter.channel_axis
    if axis is None or ratio >= 1:
        return WHOLE
    channels = parameter.shape[axis]
    size = max(1, math.ceil(ratio * channels - 1e-9))
    return WHOLE if size == channels else UpdateSlice(axis, 0, size)

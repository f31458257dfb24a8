"""Which settings of the optimizer each parameter has: the optimizer's own, or those of the last group that names it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from compiler.errors import SpecError
from compiler.graph import Graph, Parameter
from compiler.naming import Comparisons
from compiler.spec.groups import GroupKind, ParameterGroup
from compiler.spec.optimizer import OptimizerSpec
from compiler.step.planning.selection import near_parameters
from compiler.values import Value
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

"""Choices of the rules with `channels` among the parameters that they let learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.channels.blocks import Units
from compiler.channels.choose import Chosen, choose
from compiler.channels.coupling import Coupling
from compiler.graph import Graph
from compiler.spec.channels import Channels
from compiler.spec.rules import UpdateRule
from compiler.values import Value
from compiler.warnings import CompileWarning, few_of


@dataclass(frozen=True, slots=True)
class ByChannel:
    """Parameter -> the channels of it that learn, and what was guessed."""

    chosen: Chosen
    warnings: tuple[CompileWarning, ...] = ()


def chosen_by(graph: Graph, rules: Sequence[UpdateRule], deciding: Mapping[str, UpdateRule]) -> ByChannel:
    """Returns the channels that the rules choose of the parameters that they decide; `deciding` is the rule of each
    that learns, by name.

    Raises: PlanError naming the rule whose channels there are not.
    """
    chosen: dict[Value, tuple[int, tuple[int, ...]]] = {}
    warnings: list[CompileWarning] = []
    choosing = [(position, rule) for position, rule in enumerate(rules) if rule.channels is not None]
    units = Units(Coupling(graph)) if choosing else None
    by_rule: dict[int, list[Value]] = {}
    for value, parameter in graph.parameters.items():
        by_rule.setdefault(id(deciding.get(parameter.name)), []).append(value)
    for position, rule in choosing:
        values = by_rule.get(id(rule))
        if values and units is not None and rule.channels is not None:
            where = f"plan.update[{position}]"
            picked = choose(units, rule.channels, values, where)
            chosen |= picked
            if rule.channels.along == "heads" and not units.attentions:
                warnings.append(_heads_assumed(graph, rule.channels, list(picked), where))
    return ByChannel(chosen, tuple(warnings))


def _heads_assumed(graph: Graph, channels: Channels, values: Sequence[Value], where: str) -> CompileWarning:
    names = few_of([graph.name_of(value) for value in values])
    message = f"no attention is known in this model; what has {channels.heads} parts is taken for its heads, in {names}"
    hint = "if these are no heads, say along: output or along: input"
    return CompileWarning("plan.heads_assumed", f"{where}.channels.heads", message, hint)

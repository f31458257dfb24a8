"""What the rules with `channels` choose of the parameters that they let learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.channels.choose import Chosen, choose
from compiler.channels.coupling import Coupling
from compiler.graph import Graph
from compiler.spec.documents import UpdateRule
from compiler.values import Value


def chosen_by(graph: Graph, rules: Sequence[UpdateRule], deciding: Mapping[str, UpdateRule]) -> Chosen:
    """Parameter -> the channels of it that learn; `deciding` is the rule of each parameter that learns, by name.

    Raises: PlanError naming the rule whose channels there are not.
    """
    found: dict[Value, tuple[int, tuple[int, ...]]] = {}
    choosing = [(position, rule) for position, rule in enumerate(rules) if rule.channels is not None]
    coupling = Coupling(graph) if choosing else None
    by_rule: dict[int, list[Value]] = {}
    for value, own in graph.parameters.items():
        by_rule.setdefault(id(deciding.get(own.name)), []).append(value)
    for position, rule in choosing:
        values = by_rule.get(id(rule))
        if values and coupling is not None and rule.channels is not None:
            found |= choose(coupling, rule.channels, values, f"plan.update[{position}]")
    return found

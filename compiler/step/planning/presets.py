"""Presets: what they let learn, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.graph import Graph
from compiler.spec.documents import SparsePlan
from compiler.spec.rules import UpdateRule
from compiler.spec.schemes import NAMED
from compiler.step.planning.layers import Layer, Reach
from compiler.step.planning.names import Named
from compiler.step.planning.schemes import Selection, scheme_selections
from compiler.step.planning.selection import selected_by
from compiler.values import Value


def preset_selections(
    model: Named, plan: SparsePlan, layers: Sequence[Layer], reach: Reach | None
) -> Iterator[Selection]:
    """Yields the selections before the plan's own rules, preset and scheme, later ones overriding earlier ones.

    Raises: PlanError for a scheme that does not fit the model.
    """
    graph = model.graph
    head = last_layer(graph, reach)
    if plan.preset in NAMED:
        preset_plan = SparsePlan.parse({"name": plan.preset, **NAMED[plan.preset]})
        where = f"plan.preset {plan.preset}"
        if preset_plan.scheme is not None:
            yield from scheme_selections(graph, preset_plan.scheme, layers, head, where)
        for rule in preset_plan.rules:
            yield rule, selected_by(model, rule, layers, where)
    elif plan.preset == "full":
        yield UpdateRule(), list(model.kinds)
    elif plan.preset == "bias-only":
        yield UpdateRule(), [name for name, kind in model.kinds.items() if kind == "bias"]
    elif plan.preset == "last-layer":
        yield UpdateRule(), head
    if plan.scheme is not None:
        yield from scheme_selections(graph, plan.scheme, layers, head, "plan.scheme")


def last_layer(graph: Graph, reach: Reach | None) -> list[str]:
    """The last contraction's weight that the loss reaches, and every such parameter used after it."""
    first_use: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            parameter = graph.parameters.get(value)
            if (
                parameter is not None
                and parameter.may_learn
                and not parameter.fixed
                and (reach is None or value in reach)
            ):
                first_use.setdefault(value, position)
    contractions = [first_use[value] for value in first_use if graph.parameters[value].channel_axis is not None]
    start = max(contractions, default=max(first_use.values(), default=0))
    return [graph.parameters[value].name for value, position in first_use.items() if position >= start]

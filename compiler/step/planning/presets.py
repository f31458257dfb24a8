"""Presets: what they let learn, and what they leave out.

Published schemes (`compiler.spec.schemes`) against a model: weights of its last blocks, biases from a block on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from compiler.errors import PlanError
from compiler.graph import Graph
from compiler.spec.documents import SparsePlan
from compiler.spec.rules import UpdateRule
from compiler.spec.schemes import NAMED, Scheme, SchemeKind
from compiler.step.planning.blocks import Block, bottlenecks, path_of, transformer_blocks
from compiler.step.planning.layers import Layer, Reach, layers_of
from compiler.step.planning.names import Named
from compiler.step.planning.selection import selected_by
from compiler.values import Value

Selection = tuple[UpdateRule, list[str]]
"""A rule for parameters, and their names."""


def scheme_selections(
    graph: Graph, scheme: Scheme, layers: Sequence[Layer], head: Sequence[str], where: str
) -> Iterator[Selection]:
    """Yields the selections that a scheme lets learn, in the order in which later ones override earlier ones; `head` is
    the last layer.

    Raises: PlanError for a model with fewer blocks than the scheme takes, or with none.
    """
    blocks = _blocks(graph, scheme, layers, where)
    yield UpdateRule(), _biases(graph, blocks, scheme.bias_blocks)
    end = len(blocks) - scheme.skip_blocks
    chosen = blocks[end - scheme.weight_blocks : end]
    ratios = scheme.ratios or (1.0,) * len(chosen)
    for block, ratio in zip(chosen, ratios, strict=True):
        weights = dict.fromkeys(graph.parameters[value].name for layer in block.first for value in layer.weights)
        yield UpdateRule(ratio=ratio), list(weights)
    if scheme.head:
        yield UpdateRule(), list(head)


def blocks_of_plan(graph: Graph, plan: SparsePlan) -> tuple[str, list[Block]]:
    """(what a block is, the blocks) that a plan's scheme has found; none without a scheme."""
    preset_scheme = NAMED.get(plan.preset, {}).get("scheme", {})
    kind = plan.scheme.kind if plan.scheme is not None else preset_scheme.get("kind")
    if kind is None:
        return "", []
    what, find = BLOCKS[kind]
    return what, find(graph, layers_of(graph))


def _blocks(graph: Graph, scheme: Scheme, layers: Sequence[Layer], where: str) -> list[Block]:
    what, find = BLOCKS[scheme.kind]
    blocks = find(graph, layers)
    needed = max(scheme.weight_blocks + scheme.skip_blocks, scheme.bias_blocks)
    if scheme.ratios and len(scheme.ratios) != scheme.weight_blocks:
        message = f"{len(scheme.ratios)} ratios for {scheme.weight_blocks} weight_blocks"
        raise PlanError(message, where=f"{where}.ratios", hint="give one for each block, in forward order")
    if not blocks:
        others = ", ".join(kind for kind in BLOCKS if kind != scheme.kind)
        raise PlanError(
            f"the model has no block of this kind: {what}",
            where=where,
            hint=f"another kind ({others}), or rules under `update`",
        )
    if needed > len(blocks):
        raise PlanError(
            f"the scheme speaks of the last {needed} blocks, the model has {len(blocks)}: {what}",
            where=where,
            hint=f"a scheme of your own: scheme: {{kind: {scheme.kind}, weight_blocks: …, bias_blocks: …}}",
        )
    return blocks


def _biases(graph: Graph, blocks: Sequence[Block], count: int) -> list[str]:
    """The biases that are used from the first of the last blocks on, or lie in its module."""
    if not count:
        return []
    start, path = blocks[-count].position, path_of(graph, blocks[-count])
    used: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            used.setdefault(value, position)
    module_path = path if sum(path_of(graph, block) == path for block in blocks) == 1 else ""
    return [
        parameter.name
        for value, parameter in graph.parameters.items()
        if parameter.kind == "bias"
        and (
            used.get(value, -1) >= start
            or (module_path and parameter.name.startswith((f"{module_path}.", f"{module_path}/")))
        )
    ]


BLOCKS: Mapping[SchemeKind, tuple[str, Callable[[Graph, Sequence[Layer]], list[Block]]]] = MappingProxyType(
    {
        "bottlenecks": ("a point-wise, a spatial and a point-wise convolution in a row", bottlenecks),
        "transformer": ("an attention and two linears behind it", transformer_blocks),
    }
)
"""Kind of a scheme -> what its blocks are, and what finds them."""


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

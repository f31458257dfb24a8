"""Attention heads and feed-forward blocks as they show in a graph: which axes of parameters run over their units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from compiler.channels.atoms import Atom, factors
from compiler.channels.coupling import Coupling
from compiler.channels.outputs import output_axis
from compiler.errors import PlanError
from compiler.values import Value
from compiler.warnings import few_of

Row = tuple[Value, int, int, int, object]
"""(parameter, inside axis, units, channels of a unit, what the units belong to)."""
Product = tuple[Atom, ...]


class Units:
    """The heads and hidden units of a graph, found when somebody asks, once for all rules."""

    def __init__(self, coupling: Coupling) -> None:
        self.coupling = coupling

    @cached_property
    def attentions(self) -> set[Product]:
        """Returns the products of axes that run over the key and value heads of each attention."""
        return _attentions(self.coupling)

    @cached_property
    def blocks(self) -> Mapping[Product, set[Value]]:
        """Hidden units -> the layers on both sides of them."""
        return _blocks(self.coupling)

    @cached_property
    def blocks_of(self) -> Mapping[Value, Sequence[Product]]:
        """Layer -> the blocks that it is in."""
        blocks: dict[Value, list[Product]] = {}
        for product, ends in self.blocks.items():
            for value in ends:
                blocks.setdefault(value, []).append(product)
        return blocks


def heads_of(units: Units, values: Sequence[Value], stated_heads: int | None, where: str) -> list[Row]:
    """The axes that run over heads. Key and value heads count where several query heads share them.

    Where no attention is known, whatever has the number of parts that was told is taken for heads.
    Raises: PlanError where there is none, or another number of heads than was told.
    """
    coupling, attentions = units.coupling, units.attentions
    head_rows: list[Row] = []
    odd: set[int] = set()
    for value in values:
        rows = [
            row
            for row in _rows_of(coupling, value)
            if row[2] in attentions or (not attentions and row[2][0].extent == stated_heads)
        ]
        for _, axis, product, inner in rows[:1]:
            count = _extent(product)
            odd |= {count} if stated_heads not in (None, count) else set()
            head_rows.append((value, axis, count, inner, product))
    if odd:
        raise PlanError(
            f"the model shows {min(odd)} heads here, not {stated_heads}",
            where=f"{where}.channels.heads",
            hint="heads that share a key and value count as one; leave `heads` out",
        )
    if not head_rows:
        raise _none(
            coupling,
            values,
            "attention heads",
            where,
            "tell `heads` if there is an attention, or choose along: output and along: input",
        )
    return head_rows


def feed_forward_of(units: Units, values: Sequence[Value], where: str) -> list[Row]:
    """The axes that run over hidden units: outputs of one layer or several, and inputs of exactly one other.

    Raises: PlanError where there is no such block, or a parameter is in two.
    """
    coupling, blocks, among = units.coupling, units.blocks, set(values)
    here = {product for value in values for product in units.blocks_of.get(value, ())}
    whole = {product for product in here if blocks[product] <= among}
    unit_rows: list[Row] = []
    for value in values:
        candidates = [(axis, product) for axis, product in _whole_axes(coupling, value) if product in here]
        preferred = [entry for entry in candidates if entry[1] in whole] or candidates
        if len(preferred) > 1:
            raise PlanError(
                f"{coupling.graph.name_of(value)!r} is in two feed-forward blocks",
                where=where,
                hint="give each block a rule of its own, with its first and second layer",
            )
        unit_rows += [(value, axis, _extent(product), 1, product) for axis, product in preferred]
    if not unit_rows:
        raise _none(
            coupling,
            values,
            "hidden units of a feed-forward block",
            where,
            "name its first and second layer; or choose along: output and along: input",
        )
    return unit_rows


def _none(coupling: Coupling, values: Sequence[Value], what: str, where: str, hint: str) -> PlanError:
    names = [coupling.graph.name_of(value) for value in values]
    return PlanError(f"no axis of {few_of(names)} runs over {what}", where=where, hint=hint)


def _attentions(coupling: Coupling) -> set[Product]:
    """Returns the products of axes that run over the key and value heads of each attention."""
    nodes = [node for node in coupling.graph.nodes if node.op == "attention"]
    return {product for node in nodes if (product := tuple(coupling.factors(node.inputs[1], 2)))}


def _rows_of(coupling: Coupling, value: Value) -> Iterator[tuple[Value, int, Product, int]]:
    """(parameter, axis, factors, product of those inside) for every run of factors of every axis; outputs first."""
    axes = range(len(coupling.axes(value)))
    for axis in reversed(axes):
        factors = coupling.factors(value, axis)
        for begin in range(len(factors)):
            for end in range(begin + 1, len(factors) + 1):
                yield value, axis, tuple(factors[begin:end]), _extent(factors[end:])


def _blocks(coupling: Coupling) -> dict[Product, set[Value]]:
    """Hidden units -> the layers on both sides of them: all that make them, and the only one that reads them."""
    graph, wires = coupling.graph, coupling.wires
    first_use: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for value in node.inputs:
            first_use.setdefault(value, position)
    makers: dict[Product, set[Value]] = {}
    read: dict[Product, set[Value]] = {}
    for value, parameter in graph.parameters.items():
        output = output_axis(wires, value) if parameter.channel_axis is not None else None
        if parameter.channel_axis is None or output is None or output == parameter.channel_axis:
            continue
        makers.setdefault(tuple(coupling.factors(value, output)), set()).add(value)
        read.setdefault(tuple(coupling.factors(value, parameter.channel_axis)), set()).add(value)
    blocks = {}
    for product in makers.keys() & read.keys():
        (second, *others), firsts = sorted(read[product]), makers[product]
        if not others and all(first_use[first] < first_use.get(second, -1) for first in firsts):
            blocks[product] = {second, *firsts}
    return blocks


def _whole_axes(coupling: Coupling, value: Value) -> list[tuple[int, Product]]:
    return [(axis, tuple(coupling.factors(value, axis))) for axis in range(len(coupling.axes(value)))]


def _extent(product: Sequence[Atom]) -> int:
    count = 1
    for atom in factors(product):
        count *= atom.extent
    return count

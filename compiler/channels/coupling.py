"""The axes of a graph's values that have to be in the same order, by what each operator does with its axes.

What nobody has thought through stays in the model's order (`compiler.axes.rules`), as do its inputs and outputs.
Parameters and constants are free, since their elements move too.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.axes.facts import Alike, Axis, Fact, Fixed, Reshaped, Stems
from compiler.axes.rules import facts_of
from compiler.channels.atoms import Atom, factors, pin, split_off, unite
from compiler.channels.outputs import Wires
from compiler.graph import Graph, Node
from compiler.values import Value


class Coupling:
    """The axes of every value of a graph, united as its nodes say.

    An axis is one atom, which may since have been split or united with others.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.wires = graph, Wires.of(graph)
        self._axes: dict[Value, tuple[Atom, ...]] = {}
        for value in (*graph.inputs, *graph.outputs):
            pin(self.axes(value))
        for node in graph.nodes:
            for fact in facts_of(node, self.shape):
                self._take(node, fact)

    def shape(self, value: Value) -> tuple[int, ...]:
        """Its extents."""
        return self.graph.types[value].shape

    def axes(self, value: Value) -> tuple[Atom, ...]:
        """Returns one atom for each axis."""
        if value not in self._axes:
            self._axes[value] = tuple(Atom(extent) for extent in self.shape(value))
        return self._axes[value]

    def factors(self, value: Value, axis: int) -> list[Atom]:
        """Returns the factors whose product an axis is, outermost first."""
        return factors((self.axes(value)[axis],))

    def _take(self, node: Node, fact: Fact) -> None:
        if isinstance(fact, Alike):
            self._unite(fact.of, fact.to)
        elif isinstance(fact, Reshaped):
            unite(self.axes(fact.of), self.axes(fact.to))
        elif isinstance(fact, Stems):
            self._pin(fact.of, fact.to)
        elif isinstance(fact, Fixed):
            self._pin(fact.axis)
        else:
            for value in (*node.inputs, *node.outputs):
                pin(self.axes(value))

    def _unite(self, first: Axis, second: Axis) -> None:
        left, right = self._atoms(first), self._atoms(second)
        if left is None or right is None:
            pin((self.axes(first.value)[first.axis], self.axes(second.value)[second.axis]))
        else:
            unite(left, right)

    def _pin(self, *axes: Axis) -> None:
        for axis in axes:
            atoms = self._atoms(axis)
            pin(self.axes(axis.value)[axis.axis : axis.axis + 1] if atoms is None else atoms)

    def _atoms(self, axis: Axis) -> Sequence[Atom] | None:
        """The atoms of an axis, or of its outer or inner factor; None if it does not divide so."""
        whole = self.axes(axis.value)[axis.axis : axis.axis + 1]
        if axis.is_whole:
            return whole
        apart = split_off(whole, axis.count)
        return None if apart is None else apart[axis.factor == "inner"]

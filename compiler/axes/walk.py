"""An axis of a result, followed back to the axes of operands that it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from compiler.axes.facts import Alike, Reshaped, Stems, Unknown
from compiler.axes.rules import facts_of
from compiler.graph import Graph
from compiler.values import Value

Source = Literal["layer", "data", "unknown"]
"""The kind of an axis: outputs of a layer, something of the data (batch, positions), or unknown."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`extent` steps of `stride` along an axis of a value: all of it, or what was an axis before axes were joined."""

    value: Value
    axis: int
    stride: int
    extent: int


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of which only some is meant, or which is only a factor or a stretch of what is meant."""

    value: Value
    axis: int


Step = Piece | Cut | Source


class Walk:
    """A graph, who makes each value, and which values follow from inputs or from parameters."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.data = _reached(graph, graph.inputs)
        self.learning_values = _reached(graph, graph.parameters)

    def shape(self, value: Value) -> tuple[int, ...]:
        return self.graph.types[value].shape

    def whole(self, value: Value, axis: int) -> Piece:
        """Returns the piece that is all of an axis."""
        return Piece(value, axis, 1, self.shape(value)[axis])

    def is_whole(self, piece: Piece) -> bool:
        return piece == self.whole(piece.value, piece.axis)

    def behind(self, piece: Piece) -> Iterator[Step]:
        """Yields what a piece comes from, one step back: of the operands, those that have it whole and that data flows
        into.

        Where there is none of these, it is a layer's, or not.
        """
        node, name, axis = self.makers[piece.value], piece.value, piece.axis
        facts: list[Alike | Stems] = []
        for fact in facts_of(node, self.shape):
            if isinstance(fact, Unknown):
                yield "unknown"
                return
            if isinstance(fact, Reshaped):
                yield _before_reshape(self.shape(fact.of), self.shape(name), piece, fact.of) or "unknown"
                return
            if isinstance(fact, Alike | Stems) and (fact.to.value, fact.to.axis) == (name, axis):
                facts.append(fact)
        if not facts and name != node.outputs[0]:
            yield "unknown"
            return
        sources = [fact for fact in facts if fact.to.is_whole] or facts
        of_data = [fact.of for fact in sources if fact.of.value in self.data]
        if not of_data:
            yield "layer" if any(fact.of.value in self.learning_values for fact in sources) else "data"
        for source in of_data:
            same = self.shape(source.value)[source.axis] == self.shape(name)[axis]
            yield (
                Piece(source.value, source.axis, piece.stride, piece.extent) if same else Cut(source.value, source.axis)
            )


def _reached(graph: Graph, start: Iterable[Value]) -> set[Value]:
    reached = set(start)
    for node in graph.nodes:
        if any(name in reached for name in node.inputs):
            reached.update(node.outputs)
    return reached


def _before_reshape(before: tuple[int, ...], after: tuple[int, ...], piece: Piece, source: Value) -> Piece | None:
    """Elements keep their order: a piece is where the same strides are."""
    stride = piece.stride * prod(after[piece.axis + 1 :])
    for axis, extent in enumerate(before):
        inner = prod(before[axis + 1 :])
        if stride % inner == 0 and extent % (stride // inner * piece.extent) == 0:
            return Piece(source, axis, stride // inner, piece.extent)
    return None

"""The axis of an output along which samples lie: the one that the spec names, or that leads back to inputs'."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.axes.facts import Alike, Axis
from compiler.axes.rules import facts_of
from compiler.axes.walk import Cut, Piece, Walk
from compiler.errors import SpecError
from compiler.graph import Graph, Node
from compiler.ops.record import integer
from compiler.values import Value
from compiler.warnings import CompileWarning

Found = tuple[int, tuple[CompileWarning, ...]]


def batch_axis(graph: Graph, output: Value, stated_axis: int | None, where: str) -> Found:
    """The axis, and what is to be said of it; `where` is the loss in the spec.

    A first axis of samples and positions together may hold the positions of each sample side by side.
    Raises: SpecError if the output has no such axis, or nothing tells which it is.
    """
    shape, name, batch = graph.types[output].shape, graph.name_of(output), graph.batch()
    if stated_axis is not None:
        if stated_axis >= len(shape) or shape[stated_axis] != batch:
            others = " or ".join(str(axis) for axis, extent in enumerate(shape) if extent == batch)
            raise SpecError(
                f"{name}, {graph.types[output]}, does not have the batch, {batch}, in axis {stated_axis}",
                where=f"{where}.batch_axis",
                hint=f"it may be axis {others}" if others else "it is in none: name another output",
            )
        return stated_axis, ()
    return _traced(graph, output, where)


def holds_samples(graph: Graph, output: Value) -> bool:
    """Whether an output that no loss is measured of can be given sample by sample."""
    try:
        axis, warnings = batch_axis(graph, output, None, "outputs")
    except SpecError:
        return False
    return not warnings and graph.types[output].shape[axis : axis + 1] == (graph.batch(),)


def check_samples_apart(graph: Graph) -> None:
    """Raises: SpecError for an input along whose samples something runs: they are positions, and no samples."""
    walk = Walk(graph)
    ends = _Ends(graph, walk)
    for node in graph.nodes:
        for value, axis in _in_order(node, walk):
            inputs = ends.inputs_of(walk.whole(value, axis))
            if not inputs or walk.shape(value)[axis] == 1:
                continue
            name, place = graph.name_of(inputs[0]), graph.batch_axis(inputs[0])
            others = [other for other in range(len(graph.types[inputs[0]].shape)) if other != place]
            alone = f"inputs: {{{name}: {{batch_axis: new}}}} with batch: 1, if the model takes one sequence at a time"
            line = f"say where they lie, as in inputs: {{{name}: {{batch_axis: {others[0]}}}}}, or {alone}"
            raise SpecError(
                f"{node.layer} ({node.op}) runs along axis {place} of it, which is taken for the samples",
                where=f"spec.inputs.{name}",
                hint=line if len(others) > 1 else f"say {alone}",
            )


def _in_order(node: Node, walk: Walk) -> Iterator[tuple[Value, int]]:
    """Operands and the axis of each along which the order counts, or of which only some is read."""
    x = node.inputs[0] if node.inputs else None
    if x is None:
        return
    if node.op == "recurrence":
        yield x, 0
    elif node.op in ("cumulative_sum", "linear_scan"):
        yield x, integer(node.attrs, "axis") % len(walk.shape(x))
    elif node.op == "attention":
        yield from ((operand, 1) for operand in node.inputs[:2])
    elif node.op == "slice":
        cut = zip(walk.shape(x), walk.shape(node.output), strict=True)
        yield from ((x, axis) for axis, (before, after) in enumerate(cut) if before != after)


def _traced(graph: Graph, output: Value, where: str) -> Found:
    shape, name, batch = graph.types[output].shape, graph.name_of(output), graph.batch()
    first = shape[:1] in ((), (1,))
    if batch == 1 and first and not any(graph.batch_axes.get(value) for value in graph.data_inputs()):
        return 0, ()
    walk = Walk(graph)
    ends = _Ends(graph, walk)
    by_axis = {axis: ends.of(walk.whole(output, axis)) for axis, extent in enumerate(shape) if extent == batch}
    proven = [axis for axis, kinds in by_axis.items() if _BATCH in kinds]
    if len(proven) > 1 and batch > 1:
        raise SpecError(
            f"axes {proven[0]} and {proven[1]} of {name}, {graph.types[output]}, both hold the samples",
            where=f"{where}.output",
            hint="it compares them, and they come in any order; one loss of the whole batch is loss: {kind: graph}",
        )
    if proven and _STORED in by_axis[proven[0]]:
        raise SpecError(
            f"a tensor of the file has another row for each of the {batch} samples of {name}",
            where=f"{where}.output",
            hint="samples are drawn in any order; export the model with an open batch, that is, with one row for all",
        )
    if proven:
        return proven[0], ()
    inner = [axis for axis in by_axis if axis + 1 < len(shape)]
    if batch == 1 and len(inner) == 1:  # reshapes pass axes of one sample, which leaves no trace of it
        return _assumed(graph, output, inner[0], where)
    if shape and shape[0] % batch == 0 and shape[0] != batch:
        positions = shape[0] // batch
        if _BATCH in ends.of(Piece(output, 0, positions, batch)):
            return 0, ()
        if _BATCH in ends.of(Piece(output, 0, 1, batch)):
            raise SpecError(
                f"axis 0 of {name}, {graph.types[output]}, holds the samples of each position side by side",
                where=f"{where}.output",
                hint="export the model with its samples before its positions, or as an axis of their own",
            )
    possible = [axis for axis, kinds in by_axis.items() if "unknown" in kinds]
    if not by_axis:
        raise SpecError(
            f"no axis of {name}, {graph.types[output]}, holds the batch, {batch}: it is computed across the samples",
            where=f"{where}.output",
            hint="let the model give a row for each sample; one loss of the whole batch is loss: {kind: graph}",
        )
    if len(possible) != 1:
        raise SpecError(
            f"the graph does not tell which axis of {name}, {graph.types[output]}, holds the batch, {batch}",
            where=f"{where}.output",
            hint="say it, as in loss: {batch_axis: 1}; an axis of samples and positions together cannot be read",
        )
    if possible == [0] and not any(graph.batch_axes.get(value) for value in graph.data_inputs()):
        return 0, ()  # as in all inputs, and no other axis could be it
    return _assumed(graph, output, possible[0], where)


def _assumed(graph: Graph, output: Value, axis: int, where: str) -> Found:
    extent = graph.types[output].shape[axis]
    message = (
        f"axis {axis} of {graph.name_of(output)}, {graph.types[output]}, is taken as the batch: no other has {extent}"
    )
    hint = "say it, as in loss: {batch_axis: 1}"
    return axis, (CompileWarning("loss.batch_axis_assumed", f"{where}.output", message, hint),)


# ------------------------------------------------------------------------------------------------------- following it

_BATCH, _STORED = "batch", "stored"


class _Ends:
    """The origins that axes are led back to: the `batch` of an input, rows `stored` in the file, something `else`, or
    `unknown`.
    """

    def __init__(self, graph: Graph, walk: Walk) -> None:
        self._graph, self._walk = graph, walk
        self._inputs = frozenset(graph.data_inputs())
        self._ends: dict[Piece, frozenset[Value | str]] = {}

    def of(self, piece: Piece) -> set[str]:
        """The kinds of ends."""
        return {end if isinstance(end, str) else _BATCH for end in self._all(piece)}

    def inputs_of(self, piece: Piece) -> list[Value]:
        """The inputs whose samples a piece runs over."""
        return [end for end in self._all(piece) if isinstance(end, Value)]

    def _all(self, start: Piece) -> frozenset[Value | str]:
        pending = [start]
        while pending:
            piece = pending[-1]
            if piece in self._ends:
                pending.pop()
                continue
            ends, before = self._step(piece)
            open_pieces = [step for step in before if step not in self._ends]
            if open_pieces:
                pending += open_pieces
                continue
            self._ends[piece] = ends.union(*(self._ends[step] for step in before))
            pending.pop()
        return self._ends[start]

    def _step(self, piece: Piece) -> tuple[frozenset[Value | str], list[Piece]]:
        """The ends that a piece itself is, and the pieces one step back."""
        if piece.value not in self._walk.makers:
            is_input = self._walk.is_whole(piece) and piece.value in self._inputs
            is_batch = is_input and self._graph.batch_axis(piece.value) == piece.axis
            return frozenset({piece.value if is_batch else "else"}), []
        ends: set[Value | str] = {_STORED} if self._meets_rows(piece) else set()
        before: list[Piece] = []
        for step in self._walk.behind(piece):
            if isinstance(step, Cut) or step == "unknown":  # some of the samples are no batch
                ends.add("unknown")
            elif isinstance(step, Piece):
                before.append(step)
        return frozenset(ends), before

    def _meets_rows(self, piece: Piece) -> bool:
        """Whether what makes a piece also reads a stored tensor that has other numbers at other places along it."""
        walk, to = self._walk, Axis(piece.value, piece.axis)
        facts = facts_of(walk.makers[piece.value], walk.shape) if walk.is_whole(piece) else ()
        return any(isinstance(fact, Alike) and fact.to == to and self._differs(fact.of) for fact in facts)

    def _differs(self, axis: Axis) -> bool:
        array = self._graph.arrays.get(axis.value)
        if array is None or not axis.is_whole:
            return False
        return bool((array != array.take([0], axis.axis)).any())


__all__ = ["batch_axis", "check_samples_apart", "holds_samples"]

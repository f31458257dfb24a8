"""The axis of an output along which samples lie: the one that the spec names, or that leads back to inputs'."""

from __future__ import annotations

from compiler.axes.walk import Cut, Piece, Walk
from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.values import Value
from compiler.warnings import CompileWarning

Found = tuple[int, tuple[CompileWarning, ...]]


def batch_axis(graph: Graph, output: Value, said: int | None, where: str) -> Found:
    """The axis, and what is to be said of it; `where` is the loss in the spec.

    It is the first where all inputs have their samples in the first, and nothing else is said.
    Raises: SpecError if the output has no such axis, or nothing tells which it is.
    """
    shape, name, batch = graph.types[output].shape, graph.name_of(output), graph.batch()
    if said is not None:
        if said >= len(shape) or shape[said] != batch:
            others = " or ".join(str(axis) for axis, extent in enumerate(shape) if extent == batch)
            raise SpecError(
                f"{name}, {graph.types[output]}, does not have the batch, {batch}, in axis {said}",
                where=f"{where}.batch_axis",
                hint=f"it may be axis {others}" if others else "it is in none: name another output",
            )
        return said, ()
    if not any(graph.batch_axes.get(value) for value in graph.data_inputs()):
        return 0, ()
    return _traced(graph, output, where)


def holds_samples(graph: Graph, output: Value) -> bool:
    """Whether an output that no loss is measured of can be given sample by sample."""
    try:
        axis, said = batch_axis(graph, output, None, "outputs")
    except SpecError:
        return False
    return not said and graph.types[output].shape[axis : axis + 1] == (graph.batch(),)


def _traced(graph: Graph, output: Value, where: str) -> Found:
    shape, name, batch = graph.types[output].shape, graph.name_of(output), graph.batch()
    ends = {axis: _ends(graph, output, axis) for axis, extent in enumerate(shape) if extent == batch}
    proven = [axis for axis, found in ends.items() if "batch" in found]
    if proven:
        return proven[0], ()
    possible = [axis for axis, found in ends.items() if "unknown" in found]
    if len(possible) != 1:
        raise SpecError(
            f"the graph does not tell which axis of {name}, {graph.types[output]}, holds the batch, {batch}",
            where=f"{where}.output",
            hint="say it, as in loss: {batch_axis: 1}; an axis of samples and positions together cannot be read",
        )
    message = f"axis {possible[0]} of {name}, {graph.types[output]}, is taken as the batch: no other has {batch}"
    return possible[0], (
        CompileWarning("loss.batch_axis_assumed", f"{where}.output", message, "say it, as in loss: {batch_axis: 1}"),
    )


# ------------------------------------------------------------------------------------------------------- following it


def _ends(graph: Graph, output: Value, axis: int) -> set[str]:
    """What an axis is led back to: the `batch` of an input, something `else`, or it is `unknown`."""
    walk, inputs = Walk(graph), frozenset(graph.data_inputs())
    found: set[str] = set()
    todo, seen = [walk.whole(output, axis)], {walk.whole(output, axis)}
    while todo:
        piece = todo.pop()
        if piece.value not in walk.makers:
            of_batch = walk.is_whole(piece) and piece.value in inputs and graph.batch_axis(piece.value) == piece.axis
            found.add("batch" if of_batch else "else")
            continue
        for step in walk.behind(piece):
            if isinstance(step, Cut) or step == "unknown":  # some of the samples are no batch
                found.add("unknown")
            elif isinstance(step, Piece) and step not in seen:
                seen.add(step)
                todo.append(step)
    return found


__all__ = ["batch_axis", "holds_samples"]

"""The axis of an output along which samples lie: the one that the spec names, or that leads back to inputs'."""

from __future__ import annotations

from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.step.class_axis import axis_ends
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
            raise SpecError(
                f"{name}, {graph.types[output]}, does not have the batch, {batch}, in axis {said}",
                where=f"{where}.batch_axis",
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
    of_batch = {(value, graph.batch_axis(value)) for value in graph.data_inputs()}
    fitting = [axis for axis, extent in enumerate(shape) if extent == batch]
    ends = {axis: axis_ends(graph, output, axis) for axis in fitting}
    proven = [axis for axis in fitting if ends[axis] & of_batch]
    if proven:
        return proven[0], ()
    possible = [axis for axis in fitting if "unknown" in ends[axis]]
    if len(possible) != 1:
        raise SpecError(
            f"the graph does not tell which axis of {name}, {graph.types[output]}, holds the batch, {batch}",
            where=f"{where}.output",
            hint="say it, as in loss: {batch_axis: 1}; axes that hold batch and positions together cannot be read",
        )
    message = f"axis {possible[0]} of {name}, {graph.types[output]}, is taken as the batch: no other has {batch}"
    return possible[0], (
        CompileWarning("loss.batch_axis_assumed", f"{where}.output", message, "say it, as in loss: {batch_axis: 1}"),
    )

"""The axis of an output along which samples lie: the one that the spec names, or that leads back to inputs'."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from compiler.errors import SpecError
from compiler.graph import Graph, Node
from compiler.step.class_axis import Walk
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """`extent` steps of `stride` along an axis of a value: all of it, or what was an axis before axes were joined."""

    value: Value
    axis: int
    stride: int
    extent: int


def _ends(graph: Graph, output: Value, axis: int) -> set[str]:
    """What an axis is led back to: the `batch` of an input, something `else`, or it is `unknown`."""
    walk, inputs = Walk(graph), frozenset(graph.data_inputs())
    start = _Piece(output, axis, 1, graph.types[output].shape[axis])
    found: set[str] = set()
    todo, seen = [start], {start}
    while todo:
        piece = todo.pop()
        node = walk.makers.get(piece.value)
        if node is None:
            is_whole = piece.extent == walk.shape(piece.value)[piece.axis]
            of_batch = is_whole and piece.value in inputs and graph.batch_axis(piece.value) == piece.axis
            found.add("batch" if of_batch else "else")
            continue
        for step in _behind(walk, node, piece):
            if step is None:
                found.add("unknown")
            elif step not in seen:
                seen.add(step)
                todo.append(step)
    return found


def _behind(walk: Walk, node: Node, piece: _Piece) -> Iterator[_Piece | None]:
    """The pieces of operands that a piece of a node's output comes from; None where nobody knows."""
    if node.op == "reshape":
        yield _before_reshape(walk.shape(node.inputs[0]), walk.shape(piece.value), piece, node.inputs[0])
        return
    for step in walk.steps(node, piece.value, piece.axis):
        if not isinstance(step, tuple):
            if step == "unknown":
                yield None
            continue
        name, axis = step
        is_same = walk.shape(name)[axis] == walk.shape(piece.value)[piece.axis]
        yield _Piece(name, axis, piece.stride, piece.extent) if is_same else None


def _before_reshape(before: tuple[int, ...], after: tuple[int, ...], piece: _Piece, source: Value) -> _Piece | None:
    """Elements keep their order: a piece is where the same strides are."""
    stride = piece.stride * prod(after[piece.axis + 1 :])
    for axis, extent in enumerate(before):
        inner = prod(before[axis + 1 :])
        if stride % inner == 0 and extent % (stride // inner * piece.extent) == 0:
            return _Piece(source, axis, stride // inner, piece.extent)
    return None


__all__ = ["batch_axis", "holds_samples"]

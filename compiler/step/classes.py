"""The axis of the logits over which cross-entropy goes: the one that the spec names, or the last if that can be it."""

from __future__ import annotations

from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.spec.loss import LossTerm
from compiler.step.class_axis import axis_source
from compiler.values import Value
from compiler.warnings import CompileWarning


def class_axis(graph: Graph, logits: Value, spec: LossTerm, where: str) -> tuple[int, tuple[CompileWarning, ...]]:
    """The axis, counted from the first, and what is to be said of it; `where` is the loss in the spec.

    Raises: SpecError if the logits have no such axis, or it cannot be the classes.
    """
    shape, name = graph.types[logits].shape, graph.name_of(logits)
    if len(shape) < 2:
        raise SpecError(f"cross-entropy needs logits of rank 2 or more, {name} is {graph.types[logits]}",
                        where=f"{where}.output")  # fmt: skip
    axis = _counted_from_first(spec.class_axis, len(shape), name, f"{where}.class_axis")
    if shape[axis] == 1:
        raise SpecError(
            f"cross-entropy is over axis {axis}, and {name}, {graph.types[logits]}, has 1 class there: its loss is "
            "always 0",
            where=f"{where}.output",
            hint="use kind: mse, or an output with a column for each class",
        )
    return axis, () if spec.class_axis is not None else _assumed_last(graph, logits, f"{where}.output")


def _counted_from_first(axis: int | None, rank: int, name: str, where: str) -> int:
    if axis is None:
        return rank - 1
    if not -rank < axis < rank or axis == 0:
        raise SpecError(
            f"{name} has no axis {axis} for classes: its rank is {rank}, and its axis 0 is the batch",
            where=where,
            hint=f"give 1 to {rank - 1}, or -1 for the last",
        )
    return axis % rank


def _assumed_last(graph: Graph, logits: Value, where: str) -> tuple[CompileWarning, ...]:
    """Raises: SpecError if the layers put the classes elsewhere."""
    tensor, name = graph.types[logits], graph.name_of(logits)
    if len(tensor.shape) == 2 or axis_source(graph, logits, len(tensor.shape) - 1) == "layer":
        return ()
    if axis_source(graph, logits, 1) == "layer":
        raise SpecError(
            f"cross-entropy is over the last axis, but the layers put the classes of {name}, {tensor}, in axis 1",
            where=where,
            hint="say loss: {class_axis: 1}, and give labels without that axis",
        )
    return (
        CompileWarning(
            "loss.class_axis_assumed",
            where,
            f"the last axis of {name}, {tensor}, is taken as its {tensor.shape[-1]} classes; the graph does not tell",
            "say it, as in loss: {class_axis: -1}",
        ),
    )

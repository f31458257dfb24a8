"""The axis of the logits over which cross-entropy goes: the one that the spec names, or the last if that can be it."""

from __future__ import annotations

from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.spec.loss import LossTerm
from compiler.step.class_axis import axis_source
from compiler.values import Value
from compiler.warnings import CompileWarning


def class_axis(
    graph: Graph, logits: Value, spec: LossTerm, where: str, samples: int = 0
) -> tuple[int, tuple[CompileWarning, ...]]:
    """The axis, counted from the first, and what is to be said of it; `where` is the loss in the spec.

    Raises: SpecError if the logits have no such axis, it is that of the samples, or it cannot be the classes.
    """
    shape, name = graph.types[logits].shape, graph.name_of(logits)
    if len(shape) < 2 or (spec.kind == "next_token" and len(shape) != 3):
        expected = "rank 3, [batch, positions, classes]" if spec.kind == "next_token" else "rank 2 or more"
        raise SpecError(
            f"{spec.kind} needs logits of {expected}, {name} is {graph.types[logits]}", where=f"{where}.output"
        )
    axis = _counted_from_first(spec.class_axis, len(shape), name, f"{where}.class_axis", samples)
    if shape[axis] == 1:
        raise SpecError(
            f"cross-entropy is over axis {axis}, and {name}, {graph.types[logits]}, has 1 class there: its loss is "
            "always 0",
            where=f"{where}.output",
            hint="use kind: mse, or an output with a column for each class",
        )
    _check_weights(spec.class_weights, shape[axis], f"{where}.class_weights")
    is_stated = spec.class_axis is not None or spec.kind == "next_token"
    return axis, () if is_stated else _assumed_last(graph, logits, f"{where}.output", samples)


def weighted_axis(graph: Graph, logits: Value, spec: LossTerm, where: str) -> int:
    """The axis of the classes that weights are given for, the last if none is named. Raises: SpecError."""
    shape, name = graph.types[logits].shape, graph.name_of(logits)
    axis = len(shape) - 1 if spec.class_axis is None else spec.class_axis
    if not -len(shape) <= axis < len(shape):
        raise SpecError(f"{name} has no axis {axis} for classes: its rank is {len(shape)}", where=f"{where}.class_axis")
    axis %= len(shape)
    _check_weights(spec.class_weights, shape[axis], f"{where}.class_weights")
    if len(spec.pos_weight) > 1:
        _check_weights(spec.pos_weight, shape[axis], f"{where}.pos_weight")
    return axis


def _check_weights(weights: tuple[float, ...], classes: int, where: str) -> None:
    if weights and len(weights) != classes:
        raise SpecError(f"has {len(weights)} numbers, and there are {classes} classes", where=where)


def _counted_from_first(axis: int | None, rank: int, name: str, where: str, samples: int) -> int:
    if axis is None:
        axis = -1
    if not -rank <= axis < rank or axis % rank == samples:
        others = [at for at in range(rank) if at != samples]
        raise SpecError(
            f"{name} has no axis {axis} for classes: its rank is {rank}, and its axis {samples} is the batch",
            where=where,
            hint=f"give {' or '.join(map(str, others))}" + (", or -1 for the last" if samples != rank - 1 else ""),
        )
    return axis % rank


def _assumed_last(graph: Graph, logits: Value, where: str, samples: int) -> tuple[CompileWarning, ...]:
    """Raises: SpecError if the layers put the classes elsewhere."""
    tensor, name = graph.types[logits], graph.name_of(logits)
    if len(tensor.shape) == 2 or axis_source(graph, logits, len(tensor.shape) - 1) == "layer":
        return ()
    other = 0 if samples == 1 else 1
    if axis_source(graph, logits, other) == "layer":
        raise SpecError(
            f"cross-entropy is over the last axis, but the layers put the classes of {name}, {tensor}, in axis {other}",
            where=where,
            hint=f"say loss: {{class_axis: {other}}}, and give labels without that axis",
        )
    return (
        CompileWarning(
            "loss.class_axis_assumed",
            where,
            f"the last axis of {name}, {tensor}, is taken as its {tensor.shape[-1]} classes; the graph does not tell",
            "say it, as in loss: {class_axis: -1}",
        ),
    )

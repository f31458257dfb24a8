"""The loss: what is measured of the model's outputs, against which labels.

A kind of loss (`compiler.spec.loss`) is one row in `LOSSES`: how its mean is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from compiler.errors import SpecError
from compiler.graph import Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import LossKind, LossSpec, LossTerm
from compiler.step.classes import class_axis
from compiler.step.training import Term, TrainingGraph
from compiler.values import Role, Value
from compiler.warnings import CompileWarning, few_of


def attach_loss(graph: Graph, spec: LossSpec) -> TrainingGraph:
    """Add the inputs for labels, and the mean loss or the weighted sum of several.

    Shapes: logits [..., V]; labels i64 [...] for cross-entropy (negative ones are ignored), f32 [..., V] for the
    others. The classes V are in the last axis, or in the one that the spec names. What is assumed of outputs is added
    to the graph's warnings.
    Raises: SpecError if a named output does not exist or does not fit its loss, or losses disagree about labels.
    """
    writer = _Writer(graph)
    role: Role = "plain" if spec.terms else "loss"
    places = [f"spec.loss.terms[{number}]" for number in range(len(spec.terms))] or ["spec.loss"]
    made = [writer.term(term, where, role) for term, where in zip(spec.each, places, strict=True)]
    loss = writer.total(made) if spec.terms else made[0][1]
    terms = tuple(term for term, _ in made)
    logits = _answer(graph, terms)
    arrays = {value: name for name, value in writer.labels.items()}
    whole = replace(
        writer.b.graph_of(graph),
        inputs=(*graph.inputs, *arrays),
        outputs=(loss, logits),
        warnings=graph.warnings + tuple(writer.warnings),
    )
    data = graph.data_inputs()
    hyper = tuple(value for value in graph.inputs if value not in data)
    step = TrainingGraph(whole, loss, logits, terms, arrays, data, hyper=hyper)
    return step.with_graph(replace(whole, outputs=step.results))


class _Writer:
    """Writes losses behind a graph; terms that name one array of labels share it."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, GraphBuilder(graph)
        self.b.layer = "loss"
        self.labels: dict[str, Value] = {}
        self.warnings: list[CompileWarning] = []

    def term(self, spec: LossTerm, where: str, role: Role) -> tuple[Term, Value]:
        """A loss and its mean, which is a value of `role`."""
        output = _output(self.graph, spec, where)
        tensor, axis = self.graph.types[output], None
        self.warnings += _assumed_output(self.graph, spec, where)
        wanted = tensor
        if tensor.dtype != "f32":
            raise SpecError(f"no loss reads {self.graph.name_of(output)}, which is {tensor}", where=f"{where}.output",
                            hint="name an output of type f32")  # fmt: skip
        if spec.kind == "cross_entropy":
            axis, said = class_axis(self.graph, output, spec, where)
            self.warnings += said
            wanted = TensorType("i64", (*tensor.shape[:axis], *tensor.shape[axis + 1 :]))
        labels = self._labels(spec, where, wanted) if spec.has_labels else None
        if labels is None:
            _check_one_number(self.graph, output, where)
        term = Term(spec.kind, output, labels, spec.weight, axis, spec.delta)
        return term, LOSSES[spec.kind](self.b, term, role)

    def _labels(self, spec: LossTerm, where: str, tensor: TensorType) -> Value:
        held = self.labels.get(spec.labels)
        if held is None:
            held = self.labels[spec.labels] = self.b.fresh("labels")
            self.b.types[held] = tensor
        elif self.b.types[held] != tensor:
            raise SpecError(
                f"this loss needs labels {tensor}, and {spec.labels!r} are {self.b.types[held]} for another",
                where=f"{where}.labels",
                hint="give each its own array, as in labels: boxes",
            )
        return held

    def total(self, made: list[tuple[Term, Value]]) -> Value:
        """The weighted sum."""
        b = self.b
        parts = [mean if term.weight == 1.0 else b.emit("mul", mean, b.constant(term.weight)) for term, mean in made]
        total = parts[0]
        for part in parts[1:-1]:
            total = b.emit("add", total, part)
        if len(parts) == 1:
            return b.emit("identity", total, output=b.fresh("loss"))
        return b.emit("add", total, parts[-1], output=b.fresh("loss"))


def _answer(graph: Graph, terms: tuple[Term, ...]) -> Value:
    """What the model answers: what is measured first, or the first output that is no loss, or else the loss."""
    measured = [term.output for term in terms if term.labels is not None]
    losses = {term.output for term in terms if term.labels is None}
    samples = graph.types[graph.inputs[0]].shape[:1] if graph.inputs else ()
    others = [
        value
        for value in graph.outputs
        if value not in losses and graph.types[value].dtype == "f32" and graph.types[value].shape[:1] == samples != ()
    ]
    return next(iter((*measured, *others, *losses)))


def _assumed_output(graph: Graph, spec: LossTerm, where: str) -> tuple[CompileWarning, ...]:
    if spec.output or len(graph.outputs) == 1:
        return ()
    first, *others = map(graph.name_of, graph.outputs)
    message = f"the loss reads the model's first output, {first!r}; the others are not used: {few_of(others)}"
    return (CompileWarning("loss.output_assumed", f"{where}.output", message, f"say loss: {{output: {first}}}"),)


def _output(graph: Graph, spec: LossTerm, where: str) -> Value:
    if not spec.output:
        return graph.outputs[0]
    outputs = {graph.name_of(value): value for value in graph.outputs}
    if spec.output not in outputs:
        raise SpecError(
            f"the model has no output {spec.output!r}",
            where=f"{where}.output",
            hint=f"outputs: {', '.join(outputs)}",
        )
    return outputs[spec.output]


def _check_one_number(graph: Graph, output: Value, where: str) -> None:
    if graph.types[output].size != 1:
        raise SpecError(
            f"kind: graph needs an output that is one number, {graph.name_of(output)} is {graph.types[output]}",
            where=f"{where}.output",
            hint="let the model return its mean or sum, or choose the kind that it is to be measured by",
        )


# ------------------------------------------------------------------------------------------------------------- kinds

Write = Callable[[GraphBuilder, Term, Role], Value]
"""Writes the mean of a loss, as a value of the given role."""


def _labels_of(term: Term) -> Value:
    assert term.labels is not None
    return term.labels


def _cross_entropy(b: GraphBuilder, term: Term, role: Role) -> Value:
    labels = _labels_of(term)
    rows = b.emit("cross_entropy", _classes_last(b, term), labels)
    axes = tuple(range(len(b.shape(rows))))
    zero = b.constant(np.asarray(0, np.int64))
    counted = b.emit("cast", b.emit("less_equal", zero, labels), to="f32")
    count = b.emit("maximum", b.emit("reduce_sum", counted, axes=axes, keepdims=False), b.constant(1.0))
    total = b.emit("reduce_sum", rows, axes=axes, keepdims=False)
    return b.emit("div", total, count, output=b.fresh(role))


def _classes_last(b: GraphBuilder, term: Term) -> Value:
    rank, axis = len(b.shape(term.output)), term.class_axis
    if axis is None or axis == rank - 1:
        return term.output
    return b.emit("transpose", term.output, perm=(*range(axis), *range(axis + 1, rank), axis))


def _mean(b: GraphBuilder, each: Value, role: Role) -> Value:
    return b.emit("reduce_mean", each, axes=tuple(range(len(b.shape(each)))), keepdims=False, output=b.fresh(role))


def _mean_squared_error(b: GraphBuilder, term: Term, role: Role) -> Value:
    error = b.emit("sub", term.output, _labels_of(term))
    return _mean(b, b.emit("mul", error, error), role)


def _l1(b: GraphBuilder, term: Term, role: Role) -> Value:
    """|error|, whose gradient is 0 where there is none, as in PyTorch."""
    return _mean(b, b.emit("abs", b.emit("sub", term.output, _labels_of(term))), role)


def _huber(b: GraphBuilder, term: Term, role: Role) -> Value:
    """With a = |error| and c = min(a, delta): c (a - c / 2), which is a^2 / 2 up to delta, and a line from there on."""
    size = b.emit("abs", b.emit("sub", term.output, _labels_of(term)))
    capped = b.emit("minimum", size, b.constant(term.delta))
    rest = b.emit("sub", size, b.emit("mul", capped, b.constant(0.5)))
    return _mean(b, b.emit("mul", capped, rest), role)


def _bce_with_logits(b: GraphBuilder, term: Term, role: Role) -> Value:
    return _mean(b, b.emit("bce_with_logits", term.output, _labels_of(term)), role)


def _own(b: GraphBuilder, term: Term, role: Role) -> Value:
    return b.emit("reshape", term.output, shape=(), output=b.fresh(role))


LOSSES: Mapping[LossKind, Write] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_squared_error,
    "l1": _l1,
    "huber": _huber,
    "bce_with_logits": _bce_with_logits,
    "graph": _own,
}

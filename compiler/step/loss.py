"""The loss: what is measured of the model's outputs, against which labels.

The axis of the logits over which cross-entropy goes: the one that the spec names, or the last if that can be it.

Which axis of an output holds the classes: the one that a layer's weights compute, followed back through the graph.

PyTorch's cross_entropy takes axis 1 ([N, C, H, W]), language models leave the classes last ([N, T, V]); a shape alone
does not tell them apart, and the labels of the wrong one are still valid classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.axes.walk import Cut, Piece, Source, Step, Walk
from compiler.errors import SpecError
from compiler.graph import Graph, TensorType
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import CLASSIFYING, LossSpec, LossTerm
from compiler.step.batch_axis import batch_axis, check_samples_apart, holds_samples
from compiler.step.logits import DONE_BY_LOSS, apart, by_sample, logits_of
from compiler.step.loss_kinds import LOSSES
from compiler.step.training import Term, TrainingGraph
from compiler.values import Role, Value
from compiler.warnings import CompileWarning, few_of


def axis_source(graph: Graph, value: Value, axis: int) -> Source:
    """Returns where the extent of an axis comes from. A layer wins: what is added to its outputs does not change
    them.
    """
    walk = Walk(graph)
    sources: set[Source] = set()
    todo, visited = [walk.whole(value, axis)], {walk.whole(value, axis)}
    while todo:
        piece = todo.pop()
        if piece.value not in walk.makers:
            sources.add("layer" if piece.value in walk.learning_values else "data")
            continue
        for step in (_whole(walk, source) for source in walk.behind(piece)):
            if not isinstance(step, Piece):
                sources.add(step)
            elif step not in visited:
                visited.add(step)
                todo.append(step)
    return "layer" if "layer" in sources else "unknown" if "unknown" in sources else "data"


def _whole(walk: Walk, step: Step) -> Piece | Source:
    """Returns where a step leads, for classes: some of an axis' classes are classes, too; what is only a factor of an
    axis may be anything.
    """
    if isinstance(step, Cut):
        return walk.whole(step.value, step.axis)
    return step if not isinstance(step, Piece) or walk.is_whole(step) else "unknown"


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


def attach_loss(graph: Graph, spec: LossSpec) -> TrainingGraph:
    """Adds the inputs for labels, and the loss or the weighted sum of several.

    Shapes: logits [..., V]; labels i64 [...] for cross-entropy and the next token (negative ones are ignored), f32
    [..., V] for the others. The classes V are in the last axis, or in the one that the spec names. What is assumed of
    outputs is added to the graph's warnings.
    Raises: SpecError if a named output does not exist or does not fit its loss, or losses disagree about labels.
    """
    check_samples_apart(graph)
    writer = _Writer(graph)
    role: Role = "plain" if spec.terms else "loss"
    places = [f"spec.loss.terms[{number}]" for number in range(len(spec.terms))] or ["spec.loss"]
    written_terms = [writer.term(term, where, role) for term, where in zip(spec.each, places, strict=True)]
    loss = writer.total(written_terms) if spec.terms else written_terms[0][1]
    terms = tuple(term for term, _ in written_terms)
    logits = _answer(graph, terms, [_output(graph, term, where) for term, where in zip(spec.each, places, strict=True)])
    arrays = {value: name for name, value in writer.labels.items()}
    answer_axis = writer.axes[logits] if logits in writer.axes else _axis_of(graph, logits, terms)
    axes = {value: axis for value, axis in {**writer.axes, logits: answer_axis}.items() if axis}
    whole = replace(
        writer.b.graph_of(graph),
        inputs=(*graph.inputs, *arrays),
        outputs=(loss, logits),
        warnings=graph.warnings + tuple(writer.warnings),
    )
    data = graph.data_inputs()
    hyper = tuple(value for value in graph.inputs if value not in data)
    step = TrainingGraph(whole, loss, logits, terms, arrays, data, hyper=hyper, batch_axes={**graph.batch_axes, **axes})
    return step.with_graph(replace(whole, outputs=step.results))


class _Writer:
    """Writes losses behind a graph; terms that name one array of labels share it."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, GraphBuilder(graph)
        self.b.layer = "loss"
        self.labels: dict[str, Value] = {}
        self.ignored: dict[Value, int] = {}
        self.axes: dict[Value, int] = {}
        """The axes of outputs and labels along which the samples lie."""
        self.warnings: list[CompileWarning] = []

    def term(self, spec: LossTerm, where: str, role: Role) -> tuple[Term, Value]:
        """A loss and its value, which has `role`."""
        output = _output(self.graph, spec, where)
        tensor = self.graph.types[output]
        self.warnings += _assumed_output(self.graph, spec, where)
        if tensor.dtype != "f32":
            raise SpecError(
                f"no loss reads {self.graph.name_of(output)}, which is {tensor}",
                where=f"{where}.output",
                hint="name an output of type f32",
            )
        if spec.has_labels:
            term = self._measured(spec, where, output)
        else:
            _check_one_number(self.graph, output, where)
            term = Term(spec.kind, output, None, spec.weight)
        return term, LOSSES[spec.kind](self.b, term, role)

    def _measured(self, spec: LossTerm, where: str, output: Value) -> Term:
        samples, warnings = batch_axis(self.graph, output, spec.batch_axis, where)
        classes, label_type, at = None, self.graph.types[output], samples
        # Samples and positions that share an axis are taken apart: labels have a row for each sample.
        shape = apart(label_type.shape, self.graph.batch()) if samples == 0 else label_type.shape
        more = len(shape) - len(label_type.shape)
        label_type = TensorType(label_type.dtype, shape)
        if spec.kind in CLASSIFYING:
            classes, assumed = class_axis(self.graph, output, spec, where, samples)
            classes += more
            warnings += assumed
            label_type = TensorType("i64", (*label_type.shape[:classes], *label_type.shape[classes + 1 :]))
            at = samples - (classes < samples)
        elif spec.class_weights or spec.pos_weight:
            classes = weighted_axis(self.graph, output, spec, where) + more
        self.warnings += warnings
        labels = self._labels(spec, where, label_type, at)
        read = self._read_of(spec, where, output)
        if more:
            read = by_sample(self.b, self.graph, read)
        if spec.kind in CLASSIFYING and self.ignored.setdefault(labels, spec.ignore_index) != spec.ignore_index:
            raise SpecError(
                f"another loss that reads {spec.labels!r} ignores {self.ignored[labels]}, this one {spec.ignore_index}",
                where=f"{where}.ignore_index",
                hint="say the same, or give each its own array, as in labels: boxes",
            )
        self.axes[output] = samples
        if read != output:
            self.axes[read] = samples
        return Term(
            spec.kind,
            read,
            labels,
            spec.weight,
            classes,
            samples,
            delta=spec.beta if spec.kind == "smooth_l1" else spec.delta,
            is_sum=spec.reduction == "sum",
            ignored=spec.ignore_index,
            smoothing=spec.label_smoothing,
            class_weights=spec.class_weights,
            pos_weight=spec.pos_weight,
        )

    def _read_of(self, spec: LossTerm, where: str, output: Value) -> Value:
        """Returns what a loss that does its own softmax or sigmoid reads of an output that is one already."""
        logits = logits_of(self.b, self.graph, output, spec)
        if logits is None:
            return output
        operator = DONE_BY_LOSS[spec.kind][0]
        if logits.source == "activation":
            what = f"is a {operator}'s: the loss reads what is in front of it, since {spec.kind} takes its own"
            code, hint = "loss.before_activation", "nothing need be done; what the model answers, and its file, keep it"
        elif logits.source == "probabilities":
            what = f"holds probabilities: the loss is of them, and {spec.kind} takes no {operator} of its own"
            code, hint = "loss.on_probabilities", "nothing need be done; if it holds logits, say loss: {on: logits}"
        else:
            what = f"lies between 0 and 1, and {spec.kind} does a {operator} of its own"
            code = "loss.of_shares"
            hint = "say what it holds, as in loss: {on: probabilities}, or {on: logits} if this is meant"
        if logits.source == "activation" or spec.on is None:
            self.warnings += (CompileWarning(code, f"{where}.output", f"{self.graph.name_of(output)!r} {what}", hint),)
        return logits.value

    def _labels(self, spec: LossTerm, where: str, tensor: TensorType, samples: int) -> Value:
        if spec.kind == "next_token":
            input_value = next(
                (value for value in self.graph.data_inputs() if self.graph.name_of(value) == spec.labels), None
            )
            if input_value is not None:
                return self._own_input(input_value, where, tensor, samples)
        label_value = self.labels.get(spec.labels)
        if label_value is None:
            label_value = self.labels[spec.labels] = self.b.fresh("labels")
            self.b.types[label_value] = tensor
            self.axes[label_value] = samples
        elif self.b.types[label_value] != tensor or self.axes[label_value] != samples:
            raise SpecError(
                f"this loss needs labels {tensor}, and {spec.labels!r} are {self.b.types[label_value]} for another",
                where=f"{where}.labels",
                hint="give each its own array, as in labels: boxes",
            )
        return label_value

    def _own_input(self, input_value: Value, where: str, tensor: TensorType, samples: int) -> Value:
        """Returns one of the model's inputs, as labels."""
        have = self.graph.types[input_value]
        if (
            have.shape != tensor.shape
            or have.dtype not in ("i64", "i32")
            or self.graph.batch_axis(input_value) != samples
        ):
            raise SpecError(
                f"the next token needs labels {tensor}, and the input {self.graph.name_of(input_value)!r} is {have}",
                where=f"{where}.labels",
                hint="give an array of its own, as in labels: y",
            )
        return input_value

    def total(self, written_terms: list[tuple[Term, Value]]) -> Value:
        """The weighted sum."""
        b = self.b
        parts = [
            mean if term.weight == 1.0 else b.emit("mul", mean, b.constant(term.weight)) for term, mean in written_terms
        ]
        total = parts[0]
        for part in parts[1:-1]:
            total = b.emit("add", total, part)
        if len(parts) == 1:
            return b.emit("identity", total, output=b.fresh("loss"))
        return b.emit("add", total, parts[-1], output=b.fresh("loss"))


def _answer(graph: Graph, terms: tuple[Term, ...], outputs: Sequence[Value]) -> Value:
    """Returns the model's answer: the output measured first, or the first output that is no loss, or else the loss."""
    measured = [output for term, output in zip(terms, outputs, strict=True) if term.labels is not None]
    losses = {term.output for term in terms if term.labels is None}
    others = [
        value
        for value in graph.outputs
        if value not in losses and graph.types[value].dtype == "f32" and graph.inputs and holds_samples(graph, value)
    ]
    return next(iter((*measured, *others, *losses)))


def _axis_of(graph: Graph, answer: Value, terms: tuple[Term, ...]) -> int:
    """Returns where the samples of what the model answers lie; 0 for a loss, which has none."""
    measured = {term.output: term.batch_axis for term in terms if term.labels is not None}
    if answer in measured or any(term.output == answer for term in terms):
        return measured.get(answer, 0)
    return batch_axis(graph, answer, None, "outputs")[0]


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

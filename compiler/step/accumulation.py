"""A step of several micro-batches: the gradients of all but the last are added up, and the last one updates.

Rewrites: every gradient g of the step -> (g + accumulated) / micro_batches; as a mean over labels, of which c count in
a micro-batch -> (c g + accumulated) / (the sum of c), and the loss in the same way. Ensures: `accumulation` is the same
step without updates, whose gradients (times c) are added to the accumulators, in place; statistics of batches are kept
by both. The runtime clears the accumulators before a step, so that they hold nothing between two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.errors import SpecError
from compiler.graph import Graph
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.documents import AccumulateSpec
from compiler.step.loss_kinds import label_count, positive_or_1
from compiler.step.training import IGNORED, Term, TrainingGraph
from compiler.values import Value
from compiler.warnings import CompileWarning

WHERE = "spec.accumulate"


def accumulate(step: TrainingGraph, spec: AccumulateSpec) -> TrainingGraph:
    """The step with gradients averaged over its micro-batches, or over their labels; unchanged if it has one.

    Raises: SpecError for a mean over labels of losses that count different ones, or none.
    """
    if spec.steps == 1:
        return step
    counting = _counting(step) if spec.mean == "labels" else None
    if counting is not None:
        return _by_labels(step, counting)
    accumulators = _of_gradients(step)
    b = _builder(step, accumulators)
    averaged = {}
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        total = b.emit("add", step.gradients[parameter], accumulated)
        averaged[parameter] = b.emit("mul", total, b.constant(1 / spec.steps))
    averages = _averaged(step, b, averaged, accumulators, _adding(step, accumulators))
    warnings = () if spec.mean == "labels" else _remarks(step)
    return averages.with_graph(replace(averages.graph, warnings=(*averages.graph.warnings, *warnings)))


def with_fresh_values(accumulation: TrainingGraph, graph: Graph) -> TrainingGraph:
    """Returns the same step, ready for passes: what they make is none of the values that passes made of `graph`."""
    return accumulation.with_graph(replace(accumulation.graph, next_number=graph.next_number))


# --------------------------------------------------------------------------------------------------- micro-batches


def _adding(step: TrainingGraph, accumulators: dict[Value, Value]) -> TrainingGraph:
    """The step of a micro-batch that adds its gradients to the accumulators."""
    b = _builder(step, accumulators)
    updates = dict(step.updates)
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        updates[accumulated] = accumulated.updated()
        b.emit("accumulate", accumulated, step.gradients[parameter], output=accumulated.updated())
    return _added(step, b, updates, accumulators)


def _remarks(step: TrainingGraph) -> tuple[CompileWarning, ...]:
    """Warns where the mean of means is another loss than the mean over all labels, which `eval` reports."""
    reasons = {reason for term in step.terms for reason in _reasons(step.graph, term)}
    if not reasons:
        return ()
    message = (
        f"each micro-batch counts the same, however many of its labels count ({', '.join(sorted(reasons))}): "
        "another loss is trained than `eval` reports"
    )
    hint = "say accumulate: {steps: K, mean: labels}, which counts each label of a step once"
    return (CompileWarning("loss.mean_of_means", WHERE, message, hint),)


def _reasons(graph: Graph, term: Term) -> list[str]:
    if not term.classifies or term.is_sum or term.labels is None:
        return []
    labels = graph.types[term.labels]
    reasons = ["class_weights"] if term.class_weights else []
    may_be_ignored = term.ignored != IGNORED or labels.size > labels.shape[_samples_along(term)]
    return [*reasons, f"ignore_index {term.ignored}"] if may_be_ignored else reasons


def _samples_along(term: Term) -> int:
    """The axis of a term's labels along which the samples lie."""
    return term.batch_axis - (term.class_axis is not None and term.class_axis < term.batch_axis)


# ---------------------------------------------------------------------------------------------------------- labels


@dataclass(frozen=True, slots=True)
class _Sums:
    """Accumulators beside those of gradients: how many labels counted, and the sum of what they lost."""

    labels: Value
    loss: Value

    @property
    def all(self) -> dict[Value, Value]:
        """Returns the values that are summed, with what each is the sum of."""
        return {value: value.of for value in (self.labels, self.loss) if value.of is not None}


def _counting(step: TrainingGraph) -> Term | None:
    """The term by whose labels a step is averaged; None where every micro-batch counts as many."""
    for term in step.terms:
        if term.is_sum:
            raise SpecError(
                "a loss that is added up (`reduction: sum`) has no mean over labels",
                where=WHERE,
                hint="leave the reduction out, or the mean",
            )
        if term.labels is None:
            raise SpecError(
                "the model computes its loss itself (`kind: graph`), so nothing tells which labels count",
                where=WHERE,
                hint="take the logits out and give the loss in the spec",
            )
    first, *others = (_counted_by(term) for term in step.terms)
    if any(other != first for other in others):
        raise SpecError(
            "the terms of the loss count different labels, or weigh them differently: their sum is no mean",
            where=WHERE,
            hint="leave `mean: labels` out, or train one of the terms",
        )
    return step.terms[0] if first is not None else None


def _counted_by(term: Term) -> tuple[object, ...] | None:
    """Returns what determines the number of a term's labels that count; None where all do."""
    return (term.kind, term.labels, term.ignored, term.class_weights) if term.classifies else None


def _by_labels(step: TrainingGraph, counting: Term) -> TrainingGraph:
    assert counting.labels is not None
    sums = _Sums(counting.labels.state("accumulated"), step.loss.state("accumulated"))
    accumulators = _of_gradients(step)
    b = _builder(step, accumulators, sums)
    _stand_at_loss(b)
    count = label_count(b, counting)
    share = b.emit("reciprocal", positive_or_1(b, b.emit("add", count, sums.labels)))
    lost = b.emit("add", b.emit("mul", step.loss, count), sums.loss)
    loss = b.emit("mul", lost, share, output=b.fresh("loss"))
    averaged = {}
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        total = b.emit("add", b.emit("mul", step.gradients[parameter], count), accumulated)
        averaged[parameter] = b.emit("mul", total, share)
    adding = _adding_by_labels(step, accumulators, sums, counting)
    whole = replace(step, loss=loss)
    return _averaged(whole, b, averaged, {**accumulators, **sums.all}, adding)


def _adding_by_labels(
    step: TrainingGraph, accumulators: dict[Value, Value], sums: _Sums, counting: Term
) -> TrainingGraph:
    """`_adding` of gradients times the number of labels; the loss is that of the micro-batch."""
    b = _builder(step, accumulators, sums)
    updates = dict(step.updates)
    _stand_at_loss(b)
    count = label_count(b, counting)
    for accumulated, term in ((sums.labels, count), (sums.loss, b.emit("mul", step.loss, count))):
        updates[accumulated] = b.emit("accumulate", accumulated, term, output=accumulated.updated())
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        term = b.emit("mul", step.gradients[parameter], count)
        updates[accumulated] = b.emit("accumulate", accumulated, term, output=accumulated.updated())
    return _added(step, b, updates, {**accumulators, **sums.all})


# ------------------------------------------------------------------------------------------------------------ both


def _of_gradients(step: TrainingGraph) -> dict[Value, Value]:
    return {parameter.state("accumulated"): parameter for parameter in step.gradients}


def _averaged(
    step: TrainingGraph,
    b: GraphBuilder,
    averaged: dict[Value, Value],
    accumulators: dict[Value, Value],
    accumulation: TrainingGraph,
) -> TrainingGraph:
    outputs = (*step.results, *step.graph.outputs[len(step.results) :], *averaged.values())
    graph = replace(b.graph_of(step.graph), inputs=(*step.graph.inputs, *accumulators), outputs=outputs)
    return replace(step, graph=graph, gradients=averaged, accumulators=accumulators, accumulation=accumulation)


def _added(
    step: TrainingGraph, b: GraphBuilder, updates: dict[Value, Value], accumulators: dict[Value, Value]
) -> TrainingGraph:
    outputs = (*step.results, *updates.values())
    graph = replace(b.graph_of(step.graph), inputs=(*step.graph.inputs, *accumulators), outputs=outputs)
    return replace(step, graph=graph, updates=updates, accumulators=accumulators)


def _builder(step: TrainingGraph, accumulators: dict[Value, Value], sums: _Sums | None = None) -> GraphBuilder:
    b = GraphBuilder(step.graph)
    b.phase = "update"
    b.types.update({value: b.types[step.gradients[parameter]] for value, parameter in accumulators.items()})
    if sums is not None:
        b.types.update(dict.fromkeys(sums.all, b.types[step.loss]))
    return b


def _stand_at(b: GraphBuilder, graph: Graph, parameter: Value) -> None:
    details = graph.parameters[parameter]
    b.layer, b.parameter = details.layer, details.name


def _stand_at_loss(b: GraphBuilder) -> None:
    b.layer, b.parameter = "loss", ""

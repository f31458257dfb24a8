"""A step of several micro-batches: the gradients of all but the last are added up, and the last one updates.

Rewrites: every gradient g of the step -> (g + accumulated) / micro_batches. Ensures: `accumulation` is the same step
without updates, whose gradients are added to the accumulators, in place; statistics of batches are kept by both.
The runtime clears the accumulators before a step, so that they hold nothing between two.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.graph import Graph
from compiler.rewriting.builder import GraphBuilder
from compiler.step.training import TrainingGraph
from compiler.values import Value


def accumulate(step: TrainingGraph, micro_batches: int) -> TrainingGraph:
    """The step with gradients averaged over its micro-batches; unchanged if it has one."""
    if micro_batches == 1:
        return step
    accumulators = {parameter.state("accumulated"): parameter for parameter in step.gradients}
    b = _builder(step, step.graph, accumulators)
    averaged = {}
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        total = b.emit("add", step.gradients[parameter], accumulated)
        averaged[parameter] = b.emit("mul", total, b.constant(1 / micro_batches))
    outputs = (*step.graph.outputs, *averaged.values())
    graph = replace(b.graph_of(step.graph), inputs=(*step.graph.inputs, *accumulators), outputs=outputs)
    return replace(
        step,
        graph=graph,
        gradients=averaged,
        accumulators=accumulators,
        accumulation=_adding(step, accumulators),
    )


def beside(accumulation: TrainingGraph, graph: Graph) -> TrainingGraph:
    """The same, ready for passes: what they make is none of the values that passes made of `graph`."""
    return accumulation.with_graph(replace(accumulation.graph, next_number=graph.next_number))


def _adding(step: TrainingGraph, accumulators: dict[Value, Value]) -> TrainingGraph:
    """The step of a micro-batch that adds its gradients to the accumulators."""
    b = _builder(step, step.graph, accumulators)
    updates = dict(step.updates)
    for accumulated, parameter in accumulators.items():
        _stand_at(b, step.graph, parameter)
        updates[accumulated] = accumulated.updated()
        b.emit("accumulate", accumulated, step.gradients[parameter], output=accumulated.updated())
    outputs = (*step.results, *updates.values())
    graph = replace(b.graph_of(step.graph), inputs=(*step.graph.inputs, *accumulators), outputs=outputs)
    return replace(step, graph=graph, updates=updates, accumulators=accumulators)


def _builder(step: TrainingGraph, graph: Graph, accumulators: dict[Value, Value]) -> GraphBuilder:
    b = GraphBuilder(graph)
    b.phase = "update"
    b.types.update({value: b.types[step.gradients[parameter]] for value, parameter in accumulators.items()})
    return b


def _stand_at(b: GraphBuilder, graph: Graph, parameter: Value) -> None:
    known = graph.parameters[parameter]
    b.layer, b.parameter = known.layer, known.name

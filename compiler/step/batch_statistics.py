"""`batch_norm: train`: a training step normalises by the statistics of its own batch, and keeps the running ones.

Rewrites: each `statistic` of a norm, which stands for a running mean or variance, becomes that of the norm's input over
the batch, with its gradient; an update of the running one, in its place, joins the step. Requires: graphs whose norms
were imported so. Ensures: the forward graph is as it was, and evaluates with the running statistics.
Source: torch.nn.BatchNorm2d in training mode: it normalises by the biased variance and keeps the unbiased one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from compiler.errors import SpecError
from compiler.graph import Node
from compiler.ops.record import number, text
from compiler.rewriting.builder import GraphBuilder
from compiler.step.training import TrainingGraph
from compiler.values import Value


def use_batch_statistics(step: TrainingGraph) -> TrainingGraph:
    """The step with its norms in training mode; unchanged if none of them has running statistics.

    Raises: SpecError naming a norm that sees one number per channel.
    """
    graph = step.graph
    if not any(node.op == "statistic" for node in graph.nodes):
        return step
    b = GraphBuilder(graph, keep_nodes=False)
    batches: list[_Batch] = []
    for node in graph.nodes:
        if node.op == "statistic":
            batches.append(_of_batch(b, node))
        else:
            b.nodes.append(node)
    updates = _updates(b, batches)
    updated_graph = replace(b.graph_of(graph), outputs=(*graph.outputs, *updates.values()))
    return replace(step, graph=updated_graph, updates={**step.updates, **updates})


@dataclass(frozen=True, slots=True)
class _Batch:
    """A statistic of a batch of `count` numbers per channel, and the node whose place it took."""

    node: Node
    value: Value
    count: int

    @property
    def correction(self) -> float:
        """Returns the correction of a variance that is to be kept: it is that of all data, of which the batch is a
        sample.
        """
        return self.count / (self.count - 1) if text(self.node.attrs, "kind") == "variance" else 1.0


def _of_batch(b: GraphBuilder, node: Node) -> _Batch:
    _, x = node.inputs
    shape = b.shape(x)
    count, rows = prod(shape[:-1]), tuple(range(len(shape) - 1))
    if count == 1:
        raise SpecError(
            "batch_norm: train needs more than 1 number per channel, and the batch holds 1",
            where=node.layer or "spec.batch",
            hint="give the spec a batch of 2 or more, or say batch_norm: frozen",
        )
    b.stand_for(node)
    mean_of_x = node.output if text(node.attrs, "kind") == "mean" else None
    mean = b.emit("reduce_mean", x, output=mean_of_x, axes=rows, keepdims=False)
    if mean_of_x is None:
        centred = b.emit("sub", x, b.emit("held", mean))
        square = b.emit("mul", centred, centred)
        b.emit("reduce_mean", square, output=node.output, axes=rows, keepdims=False)
    return _Batch(node, node.output, count)


def _updates(b: GraphBuilder, norms: list[_Batch]) -> Mapping[Value, Value]:
    """A norm that is called several times updates its statistics as often, in this order."""
    calls: dict[Value, list[_Batch]] = {}
    for batch in norms:
        calls.setdefault(batch.node.inputs[0], []).append(batch)
    b.phase, b.parameter = "update", ""
    for running, batches in calls.items():
        first = batches[0].node
        b.layer = first.layer
        b.emit(
            "running_update",
            running,
            *(batch.value for batch in batches),
            output=running.updated(),
            momentum=number(first.attrs, "momentum"),
            corrections=tuple(batch.correction for batch in batches),
        )
    return {running: running.updated() for running in calls}

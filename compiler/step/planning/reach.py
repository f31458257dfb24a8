"""Finds what a loss depends on."""

from __future__ import annotations

from collections.abc import Collection

from compiler.ops import OPERATORS
from compiler.ops.record import NotDifferentiable
from compiler.step.training import TrainingGraph
from compiler.values import Value

Reach = Collection[Value]


def reached_by_loss(step: TrainingGraph) -> Reach:
    """Every value from which a differentiable path may lead to the loss."""
    reached = {step.loss}
    for node in reversed(step.graph.nodes):
        if not reached.isdisjoint(node.outputs) and not isinstance(OPERATORS[node.op].grad, NotDifferentiable):
            reached.update(node.inputs)
    return frozenset(reached)

"""The training graph: a forward graph with its loss, gradients and updates, and what its values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from compiler.graph import Graph
from compiler.values import Value


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A graph whose outputs are the loss, the logits and the updated state.

    `updates` maps a parameter or optimizer-state value to the value that replaces it after the step;
    `optimizer_state` maps each optimizer-state value (a graph input without data) to its parameter; `hyper` are numbers
    that are fed to every step.
    """

    graph: Graph
    loss: Value
    logits: Value
    labels: Value
    data_inputs: tuple[Value, ...]
    loss_kind: Literal["cross_entropy", "mse"]
    class_axis: int | None = None
    """Of the logits; None where the loss has no classes."""
    gradients: Mapping[Value, Value] = field(default_factory=dict)
    updates: Mapping[Value, Value] = field(default_factory=dict)
    optimizer_state: Mapping[Value, Value] = field(default_factory=dict)
    hyper: tuple[Value, ...] = ()

    def with_graph(self, graph: Graph) -> TrainingGraph:
        """The same training step with a rewritten graph."""
        return replace(self, graph=graph)

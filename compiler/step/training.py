"""The training graph: a forward graph with its loss, gradients and updates, and what its values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compiler.errors import InternalError
from compiler.graph import Graph
from compiler.spec.loss import CLASSIFYING, LABELS, LossKind
from compiler.values import Value

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Term:
    """A loss of a step: which output it reads, against which labels (none: the output is the loss), times what."""

    kind: LossKind
    output: Value
    labels: Value | None
    """An input that takes labels; or, of the next token, one of the model's own."""
    weight: float = 1.0
    class_axis: int | None = None
    """The class axis of the output; None where the loss has no classes."""
    batch_axis: int = 0
    """The axis of the output along which the samples lie."""
    delta: float = 1.0
    """The error at which a parabola turns into lines, whatever the kind calls it."""
    is_sum: bool = False
    """Whether what is measured is added up, and not averaged."""
    ignored: int = IGNORED
    """A label that counts for nothing."""
    smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    pos_weight: tuple[float, ...] = ()
    """The weight of a label of 1: nothing said, one number, or one for each class."""

    @property
    def classifies(self) -> bool:
        """Whether its labels are numbers of classes."""
        return self.kind in CLASSIFYING

    @property
    def is_shifted(self) -> bool:
        """Whether a position is measured against the label of the next one."""
        return self.kind == "next_token"


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A graph whose outputs are the loss, the logits and the updated state.

    `label_arrays` maps each input that takes labels to the array of a data set that it takes; `updates` maps a
    parameter or optimizer-state value to the value that replaces it after the step; `optimizer_state` maps each
    optimizer-state value (a graph input without data) to its parameter; `hyper` are numbers that are fed to every step.
    """

    graph: Graph
    loss: Value
    logits: Value
    """The model's answer: the first output that is measured against labels, or else is no loss."""
    terms: tuple[Term, ...]
    label_arrays: Mapping[Value, str]
    data_inputs: tuple[Value, ...]
    gradients: Mapping[Value, Value] = field(default_factory=dict)
    updates: Mapping[Value, Value] = field(default_factory=dict)
    optimizer_state: Mapping[Value, Value] = field(default_factory=dict)
    hyper: tuple[Value, ...] = ()
    accumulators: Mapping[Value, Value] = field(default_factory=dict)
    """Input that holds the sum of a gradient over the other micro-batches of the step -> its parameter; of a mean over
    labels also those of the labels that count -> the labels, and of what they lost -> the loss of one micro-batch."""
    accumulation: TrainingGraph | None = None
    """The step of a micro-batch that is not the last of its step; None where a step has one."""
    batch_axes: Mapping[Value, int | None] = field(default_factory=dict)
    """The batch axes of inputs, labels and outputs whose samples do not lie along the first axis, as in
    `Graph.batch_axes`.
    """

    @property
    def labels(self) -> Value:
        """The only input that takes labels. Raises: InternalError if there are none or several."""
        if len(self.label_arrays) != 1:
            raise InternalError(f"{len(self.label_arrays)} inputs take labels, not one", where="loss")
        return next(iter(self.label_arrays))

    @property
    def is_mean_of_labels(self) -> bool:
        """Whether the loss of its last micro-batch is that of all, by the labels that count."""
        return any(value not in self.graph.parameters for value in self.accumulators.values())

    @property
    def plain_labels(self) -> bool:
        """Whether it takes what most steps do: one array of labels, the one that is called as labels are."""
        return tuple(self.label_arrays.values()) == (LABELS,)

    @property
    def results(self) -> tuple[Value, ...]:
        """Returns the outputs of a step beside new state: the loss, and the logits if a loss reads them."""
        is_read = any(term.output == self.logits for term in self.terms)
        return (self.loss, self.logits) if is_read else (self.loss,)

    @property
    def answers(self) -> tuple[Value, ...]:
        """Returns the outputs of the forward program: the logits, and whatever else the losses read."""
        return tuple(dict.fromkeys((self.logits, *(term.output for term in self.terms))))

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Returns the graph of the step, and that of its other micro-batches, each with constants of its own."""
        return (self.graph,) if self.accumulation is None else (self.graph, self.accumulation.graph)

    def with_graph(self, graph: Graph) -> TrainingGraph:
        """Returns the same training step with a rewritten graph."""
        return replace(self, graph=graph)

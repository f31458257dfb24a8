"""The logits in front of the softmaxes or sigmoids with which a model ends.

Estimates what an output looks like, whatever a model has learned: computes it of drawn numbers in place of what its
weights give.

However a model spells it, an output of probabilities lies between 0 and 1, and those of classes add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from compiler.axes.facts import Alike, Axis
from compiler.axes.rules import VIEWS, facts_of
from compiler.graph import Array, AttrValue, Graph, Node
from compiler.ops import OPERATORS, WEIGHTED
from compiler.rewriting.builder import GraphBuilder
from compiler.spec.loss import CLASSIFYING, LossKind, LossSpec, LossTerm
from compiler.values import Value

DEVIATION = 3.0
"""The deviation of what is drawn: far enough from 0 to leave the straight part of a sigmoid."""
MAX_ELEMENTS = 1 << 25
"""The most elements that are computed; a longer tail than that tells nothing."""
CLOSE = 1e-3
"""The largest distance from 1 of sums of probabilities: some models add a small number to what they divide by."""


def lies_between_0_and_1(array: Array) -> bool:
    """Whether an array may be probabilities; zeros alone say nothing: something multiplies by 0."""
    return bool(array.any() and array.min() >= 0 and array.max() <= 1)


def adds_up_to_1(array: Array, axis: int) -> bool:
    """Whether an array may be probabilities of classes along an axis."""
    return array.ndim > 0 and bool(np.abs(array.sum(axis) - 1).max(initial=0.0) < CLOSE)


def drawn(graph: Graph, output: Value) -> Array | None:
    """An output of drawn numbers in place of inputs and of what weights give; None where that is not computed."""
    nodes = _tail(graph, output)
    if not nodes or sum(math.prod(graph.types[value].shape) for node in nodes for value in node.outputs) > MAX_ELEMENTS:
        return None
    random = np.random.default_rng(0)
    values: dict[Value, Array] = {}
    try:
        for node in nodes:
            operands = [_operand(graph, values, value, random) for value in node.inputs]
            with np.errstate(all="ignore"):
                results = OPERATORS[node.op].evaluate(operands, node.attrs)
            values.update(zip(node.outputs, results, strict=True))
    except Exception:  # an operator may refuse what was drawn: a place beyond its table, say
        return None
    return values[output]


def _operand(graph: Graph, values: dict[Value, Array], value: Value, random: np.random.Generator) -> Array:
    stored = graph.arrays.get(value)
    if stored is not None:
        return stored
    if value not in values:
        kind = graph.types[value]
        numbers = random.standard_normal(kind.shape) * DEVIATION
        values[value] = numbers.astype(np.float32) if kind.dtype == "f32" else np.zeros(kind.shape, kind.element.numpy)
    return values[value]


def _tail(graph: Graph, output: Value) -> list[Node]:
    """The nodes behind the last weights, in the graph's order."""
    needed, nodes, weights = {output}, list[Node](), _weights(graph)
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs) or (node.op in WEIGHTED and not weights.isdisjoint(node.inputs)):
            continue
        nodes.append(node)
        needed.update(node.inputs)
    return nodes[::-1]


def _weights(graph: Graph) -> set[Value]:
    """Parameters, and what follows from them alone."""
    weights, data = set(graph.parameters), set(graph.inputs)
    for node in graph.nodes:
        if not data.isdisjoint(node.inputs):
            data.update(node.outputs)
        elif not weights.isdisjoint(node.inputs):
            weights.update(node.outputs)
    return weights


DONE_BY_LOSS: Mapping[LossKind, Sequence[str]] = {
    **dict.fromkeys(CLASSIFYING, ("softmax", "safe_softmax")),
    "bce_with_logits": ("sigmoid",),
}
"""Kinds of losses that do on their own what a model may have done."""
LEAST, MOST = 2.0**-126, 1 - 2.0**-24
"""The float32 numbers next to 0 and 1 (the smallest normal one) of which there are logarithms."""
LOG_OF_0 = -100.0
_MOVED: Mapping[str, slice] = {
    **dict.fromkeys((*VIEWS, "broadcast_to", "gather", "slice"), slice(1)),
    "concat": slice(None),
    "where": slice(1, None),
}
"""Operators that compute nothing: the operands whose elements they hand on."""


@dataclass(frozen=True)
class Logits:
    """The value that a loss reads of an output that is not its logits; `source` says where it comes from.

    `shares` lie between 0 and 1 and may be meant otherwise: they are read as they are.
    """

    value: Value
    source: Literal["activation", "probabilities", "shares"]


def expose_logits(graph: Graph, spec: LossSpec) -> Graph:
    """The graph with what losses read of its outputs: logits of what a softmax or sigmoid gives, rows of samples."""
    outputs = {graph.name_of(value): value for value in graph.outputs}
    b = GraphBuilder(graph)
    for term in spec.each:
        output = outputs.get(term.output) if term.output else graph.outputs[0]
        if output is not None:
            logits = logits_of(b, graph, output, term)
            by_sample(b, graph, output if logits is None else logits.value)
    return b.graph_of(graph)


def by_sample(b: GraphBuilder, graph: Graph, value: Value) -> Value:
    """[samples * positions, ...] as [samples, positions, ...]; another value as it is.

    It is of `graph` itself after `expose_logits`.
    """
    shape = apart(b.shape(value), graph.batch())
    return value if shape == b.shape(value) else _Writer(b, graph).emit("reshape", value, shape=shape)


def apart(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """A shape with samples and positions in its first axis, with an axis for each; another shape as it is."""
    first = shape[0] if shape else batch
    return shape if first == batch or first % batch else (batch, first // batch, *shape[1:])


def logits_of(b: GraphBuilder, graph: Graph, output: Value, term: LossTerm) -> Logits | None:
    """The logits of an output, in its shape: in front of softmaxes or sigmoids, or of the probabilities that it holds.

    None where the output is what the loss takes. All of it is of `graph` itself after `expose_logits`.
    """
    operators = DONE_BY_LOSS.get(term.kind, ())
    if not operators or term.on == "logits":
        return None
    writer = _Writer(b, graph)
    rank = len(graph.types[output].shape)
    axis = rank - 1 if term.class_axis is None else term.class_axis % max(rank, 1)
    if _holds(_class_axes(graph, operators), output, axis):
        return Logits(_in_front(writer, graph, output, operators), "activation")
    is_binary = "sigmoid" in operators
    array = drawn(graph, output) if term.on is None else None
    is_share = array is not None and lies_between_0_and_1(array)
    is_whole = array is not None and (is_binary or adds_up_to_1(array, axis))
    if term.on == "probabilities" or (is_share and is_whole):
        return Logits(_from_probabilities(writer, output, is_binary=is_binary), "probabilities")
    return Logits(output, "shares") if is_share else None


class _Writer:
    """Emits nodes that are not there already."""

    def __init__(self, b: GraphBuilder, graph: Graph) -> None:
        self.b, self._parameters = b, graph.parameters
        self._there = {_key(node.op, node.inputs, node.attrs): node.output for node in graph.nodes if _is_single(node)}

    def constant(self, number: float) -> Value:
        """A number, as `GraphBuilder.constant` has it."""
        element = np.float32(number)
        there = (value for value, array in self.b.arrays.items() if array.shape == () and array.dtype == element.dtype)
        same = (value for value in there if value not in self._parameters and self.b.arrays[value] == element)
        return next(same, None) or self.b.constant(number)

    def emit(self, op: str, *inputs: Value, **attrs: AttrValue) -> Value:
        """The result of a node."""
        key = _key(op, inputs, attrs)
        if key not in self._there:
            (self._there[key],) = self.b.emit_many(op, inputs, outputs=(self.b.fresh(),), **attrs)
        return self._there[key]


def _key(op: str, inputs: Sequence[Value], attrs: Mapping[str, AttrValue]) -> Hashable:
    return op, tuple(inputs), tuple(sorted(attrs.items()))


def _is_single(node: Node) -> bool:
    return len(node.outputs) == 1


def _in_front(writer: _Writer, graph: Graph, output: Value, operators: Sequence[str]) -> Value:
    """Returns what the operators read, moved as their results are."""
    instead: dict[Value, Value] = {}
    for node in _behind(graph, output, operators):
        if node.op in operators:
            instead[node.output] = node.inputs[0]
            continue
        layer = writer.b.layer
        writer.b.stand_for(node)
        instead[node.output] = writer.emit(node.op, *(instead.get(value, value) for value in node.inputs), **node.attrs)
        writer.b.layer = layer
    return instead[output]


def _from_probabilities(writer: _Writer, output: Value, *, is_binary: bool) -> Value:
    """Logarithms, of which a softmax makes the probabilities again; or log(p / (1 - p)), of which a sigmoid does.

    Of 0 and 1 the binary ones are those of `torch.nn.functional.binary_cross_entropy`, which takes -100 for log(0).
    """
    logarithm = writer.emit("log", writer.emit("clip", output, low=LEAST, high=math.inf))
    if not is_binary:
        return logarithm
    rest = writer.emit("log1p", writer.emit("neg", writer.emit("clip", output, low=-math.inf, high=MOST)))
    lowest, zero, unit = (writer.constant(number) for number in (LOG_OF_0, 0.0, 1.0))
    logarithm = writer.emit("where", writer.emit("less_equal", output, zero), lowest, logarithm)
    rest = writer.emit("where", writer.emit("less_equal", unit, output), lowest, rest)
    return writer.emit("sub", logarithm, rest)


def _holds(axes: Mapping[Value, int | None], output: Value, axis: int) -> bool:
    return output in axes and axes[output] in (axis, None)


def _class_axes(graph: Graph, operators: Sequence[str]) -> dict[Value, int | None]:
    """Returns the class axis of each value that is a moved result of the operators: the softmaxes' axis; None for a
    sigmoid's.
    """
    axes: dict[Value, int | None] = {}
    for node in graph.nodes:
        if node.op in operators:
            axes[node.output] = None if "sigmoid" in operators else len(graph.types[node.output].shape) - 1
            continue
        moved = node.inputs[_MOVED[node.op]] if node.op in _MOVED else ()
        if not moved or not all(value in axes for value in moved):
            continue
        if "sigmoid" in operators:
            axes[node.output] = None
            continue
        places = {_moved_axis(graph, node, value, moved, axes[value]) for value in moved}
        if len(places) == 1 and None not in places:
            axes[node.output] = places.pop()
    return axes


def _moved_axis(graph: Graph, node: Node, operand: Value, moved: Collection[Value], axis: int | None) -> int | None:
    """Returns where an operand's axis is in a node's result, whole and with nothing chosen along it; None if it is
    not.
    """
    before, after = graph.types[operand].shape, graph.types[node.output].shape
    if node.op == "reshape":
        return _reshaped_axis(before, after, axis or 0)
    facts = [fact for fact in facts_of(node, lambda value: graph.types[value].shape) if isinstance(fact, Alike)]
    places = [fact.to for fact in facts if fact.of == Axis(operand, axis or 0) and fact.to.is_whole]
    chosen = {fact.to for fact in facts if fact.of.value not in moved and after[fact.to.axis] > 1}
    return places[0].axis if places and places[0] not in chosen else None


def _reshaped_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The axis with the same elements behind as many others; None if there is none."""
    outer = math.prod(before[:axis])
    places = (place for place, extent in enumerate(after) if extent == before[axis])
    return next((place for place in places if math.prod(after[:place]) == outer), None)


def _behind(graph: Graph, output: Value, operators: Sequence[str]) -> list[Node]:
    """The nodes between what is in front of the operators and an output, in the graph's order."""
    needed, nodes = {output}, list[Node]()
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            if node.op not in operators:
                needed.update(node.inputs[_MOVED[node.op]])
    return nodes[::-1]

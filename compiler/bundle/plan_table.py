"""A table of what learns, layer by layer, and of its cost: bytes and floating-point operations of a step.

A row is a layer as plans count them (`compiler.step.planning.layers`), or an operator with parameters that is no layer.
Bytes: `weight_bytes` of what learns; `gradient_bytes` of gradients that are stored (an update that is applied as its
gradient is made stores none); `optimizer_bytes` of its state; `accumulator_bytes` of sums of gradients over
micro-batches, which lie beside that state; `kept_bytes` of what the forward pass keeps because the layer's backward
pass is the last to read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compiler.channels.slices import UpdateSlice
from compiler.graph import Graph, Parameter
from compiler.program.program import KernelCall, Program
from compiler.step.plan import UpdatePlan
from compiler.step.planning.layers import Layer, adapter_names, layers_of
from compiler.step.planning.names import module_paths
from compiler.step.training import TrainingGraph
from compiler.values import Value
from compiler.warnings import printable

MAX_ROWS = 2_000
MAX_NAME = 200
REST = "everything else"


@dataclass(slots=True)
class Row:
    """A layer. `number` is None for what plans do not count."""

    name: str
    number: int | None = None
    operator: str = ""
    learns: list[str] = field(default_factory=list)
    """The parts of the layer that learn, in words."""
    elements: int = 0
    """The number of elements that learn."""
    all_elements: int = 0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    accumulator_bytes: int = 0
    kept_bytes: int = 0
    forward_flops: int = 0
    backward_flops: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """A step before its kernels: what the table is made of."""

    forward: Graph
    training: TrainingGraph
    plan: UpdatePlan
    train: Program
    other: Program | None = None
    """The program that every micro-batch but the last runs."""
    others: int = 0
    """The number of those micro-batches."""


def plan_table(step: Planned) -> dict[str, Any]:
    """Rows, totals, runs of frozen parameters and what cannot learn, as plain data."""
    rows = _Rows(step.forward)
    for value, parameter in step.forward.parameters.items():
        if parameter.may_learn:
            _count_parameter(rows.of(value), step, value)
    for call, size_bytes in _stored_gradients(step.train):
        rows.doing(call).gradient_bytes += size_bytes
    for state, value in step.training.optimizer_state.items():
        if value in step.plan:
            rows.of(value).optimizer_bytes += step.training.graph.types[state].size_bytes
    for sum_of, value in step.training.accumulators.items():
        row = rows.of(value) if value in step.forward.parameters else rows.rest
        row.accumulator_bytes += step.training.graph.types[sum_of].size_bytes
    for call in step.train.calls:
        _count_flops(rows.doing(call), call)
    for call in step.other.calls if step.other is not None else ():
        _count_flops(rows.doing(call), call, times=step.others)
    for call, size_bytes in _saved_values(step.train):
        rows.doing(call).kept_bytes += size_bytes
    every = [*rows.every, rows.rest]
    return {
        "rows": [_row_record(row) for row in every[:MAX_ROWS]],
        "rows_left_out": max(0, len(every) - MAX_ROWS),
        "totals": {name: sum(getattr(row, name) for row in every) for name in _SUMMED},
        "frozen": list(itertools.islice(_frozen(step), MAX_ROWS)),
        "cannot_learn": [
            {"name": printable(name, MAX_NAME), "reason": why.reason, "remedy": why.remedy}
            for name, why in itertools.islice(step.forward.unlearnable.items(), MAX_ROWS)
        ],
    }


_SUMMED = (
    "elements",
    "all_elements",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "accumulator_bytes",
    "kept_bytes",
    "forward_flops",
    "backward_flops",
)


class _Rows:
    """The rows, by parameter and by what kernel calls are called."""

    def __init__(self, graph: Graph) -> None:
        self.rest, self.every = Row(REST), []
        self._of: dict[Value, Row] = {}
        self._called: dict[str, Row] = {}
        self._of_parameter: dict[str, Row] = {}
        layers = {value: layer for layer in layers_of(graph) for value in reversed(layer.parameters)}
        rows_by_key: dict[object, Row] = {}
        rows_by_name: dict[str, Row] = {}
        """Rows of layers by the module that they are."""
        adapters = adapter_names(graph)
        for value, parameter in graph.parameters.items():
            if not parameter.may_learn:
                continue
            layer = layers.get(value)
            existing_row = self._called.get(parameter.layer) if parameter.name in adapters else None
            existing_row = existing_row or (rows_by_name.get(_module(parameter)) if layer is None else None)
            if existing_row is not None:
                self._of[value] = self._of_parameter[parameter.name] = existing_row
                continue
            key = ("layer", layer.number) if layer is not None else ("operator", parameter.layer)
            row = rows_by_key.get(key)
            if row is None:
                row = rows_by_key[key] = _row(graph, layer, parameter)
                self.every.append(row)
            self._of[value] = self._of_parameter[parameter.name] = row
            self._called.setdefault(parameter.layer, row)
            if layer is not None:
                rows_by_name.setdefault(row.name, row)
                self._called.setdefault(layer.node.layer, row)

    def of(self, value: Value) -> Row:
        """The row of a parameter."""
        return self._of[value]

    def doing(self, call: KernelCall) -> Row:
        """The row that a call works for."""
        row = self._of_parameter.get(call.parameter)
        return row if row is not None else self._called.get(call.layer, self.rest)


def _module(parameter: Parameter) -> str:
    return (module_paths(parameter.name) or [""])[-1]


def _row(graph: Graph, layer: Layer | None, parameter: Parameter) -> Row:
    if layer is None:
        return Row(_module(parameter) or parameter.layer or parameter.name)
    first = graph.parameters[layer.weights[0]]
    return Row(_module(first) or layer.node.layer or first.name, layer.number, layer.node.op)


def _count_parameter(row: Row, step: Planned, value: Value) -> None:
    parameter, tensor = step.forward.parameters[value], step.forward.types[value]
    row.all_elements += parameter.size
    part = step.plan.get(value)
    if part is None:
        return
    learning = part.elements(tensor.shape)
    row.learns.append(learning_label(parameter, part))
    row.elements += learning
    row.weight_bytes += learning * tensor.element.item_bytes


def learning_label(parameter: Parameter, part: UpdateSlice) -> str:
    """Says in words which part of a parameter learns: `weight 20 of 40 channels`, `bias (created)`."""
    label = next((component for component in parameter.name.split(".") if component.startswith("lora_")), "")
    label = label or parameter.name.rpartition(".")[2].rpartition("/")[2] or parameter.kind
    created = " (created)" if parameter.created else ""
    return f"{label}{created}" if part.is_whole else f"{label} {_channels(parameter, part)}{created}"


def _channels(parameter: Parameter, part: UpdateSlice) -> str:
    inside = parameter.parted is not None and part.axis == parameter.parted + 1
    times = parameter.shape[part.axis - 1] if inside else 1
    side = "" if part.axis == parameter.channel_axis else "output "
    return f"{times * part.size} of {times * parameter.shape[part.axis]} {side}channels"


def _row_record(row: Row) -> dict[str, object]:
    """Returns a row as plain data; its names come from the model, whose author we do not know."""
    learns = [printable(text, MAX_NAME) for text in row.learns]
    return {**asdict(row), "name": printable(row.name, MAX_NAME), "learns": learns}


def _count_flops(row: Row, call: KernelCall, *, times: int = 1) -> None:
    if call.phase == "forward" and not call.again:
        row.forward_flops += times * call.flops
    else:
        row.backward_flops += times * call.flops


def _stored_gradients(program: Program) -> Iterator[tuple[KernelCall, int]]:
    """(update, bytes) of the gradients that other calls made for it."""
    state = {program.root(value) for value in program.state}
    gradients = {
        program.root(value) for call in program.calls if call.phase == "backward" for value in call.outputs
    } - state
    for call in program.calls:
        if call.phase == "update":
            read = {program.root(value) for value in call.inputs} & gradients
            yield call, sum(program.types[value].size_bytes for value in read)


def _saved_values(program: Program) -> Iterator[tuple[KernelCall, int]]:
    """(the call that reads it last, bytes) of everything that forward calls make and others read."""
    sizes: dict[Value, int] = {}
    for call in program.calls:
        if call.phase == "forward" and not call.again:
            sizes.update((program.root(value), program.types[program.root(value)].size_bytes) for value in call.outputs)
    last: dict[Value, KernelCall] = {}
    for call in program.calls:
        if call.phase != "forward":
            last.update((program.root(value), call) for value in call.inputs if program.root(value) in sizes)
    return ((call, sizes[value]) for value, call in last.items())


def _frozen(step: Planned) -> Iterator[Mapping[str, object]]:
    """Parameters that stay, in runs between those that learn."""
    learning = [value for value, parameter in step.forward.parameters.items() if parameter.may_learn]
    for stays, run in itertools.groupby(learning, key=lambda value: value not in step.plan):
        if stays:
            values = list(run)
            names = [step.forward.parameters[value].name for value in values]
            first, last = printable(names[0], MAX_NAME), printable(names[-1], MAX_NAME)
            elements = _elements(step.forward, values)
            yield {"first": first, "last": last, "parameters": len(names), "elements": elements}


def _elements(graph: Graph, values: Iterable[Value]) -> int:
    return sum(graph.parameters[value].size for value in values)

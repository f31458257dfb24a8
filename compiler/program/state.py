"""The tensors that outlive a step, as its programs touch them.

Names of tensors in checkpoints: a parameter keeps exactly its own, and what we add gives way to it.

Optimizer state is `optimizer.<kind>.<parameter>`, a constant `constant.<digest of its elements>`. Where a parameter of
the model has such a name itself, ours begin with `optimizer'.` or `constant'.` instead, with as many marks as it takes.
That follows from the names of the model's parameters alone, so it is the same in every build of the model; and a
constant of another build has the same name only if it has the same elements.

Texts that people read where a kernel call is meant: per-kernel tables, reports, error messages.

A label is made from the fields of a call where somebody reads it, and never read back: nothing may depend on its text.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from compiler.element_types import ELEMENT_TYPES
from compiler.errors import ModelError
from compiler.graph import Array, Graph, Parameter, TensorType
from compiler.ops.record import integer
from compiler.program.program import KernelCall, Program, StateRole, StateTensor, ViewOrder
from compiler.step.training import TrainingGraph
from compiler.values import StateKind, Value


def label_of(call: KernelCall) -> str:
    """`conv1`, `d conv1`, `d conv1.weight`, `update conv1.weight`, `conv1 (again) [1/2]`, `d fc.weight and update`."""
    return _work(call) + _share(call)


def _work(call: KernelCall) -> str:
    if call.again:
        return f"{call.layer} (again)"
    if call.phase == "forward":
        return call.layer
    subject = call.parameter or call.layer
    if call.phase == "update":
        return f"update {subject}"
    return f"d {subject}{' and update' if call.updates else ''}"


def _share(call: KernelCall) -> str:
    if call.sum_of:
        return f" [sum of {call.sum_of}]"
    part = f" [{call.part + 1}/{call.parts}]" if call.parts > 1 else ""
    return part + (f" [strip {call.strip + 1}/{call.strips}]" if call.strips > 1 else "")


_DIGEST = "[0-9a-f]{16}'*"
RESERVED = "__metadata__"
"""No tensor of a safetensors file can have this name."""


class CheckpointNames:
    """Names for one model's tensors, no two alike."""

    def __init__(self, parameters: Collection[str]) -> None:
        """Raises: ModelError for a parameter that the format has no room for."""
        if RESERVED in parameters:
            raise ModelError(
                f"a parameter is called {RESERVED!r}, which safetensors, the checkpoints' format, keeps for itself",
                where=RESERVED,
                hint="rename it",
            )
        parameters = frozenset(parameters)
        kinds = get_args(StateKind)
        self._optimizer = next(
            prefix
            for prefix in _prefixes("optimizer")
            if not any(f"{prefix}{kind}.{name}" in parameters for kind in kinds for name in parameters)
        )
        self._constant = next(
            prefix
            for prefix in _prefixes("constant")
            if not any(re.fullmatch(re.escape(prefix) + _DIGEST, name) for name in parameters)
        )
        self._constants: set[str] = set()

    def state(self, kind: str, parameter: str) -> str:
        """The name of what the optimizer keeps for a parameter."""
        return f"{self._optimizer}{kind}.{parameter}"

    def constant(self, array: Array) -> str:
        """The name of a constant; of several with equal elements, each call gives another."""
        content = f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        name = f"{self._constant}{hashlib.sha256(content).hexdigest()[:16]}"
        while name in self._constants:
            name += "'"
        self._constants.add(name)
        return name


def _prefixes(word: str) -> Iterator[str]:
    marks = "'"
    return (f"{word}{marks * count}." for count in itertools.count())


def state_tensors(forward: Graph, training: TrainingGraph, programs: Sequence[Program]) -> tuple[StateTensor, ...]:
    """Returns every parameter of the model, optimizer state, and the constants that some call reads."""
    windows = _windows(training)
    names = CheckpointNames([parameter.name for parameter in forward.parameters.values()])
    tensors = [
        _in_whole_numbers(forward, names, value)
        if _in_bytes(forward, value)
        else StateTensor(
            value,
            model_parameter.name,
            forward.types[value],
            "parameter",
            model_parameter.file_shape,
            model_parameter.view_shape,
            model_parameter.perm,
            value in training.updates,
            orders=_orders_of(model_parameter),
        )
        for value, model_parameter in forward.parameters.items()
    ]
    arrays = {value: array for graph in (forward, *training.graphs) for value, array in graph.arrays.items()}
    types = {value: tensor for graph in (forward, *training.graphs) for value, tensor in graph.types.items()}
    read = {program.root(value) for program in programs for call in program.calls for value in call.inputs}
    for value in arrays:
        if value in read and value not in forward.parameters:
            tensors.append(_plain_state(value, names.constant(arrays[value]), types[value], "constant"))
    for value, parameter in training.optimizer_state.items():
        model_parameter = forward.parameters[parameter]
        state = _plain_state(value, names.state(value.kind, model_parameter.name), types[value], "optimizer")
        channel_orders = _slice_channels(model_parameter, types[value], windows.get(parameter, {}))
        chosen = tuple(tuple(sorted(axis_channels)) for axis_channels in channel_orders)
        tensors.append(
            replace(
                state,
                file_shape=_joined(model_parameter, types[value].shape),
                orders=_orders_of_slice(channel_orders),
                channels=tuple(
                    () if axis_channels == tuple(range(len(axis_channels))) else axis_channels
                    for axis_channels in chosen
                ),
            )
        )
    for value, parameter in training.accumulators.items():  # last: the runtime clears them together
        of = forward.parameters[parameter].name if parameter in forward.parameters else parameter.role
        tensors.append(_plain_state(value, names.state(value.kind, of), types[value], "accumulator"))
    return tuple(tensors)


def held_in_bytes(forward: Graph) -> frozenset[Value]:
    """The frozen weights that are whole numbers (`compiler.step.frozen`)."""
    return frozenset(value for value in forward.parameters if _in_bytes(forward, value))


def _in_bytes(forward: Graph, value: Value) -> bool:
    return forward.arrays[value].dtype == ELEMENT_TYPES["i8"].numpy


def _in_whole_numbers(forward: Graph, names: CheckpointNames, value: Value) -> StateTensor:
    return _plain_state(
        value, names.constant(forward.arrays[value]), replace(forward.types[value], dtype="i8"), "constant"
    )


def _orders_of(parameter: Parameter) -> tuple[ViewOrder, ...]:
    return tuple(ViewOrder(parameter.perm[axis], 1, order) for axis, order in enumerate(parameter.orders) if order)


def _slice_channels(parameter: Parameter, tensor: TensorType, starts: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """The author's channels along each axis of a slice, as they stand; nothing where an axis has the author's order."""
    if len(tensor.shape) != len(parameter.shape):
        return ()
    begins = [starts.get(axis, 0) for axis in range(len(parameter.orders))]
    return tuple(
        order[begin : begin + tensor.shape[axis]] if order else ()
        for axis, (order, begin) in enumerate(zip(parameter.orders, begins, strict=True))
    )


def _orders_of_slice(channel_orders: Sequence[tuple[int, ...]]) -> tuple[ViewOrder, ...]:
    """Returns where the channels of a slice stand, if those of the file are counted without the others."""
    orders: list[ViewOrder] = []
    for axis, channels in enumerate(channel_orders):
        rank = {channel: number for number, channel in enumerate(sorted(channels))}
        if len(channels) > 1 and list(channels) != sorted(channels):
            orders.append(ViewOrder(axis, 1, tuple(rank[channel] for channel in channels)))
    return tuple(orders)


def chosen_channels(state: Sequence[StateTensor]) -> str:
    """16 hex digits of the channels that optimizer state is of; empty where all are the first of their axes."""
    channels = {tensor.name: tensor.channels for tensor in state if any(tensor.channels)}
    return hashlib.sha256(repr(sorted(channels.items())).encode()).hexdigest()[:16] if channels else ""


def _joined(parameter: Parameter, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the axes as one that were parted for a slice."""
    if parameter.parted is None or len(shape) != len(parameter.shape):
        return shape
    first, second = shape[parameter.parted : parameter.parted + 2]
    return (*shape[: parameter.parted], first * second, *shape[parameter.parted + 2 :])


def _windows(training: TrainingGraph) -> dict[Value, dict[int, int]]:
    """Parameter -> the axis and start of what an update writes of it."""
    return {
        node.inputs[0]: {integer(node.attrs, "axis"): integer(node.attrs, "start")}
        for node in training.graph.nodes
        if node.phase == "update" and "start" in node.attrs
    }


def _plain_state(value: Value, name: str, tensor: TensorType, role: StateRole) -> StateTensor:
    axes = tuple(range(len(tensor.shape)))
    return StateTensor(value, name, tensor, role, tensor.shape, tensor.shape, axes, role != "constant")

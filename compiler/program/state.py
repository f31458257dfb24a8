"""The tensors that outlive a step, as its programs touch them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler.element_types import ELEMENT_TYPES
from compiler.graph import Graph, Parameter, TensorType
from compiler.ops.record import integer
from compiler.program.checkpoint_names import CheckpointNames
from compiler.program.program import Program, StateRole, StateTensor, ViewOrder
from compiler.step.training import TrainingGraph
from compiler.values import Value


def state_tensors(forward: Graph, training: TrainingGraph, programs: Sequence[Program]) -> tuple[StateTensor, ...]:
    """Every parameter of the model, optimizer state, and the constants that some call reads."""
    windows = _windows(training)
    names = CheckpointNames([parameter.name for parameter in forward.parameters.values()])
    tensors = [
        _in_whole_numbers(forward, names, value)
        if _in_bytes(forward, value)
        else StateTensor(
            value,
            own.name,
            forward.types[value],
            "parameter",
            own.file_shape,
            own.view_shape,
            own.perm,
            value in training.updates,
            orders=_orders_of(own),
        )
        for value, own in forward.parameters.items()
    ]
    arrays = {value: array for graph in (forward, *training.graphs) for value, array in graph.arrays.items()}
    types = {value: tensor for graph in (forward, *training.graphs) for value, tensor in graph.types.items()}
    read = {program.root(value) for program in programs for call in program.calls for value in call.inputs}
    for value in arrays:
        if value in read and value not in forward.parameters:
            tensors.append(_plain_state(value, names.constant(arrays[value]), types[value], "constant"))
    for value, parameter in training.optimizer_state.items():
        own = forward.parameters[parameter]
        state = _plain_state(value, names.state(value.kind, own.name), types[value], "optimizer")
        kept = _kept(own, types[value], windows.get(parameter, {}))
        chosen = tuple(tuple(sorted(one)) for one in kept)
        tensors.append(
            replace(
                state,
                file_shape=_joined(own, types[value].shape),
                orders=_orders_of_slice(kept),
                channels=tuple(() if one == tuple(range(len(one))) else one for one in chosen),
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


def _orders_of(own: Parameter) -> tuple[ViewOrder, ...]:
    return tuple(ViewOrder(own.perm[axis], 1, order) for axis, order in enumerate(own.orders) if order)


def _kept(own: Parameter, tensor: TensorType, starts: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """The author's channels along each axis of a slice, as they stand; nothing where an axis has the author's order."""
    if len(tensor.shape) != len(own.shape):
        return ()
    begins = [starts.get(axis, 0) for axis in range(len(own.orders))]
    return tuple(
        order[begin : begin + tensor.shape[axis]] if order else ()
        for axis, (order, begin) in enumerate(zip(own.orders, begins, strict=True))
    )


def _orders_of_slice(kept: Sequence[tuple[int, ...]]) -> tuple[ViewOrder, ...]:
    """Where the channels of a slice stand, if those of the file are counted without the others."""
    found: list[ViewOrder] = []
    for axis, channels in enumerate(kept):
        rank = {channel: number for number, channel in enumerate(sorted(channels))}
        if len(channels) > 1 and list(channels) != sorted(channels):
            found.append(ViewOrder(axis, 1, tuple(rank[channel] for channel in channels)))
    return tuple(found)


def chosen_channels(state: Sequence[StateTensor]) -> str:
    """16 hex digits of the channels that optimizer state is of; empty where all are the first of their axes."""
    told = {tensor.name: tensor.channels for tensor in state if any(tensor.channels)}
    return hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()[:16] if told else ""


def _joined(own: Parameter, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the axes as one that were parted for a slice."""
    if own.parted is None or len(shape) != len(own.shape):
        return shape
    first, second = shape[own.parted : own.parted + 2]
    return (*shape[: own.parted], first * second, *shape[own.parted + 2 :])


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

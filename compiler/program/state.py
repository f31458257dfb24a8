"""The tensors that outlive a step, as its programs touch them."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.graph import Graph, TensorType
from compiler.program.checkpoint_names import CheckpointNames
from compiler.program.program import Program, StateRole, StateTensor
from compiler.step.training import TrainingGraph
from compiler.values import Value


def state_tensors(forward: Graph, training: TrainingGraph, programs: Sequence[Program]) -> tuple[StateTensor, ...]:
    """Every parameter of the model, optimizer state, and the constants that some call reads."""
    names = CheckpointNames([parameter.name for parameter in forward.parameters.values()])
    tensors = [
        StateTensor(
            value, own.name, forward.types[value], "parameter", own.file_shape, own.view_shape, own.perm,
            value in training.updates,
        )
        for value, own in forward.parameters.items()
    ]  # fmt: skip
    graphs = [step.graph for step in (training, training.accumulation) if step is not None]
    arrays = {value: array for graph in (forward, *graphs) for value, array in graph.arrays.items()}
    types = {value: tensor for graph in (forward, *graphs) for value, tensor in graph.types.items()}
    read = {program.root(value) for program in programs for call in program.calls for value in call.inputs}
    for value in arrays:
        if value in read and value not in forward.parameters:
            tensors.append(_plain_state(value, names.constant(arrays[value]), types[value], "constant"))
    for value, parameter in training.optimizer_state.items():
        name = names.state(value.kind, forward.parameters[parameter].name)
        tensors.append(_plain_state(value, name, types[value], "optimizer"))
    for value, parameter in training.accumulators.items():  # last: the runtime clears them together
        name = names.state(value.kind, forward.parameters[parameter].name)
        tensors.append(_plain_state(value, name, types[value], "accumulator"))
    return tuple(tensors)


def _plain_state(value: Value, name: str, tensor: TensorType, role: StateRole) -> StateTensor:
    axes = tuple(range(len(tensor.shape)))
    return StateTensor(value, name, tensor, role, tensor.shape, tensor.shape, axes, role != "constant")

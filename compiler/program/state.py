"""The tensors that outlive a step, as its programs touch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from compiler.graph import Graph, TensorType
from compiler.program.program import Program, StateTensor
from compiler.step.training import TrainingGraph


def state_tensors(forward: Graph, training: TrainingGraph, programs: Sequence[Program]) -> tuple[StateTensor, ...]:
    """Every parameter of the model, optimizer state, and the constants that some call reads."""
    read = {program.root(name) for program in programs for call in program.calls for name in call.inputs}
    tensors = [
        StateTensor(
            name, forward.types[name], "parameter", own.file_shape, own.view_shape, own.perm, name in training.updates
        )
        for name, own in forward.parameters.items()
    ]
    arrays = {**forward.arrays, **training.graph.arrays}
    types = {**forward.types, **training.graph.types}
    for name in arrays:
        if name in read and name not in forward.parameters:
            tensors.append(_plain_state(name, types[name], "constant"))
    tensors += [_plain_state(name, types[name], "optimizer") for name in training.optimizer_state]
    return tuple(tensors)


def _plain_state(name: str, tensor: TensorType, role: Literal["constant", "optimizer"]) -> StateTensor:
    axes = tuple(range(len(tensor.shape)))
    return StateTensor(name, tensor, role, tensor.shape, tensor.shape, axes, role == "optimizer")

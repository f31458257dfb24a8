"""Checkpoints: what a bundle's binary starts from."""

from __future__ import annotations

from functools import partial

import numpy as np

from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.program.program import StateTensor
from compiler.program.state import chosen_channels
from compiler.stages import CompiledStep
from compiler.tensors import Array, TensorType


def empty_checkpoint() -> bytes:
    """Returns the checkpoint of a binary without parameters."""
    return b"".join(Checkpoint({}, {"step": "0"}).chunks())


def initial_checkpoint(step: CompiledStep) -> Checkpoint:
    """The model's own weights in file layout, and the constants that the step reads, as safetensors."""
    arrays = {value: array for graph in (step.forward, *step.training.graphs) for value, array in graph.arrays.items()}
    tensors: dict[str, Stored] = {}
    for tensor in step.state:
        if tensor.copy_of is not None or tensor.role in ("optimizer", "accumulator"):
            continue
        tensor_type = TensorType(tensor.type.dtype, tensor.file_shape)
        if tensor.lies_in_file:
            tensors[tensor.name] = Stored(tensor.type, partial(_as_it_lies, tensor, arrays[tensor.value]))
        elif tensor.role == "parameter":
            parameter = step.forward.parameters[tensor.value]
            tensors[tensor.name] = Stored(tensor_type, partial(parameter.to_file, arrays[tensor.value]))
        else:
            tensors[tensor.name] = Stored(tensor_type, partial(np.asarray, arrays[tensor.value]))
    channels = chosen_channels(step.state)
    return Checkpoint(tensors, {"step": "0", **({"channels": channels} if channels else {})})


def _as_it_lies(tensor: StateTensor, array: Array) -> Array:
    return array.reshape(tensor.view_shape).transpose(tensor.perm)

"""Checkpoints: named tensors as safetensors bytes, the same bytes for the same tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from safetensors.numpy import save

from compiler.graph import Array
from compiler.stages import CompiledStep


def write_checkpoint(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Serialize contiguous tensors with text metadata. Source: the safetensors format, version 0.4."""
    return bytes(save(dict(sorted(tensors.items())), dict(metadata)))


def initial_checkpoint(step: CompiledStep) -> bytes:
    """The model's own weights in file layout, and the constants that the step reads, as safetensors."""
    arrays = {**step.forward.arrays, **step.training.graph.arrays}
    tensors: dict[str, Array] = {}
    for tensor in step.state:
        if tensor.copy_of is not None:
            continue
        if tensor.role == "parameter":
            tensors[tensor.name] = step.forward.parameters[tensor.value].to_file(arrays[tensor.value])
        elif tensor.role == "constant":
            tensors[tensor.name] = np.ascontiguousarray(arrays[tensor.value]).reshape(tensor.file_shape)
    return write_checkpoint(tensors, {"step": "0"})

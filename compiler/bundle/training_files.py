"""A training step for engines that only infer: an ONNX file, its data beside it, and the state it begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from compiler.bundle.content import Chunk, elements_of, write_file
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.export.onnx_model import DataFileWriter
from compiler.export.training import Weights, training_model
from compiler.step.training import TrainingGraph
from compiler.tensors import TensorType

EMBEDDED_BYTES = 64 << 20
"""Frozen weights up to here lie in the ONNX file itself."""
STATE, ACCUMULATE = ".state.safetensors", ".accumulate.onnx"


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """The files that `save` writes; nothing is copied before."""

    model: bytes
    data: DataFileWriter | None
    state: Checkpoint
    accumulate: bytes | None = None
    """The model that all micro-batches before the last one run, in a step of several micro-batches."""

    def save(self, path: Path) -> tuple[Path, ...]:
        """Writes the files; each is in place whole or not at all, the model last. Returns them. Raises: OSError."""
        state = path.with_name(f"{path.stem}{STATE}")
        write_file(state, self.state.chunks())
        paths = [path, state]
        if self.data is not None:
            paths.insert(1, path.with_name(self.data.location))
            write_file(paths[1], _chunks(self.data))
        if self.accumulate is not None:
            paths.append(path.with_name(f"{path.stem}{ACCUMULATE}"))
            write_file(paths[-1], [self.accumulate])
        write_file(path, [self.model])
        return tuple(paths)


def training_files(step: TrainingGraph, location: str, weights: Weights, metadata: Mapping[str, str]) -> TrainingFiles:
    """The files of a step; those of its frozen weights that are large are in a data file called `location`.

    The metadata of the model is that of `compiler.export.training` and what `metadata` holds.
    """
    array_bytes = sum(array.nbytes for array in step.graph.arrays.values())
    data_file = DataFileWriter(location) if weights == "embedded" and array_bytes > EMBEDDED_BYTES else None
    model, state = training_model(step, weights=weights, notes=metadata, beside=data_file)
    before = None
    if step.accumulation is not None:
        before, _ = training_model(step.accumulation, weights=weights, notes=metadata, beside=data_file)
    stored = {name: Stored(TensorType("f32", array.shape), partial(np.asarray, array)) for name, array in state.items()}
    return TrainingFiles(
        model, data_file if data_file and data_file.arrays else None, Checkpoint(stored, {"step": "0"}), before
    )


def _chunks(data: DataFileWriter) -> Iterator[Chunk]:
    at = 0
    for begin, array in data.arrays:
        yield b"\0" * (begin - at)
        yield elements_of(array)
        at = begin + array.nbytes

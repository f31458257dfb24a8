"""A training step for engines that only infer: an ONNX file, its data beside it, and the state it begins with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from compiler.bundle.content import Chunk, elements_of, write_file
from compiler.bundle.tensor_file import Checkpoint, Stored
from compiler.export.onnx_model import DataBeside
from compiler.export.training import Weights, training_model
from compiler.step.training import TrainingGraph
from compiler.tensors import TensorType

EMBEDDED_BYTES = 64 << 20
"""Frozen weights up to here lie in the ONNX file itself."""
STATE, ACCUMULATE = ".state.safetensors", ".accumulate.onnx"


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """What `save` writes; nothing is copied before."""

    model: bytes
    data: DataBeside | None
    state: Checkpoint
    accumulate: bytes | None = None
    """Of a step of several micro-batches: what those before the last one run."""

    def save(self, path: Path) -> tuple[Path, ...]:
        """Write the files; each is in place whole or not at all, the model last. Returns them. Raises: OSError."""
        state = path.with_name(f"{path.stem}{STATE}")
        write_file(state, self.state.chunks())
        written = [path, state]
        if self.data is not None:
            written.insert(1, path.with_name(self.data.location))
            write_file(written[1], _chunks(self.data))
        if self.accumulate is not None:
            written.append(path.with_name(f"{path.stem}{ACCUMULATE}"))
            write_file(written[-1], [self.accumulate])
        write_file(path, [self.model])
        return tuple(written)


def training_files(step: TrainingGraph, location: str, weights: Weights, said: Mapping[str, str]) -> TrainingFiles:
    """The files of a step; those of its frozen weights that are large are in a data file called `location`.

    The metadata of the model is that of `compiler.export.training` and what is `said`.
    """
    held = sum(array.nbytes for array in step.graph.arrays.values())
    beside = DataBeside(location) if weights == "embedded" and held > EMBEDDED_BYTES else None
    model, state = training_model(step, weights=weights, said=said, beside=beside)
    before = None
    if step.accumulation is not None:
        before, _ = training_model(step.accumulation, weights=weights, said=said, beside=beside)
    stored = {name: Stored(TensorType("f32", array.shape), partial(np.asarray, array)) for name, array in state.items()}
    return TrainingFiles(model, beside if beside and beside.arrays else None, Checkpoint(stored, {"step": "0"}), before)


def _chunks(data: DataBeside) -> Iterator[Chunk]:
    at = 0
    for begin, array in data.arrays:
        yield b"\0" * (begin - at)
        yield elements_of(array)
        at = begin + array.nbytes

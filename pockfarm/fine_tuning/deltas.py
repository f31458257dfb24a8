"""Deltas: the changes of a training as a small file, and that file applied to what the training began with."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np

from compiler.errors import CompileError
from compiler.trained.bring_back import created_in, manifest_of, weights_of
from compiler.trained.checkpoints import tensors_file, tensors_of
from compiler.trained.delta import (
    Change,
    change_between,
    changed_tensors,
    delta_between,
    delta_file,
    read_delta,
)
from pockfarm.errors import UsageError

Array = Any
"""A NumPy array."""
Source = Union[str, "os.PathLike[str]", bytes]
"""A file, or its bytes."""


def apply_delta(base: Mapping[str, Any] | Source, delta: Source) -> dict[str, Any]:
    """The base with what a training changed: a `state_dict`, arrays by name, or a file (safetensors, or a bundle).

    Tensors that did not change are the base's own. Of a file, all are arrays. Biases that the plan created are there,
    also where the base lacks them.
    Raises: UsageError for a base that the delta was not made of, and for what is no delta.
    """
    try:
        base_tensors = dict(base) if isinstance(base, Mapping) else dict(tensors_in(_read(base)))
        changes = read_delta(_read(delta))
        concerned = {name: as_array(base_tensors[name]) for name in changes.changes if name in base_tensors}
        changed = changed_tensors(concerned, changes)
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None
    whole = {
        name: _like(base_tensors[name], changed[name]) if name in changed else value
        for name, value in base_tensors.items()
    }
    reference = next((value for value in base_tensors.values() if hasattr(value, "detach")), None)
    return {**whole, **{name: _like(reference, tensor) for name, tensor in changed.items() if name not in base_tensors}}


def changes_of(base: Mapping[str, Array], state: Mapping[str, Any], created: Collection[str]) -> dict[str, Change]:
    """Returns the changes of a state: entries that differ from those of the same names before, and all that were
    created.
    """
    changes = {
        name: change_between(array, as_array(state[name]), created=name in created) for name, array in base.items()
    }
    return {name: change for name, change in changes.items() if change is not None}


def write_delta(path: Path, changes: Mapping[str, Change], state: Mapping[str, Any], model: str) -> None:
    """Raises: UsageError when it cannot be written there."""
    trained = {name: as_array(state[name]) for name in changes}
    write_chunks(path, delta_file(changes, trained, model))


def write_chunks(path: Path, chunks: Iterable[Any]) -> int:
    """Write a file; how many bytes it has. Raises: UsageError."""
    try:
        with path.open("wb") as stream:
            return sum(stream.write(chunk) for chunk in chunks)
    except OSError as problem:
        raise UsageError(problem.strerror, where=path) from None


def delta_of(base: Source, trained: Source) -> bytes:
    """Returns the delta of a checkpoint from its base (safetensors, or a bundle). Raises: UsageError."""
    try:
        content = _read(base)
        model = str(manifest_of(content).get("digests", {}).get("model", "")) if _is_bundle(content) else ""
        created = created_in(content) if _is_bundle(content) else ()
        return b"".join(
            delta_between(
                _model_tensors(tensors_in(content)), _model_tensors(tensors_of(_read(trained))), model, created
            )
        )
    except CompileError as problem:
        raise UsageError.of_compiler(problem) from None


def tensors_in(content: bytes) -> Mapping[str, Array]:
    """The tensors of a safetensors file, or those that a bundle's training begins with. Raises: CompileError."""
    return weights_of(content) if _is_bundle(content) else tensors_of(content, "base")


def as_array(value: Any) -> Array:
    """A tensor of PyTorch or NumPy as an array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _model_tensors(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Without what a step keeps for itself: constants and the optimizer's state."""
    return {name: array for name, array in tensors.items() if not name.startswith(("constant.", "optimizer."))}


def _like(tensor: Any, array: Array) -> Any:
    if not hasattr(tensor, "detach"):
        return array
    from pockfarm.fine_tuning.torch_tensors import like

    return like(tensor, array)


def _is_bundle(content: bytes) -> bool:
    return content[257:262] == b"ustar"


def _read(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except OSError as problem:
        raise UsageError(problem.strerror, where=source) from None


__all__ = ["apply_delta", "changes_of", "delta_of", "tensors_file", "write_chunks", "write_delta"]

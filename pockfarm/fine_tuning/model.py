"""The model as a caller brings it: what training needs of it, and how what was learned becomes its state again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compiler.errors import CompileError
from compiler.frontend.file.external_data import embedded
from compiler.trained.bring_back import Trained
from pockfarm.errors import UsageError
from pockfarm.model_files import files_of
from pockfarm.values import CompileWarning


@dataclass(frozen=True, slots=True)
class Input:
    """What a batch of an input (or of labels) looks like: shape and NumPy's name of the element type."""

    shape: tuple[int, ...]
    dtype: str
    is_label: bool = False


@dataclass(frozen=True, slots=True)
class Brought:
    """An ONNX model and where it comes from.

    `inputs` is what the example says of the inputs (empty without one). `frozen` are parameters that the model itself
    says do not learn (globs). `state` makes the complete state of what came back and the number of steps done.
    """

    onnx: bytes
    inputs: Mapping[str, Input]
    frozen: tuple[str, ...]
    state: Callable[[Trained, int], Mapping[str, Any]]
    warnings: tuple[CompileWarning, ...] = ()


def brought_file(model: bytes | str | os.PathLike[str]) -> Brought:
    """An ONNX file's bytes or path; its state are its parameters. Raises: UsageError."""
    with files_of(model) as files:
        try:
            whole = embedded(files.model, files.mapped()) if files.external else files.model
        except CompileError as problem:
            raise UsageError(f"{problem} [{problem.code}]") from None
    return Brought(whole, {}, (), lambda trained, _: trained.parameters)


def is_file(model: object) -> bool:
    """True for what stands for an ONNX file."""
    return isinstance(model, bytes | str | os.PathLike)

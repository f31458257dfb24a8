"""The model as a caller brings it: what training needs of it, and how what was learned becomes its state again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.trained.bring_back import Trained
from compiler.trained.likely import Part
from pockfarm.errors import BELOW, UsageError
from pockfarm.files.model_files import ModelFiles, files_of
from pockfarm.values import CompileWarning

File = Any
"""An ONNX file: bytes, a path, an `onnx.ModelProto`, or what `torch.onnx.export` gives."""


@dataclass(frozen=True)
class Input:
    """The shape of a batch of an input (or of labels), and NumPy's name of the element type."""

    shape: tuple[int, ...]
    dtype: str
    is_label: bool = False
    batch_axis: int | None = 0
    """The axis that the samples lie along; None: it is the same for every sample."""
    example: Any = None
    """The tensor of the example, of an input that is the same for every sample."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(extent for axis, extent in enumerate(self.shape) if axis != self.batch_axis)


@dataclass(frozen=True)
class InTraining:
    """A module's outputs with the same random draws: where only norms and dropouts train, as in a step, and `whole`.

    `alone` gives what comes of each other part (path) that trains beside norms and dropouts.
    """

    step: tuple[Any, ...]
    whole: tuple[Any, ...]
    alone: Callable[[], Mapping[str, tuple[Any, ...]]]


@dataclass(frozen=True)
class Original:
    """A module that was brought, as it answers itself in evaluation mode; arrays by the names of its inputs.

    `answer` are its outputs that the losses read, in the order of the file, None where it refuses the inputs; `exact`
    the same in float64, None where it does not run so; `names` are what the losses call them, if they read several.
    `training` is what it gives in training mode, None where a step does not train its norms or dropouts; `parts` are
    the calls of its parts (`compiler.trained.likely.Part`).
    """

    example: Mapping[str, Any]
    names: tuple[str, ...]
    answer: Callable[[Mapping[str, Any]], tuple[Any, ...] | None]
    exact: Callable[[Mapping[str, Any]], tuple[Any, ...] | None]
    training: Callable[[Mapping[str, Any]], InTraining | None]
    parts: Callable[[Mapping[str, Any]], Sequence[Part]]


@dataclass(frozen=True)
class ImportedModel:
    """An ONNX model, its files open, and where it comes from.

    `inputs` is what the example says of the inputs (empty without one). `frozen` are parameters that the model itself
    says do not learn (globs), `frozen_names` the same one by one, `is_frozen` that there are no others. `state` makes
    the complete state of what came back and the number of steps done; `base` says what those parts of it were that
    changed; `places` is under which names the model takes a bias that the plan created, none if it cannot.
    """

    files: ModelFiles
    inputs: Mapping[str, Input]
    frozen: tuple[str, ...]
    state: Callable[[Trained, int], Mapping[str, Any]]
    base: Callable[[Trained], Mapping[str, Any]]
    warnings: tuple[CompileWarning, ...] = ()
    frozen_names: tuple[str, ...] = ()
    is_frozen: bool = False
    places: Callable[[str], tuple[str, ...]] = lambda name: (name,)
    original: Original | None = None
    """The model that the file is to compute; None: the file is what the caller brought."""


def import_file(model: File, opened: ExitStack) -> ImportedModel:
    """An ONNX file; its state are its parameters. Its data files stay open as long as `opened`. Raises: UsageError."""
    files = opened.enter_context(files_of(_as_path(model)))
    return ImportedModel(files, {}, (), _parameters, lambda trained: {**trained.base, **_zeros(trained)})


def _zeros(trained: Trained) -> dict[str, Any]:
    return {name: np.zeros_like(array) for name, array in trained.created.items()}


def _parameters(trained: Trained, steps: int) -> Mapping[str, Any]:
    return {name: parameter.copy() for name, parameter in trained.parameters.items()}


def is_file(model: object) -> bool:
    """True for what stands for an ONNX file: bytes, a path, or a message of the `onnx` package (or what holds one)."""
    return isinstance(model, (bytes, str, os.PathLike)) or hasattr(_message(model), "SerializeToString")


def _as_path(model: File) -> bytes | str | os.PathLike[str]:
    if isinstance(model, (bytes, str, os.PathLike)):
        return model
    try:
        return bytes(_message(model).SerializeToString())
    except Exception as problem:  # protobuf's errors have no stable home
        raise UsageError(
            f"the model cannot be written as one file: {problem}",
            hint="save it with external data, and give its path",
            hint_form=BELOW,
        ) from None


def _message(model: Any) -> Any:
    """Returns the message that `onnx.load` gives; the object that `torch.onnx.export` gives holds it."""
    return getattr(model, "model_proto", model)

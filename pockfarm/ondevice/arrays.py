"""An app's arrays, converted to the types that the step takes. The library checks the elements' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pockfarm.ondevice.errors import StepError

Array = Any
"""A NumPy array, or what `numpy.asarray` takes."""
Arrays = Any
"""An array where there is only one, else arrays by name."""


class Tensor(NamedTuple):
    """A tensor of the step.

    Of inputs, labels and outputs `shape` is that of one sample, and arrays are [samples, *shape]; what `is_shared` is
    the same for every sample, and its array is [*shape].
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_shared: bool
    is_trained: bool


def by_name(what: str, tensors: Sequence[Tensor], arrays: Arrays) -> list[tuple[Tensor, Array]]:
    """Each tensor with its array. Raises: StepError for names that do not fit."""
    names = [tensor.name for tensor in tensors]
    if not isinstance(arrays, Mapping):
        if len(names) != 1:
            listed = f"there are {len(names)} arrays of {what} ({', '.join(names)})"
            raise StepError(f"{listed}: give them by name, as a dict", code=f"user.{what}")
        arrays = {names[0]: arrays}
    unknown, missing = sorted(set(arrays) - set(names)), [name for name in names if name not in arrays]
    if unknown or missing:
        problems = [f"no {what} is called {', '.join(map(repr, unknown))}"] if unknown else []
        problems += [f"{what} {', '.join(map(repr, missing))} must be given"] if missing else []
        raise StepError(f"{'; '.join(problems)} (there are: {', '.join(names) or 'none'})", code=f"user.{what}")
    return [(tensor, arrays[tensor.name]) for tensor in tensors]


def fitted(tensor: Tensor, array: Array) -> Array:
    """The array in the tensor's type, its elements one after the other. Raises: StepError."""
    samples = np.asarray(array)
    expected = tensor.shape if tensor.is_shared else (*samples.shape[:1], *tensor.shape)
    if samples.shape != expected or not samples.size or (not tensor.is_shared and not samples.ndim):
        needs = list(tensor.shape) if tensor.is_shared else ["samples", *tensor.shape]
        shape_text = ", ".join(map(str, needs))
        raise StepError(
            f"'{tensor.name}' has shape {list(samples.shape)}; it needs [{shape_text}]", code="data.shape", cause="data"
        )
    return _converted(tensor, samples)


def fitted_parameter(parameters: Mapping[str, Tensor], name: str, array: Array) -> Array:
    if name not in parameters:
        some = ", ".join(list(parameters)[:3])
        raise StepError(f"there is no parameter {name!r}; there are {len(parameters)}: {some} …", code="user.parameter")
    elements = np.asarray(array)
    if elements.shape != parameters[name].shape:
        raise StepError(
            f"parameter '{name}' has shape {list(parameters[name].shape)}, not {list(elements.shape)}",
            code="weights.shape",
            cause="weights",
        )
    converted = _converted(parameters[name], elements)
    if not np.isfinite(converted).all():
        raise StepError(f"parameter '{name}' would hold NaN or Inf", code="weights.not_finite", cause="weights")
    return converted


def _converted(tensor: Tensor, elements: Array) -> Array:
    """Numbers become float32; integers stay integers, and must fit. Raises: StepError."""
    takes = {"f": "fiub", "i": "iub", "b": "b"}[tensor.dtype.kind]
    if elements.dtype.kind not in takes:
        message = f"'{tensor.name}' has elements of type {elements.dtype}; it needs {tensor.dtype}"
        raise StepError(message, code="data.dtype", cause="data")
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(elements, tensor.dtype).reshape(elements.shape)
    if tensor.dtype.kind == "i" and not np.array_equal(converted, elements):
        raise StepError(f"'{tensor.name}' holds integers beyond {tensor.dtype}", code="data.range", cause="data")
    return converted

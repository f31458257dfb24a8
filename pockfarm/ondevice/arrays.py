"""What an app hands in, in the types that the step takes. The library checks what elements hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pockfarm.ondevice.errors import StepError

Array = Any
"""A NumPy array, or what `numpy.asarray` takes."""
Arrays = Any
"""One array where there is one, else arrays by name."""


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


def by_name(what: str, tensors: Sequence[Tensor], given: Arrays) -> list[tuple[Tensor, Array]]:
    """Each tensor with its array. Raises: StepError for names that do not fit."""
    names = [tensor.name for tensor in tensors]
    if not isinstance(given, Mapping):
        if len(names) != 1:
            listed = f"there are {len(names)} arrays of {what} ({', '.join(names)})"
            raise StepError(f"{listed}: give them by name, as a dict", code=f"user.{what}")
        given = {names[0]: given}
    unknown, missing = sorted(set(given) - set(names)), [name for name in names if name not in given]
    if unknown or missing:
        told = [f"no {what} is called {', '.join(map(repr, unknown))}"] if unknown else []
        told += [f"{what} {', '.join(map(repr, missing))} must be given"] if missing else []
        raise StepError(f"{'; '.join(told)} (there are: {', '.join(names) or 'none'})", code=f"user.{what}")
    return [(tensor, given[tensor.name]) for tensor in tensors]


def fitted(tensor: Tensor, array: Array) -> Array:
    """The array in the tensor's type, its elements one after the other. Raises: StepError."""
    given = np.asarray(array)
    wanted = tensor.shape if tensor.is_shared else (*given.shape[:1], *tensor.shape)
    if given.shape != wanted or not given.size or (not tensor.is_shared and not given.ndim):
        needs = list(tensor.shape) if tensor.is_shared else ["samples", *tensor.shape]
        shown = ", ".join(map(str, needs))
        raise StepError(
            f"'{tensor.name}' has shape {list(given.shape)}; it needs [{shown}]", code="data.shape", cause="data"
        )
    return _converted(tensor, given)


def fitted_parameter(known: Mapping[str, Tensor], name: str, array: Array) -> Array:
    if name not in known:
        some = ", ".join(list(known)[:3])
        raise StepError(f"there is no parameter {name!r}; there are {len(known)}: {some} …", code="user.parameter")
    given = np.asarray(array)
    if given.shape != known[name].shape:
        raise StepError(
            f"parameter '{name}' has shape {list(known[name].shape)}, not {list(given.shape)}",
            code="weights.shape",
            cause="weights",
        )
    made = _converted(known[name], given)
    if not np.isfinite(made).all():
        raise StepError(f"parameter '{name}' would hold NaN or Inf", code="weights.not_finite", cause="weights")
    return made


def _converted(tensor: Tensor, given: Array) -> Array:
    """Numbers become float32; integers stay integers, and must fit. Raises: StepError."""
    takes = {"f": "fiub", "i": "iub", "b": "b"}[tensor.dtype.kind]
    if given.dtype.kind not in takes:
        told = f"'{tensor.name}' has elements of type {given.dtype}; it needs {tensor.dtype}"
        raise StepError(told, code="data.dtype", cause="data")
    with np.errstate(over="ignore"):
        made = np.ascontiguousarray(given, tensor.dtype).reshape(given.shape)
    if tensor.dtype.kind == "i" and not np.array_equal(made, given):
        raise StepError(f"'{tensor.name}' holds integers beyond {tensor.dtype}", code="data.range", cause="data")
    return made

"""A data set as a caller gives it, as the arrays that a run reads: inputs by name, and labels `y`.

Taken: a mapping of arrays, `(inputs, labels)`, the path of an npz, a PyTorch Dataset or DataLoader, or any iterable of
`(x, y)`, where x is an array, a tuple of them or a mapping. Arrays are NumPy's or PyTorch's; the first axis is samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pockfarm.errors import UsageError
from pockfarm.fine_tuning.model import Input

Array = NDArray[Any]
Arrays = dict[str, Array]
LABELS = "y"
_LABEL_NAMES = ("y", "labels", "label")
_FORMS = "a mapping of arrays, (inputs, labels), an npz, a Dataset or DataLoader, or an iterable of (x, y)"


def read_data(data: Any, inputs: Sequence[str], example: Mapping[str, Input]) -> Arrays:
    """The whole data set: every input by its name, labels as `y`, all with the same number of samples.

    `example` says what a batch looks like, if that is known. Raises: UsageError.
    """
    if isinstance(data, str | os.PathLike):
        data = _npz(Path(data))
    if isinstance(data, Mapping):
        arrays = _named(data, inputs)
    elif isinstance(data, tuple) and len(data) == 2 and not _is_pair_of_samples(data):
        arrays = _paired(data[0], data[1], inputs)
    elif isinstance(data, Iterable) or hasattr(data, "__getitem__"):
        arrays = _gathered(data, inputs, example)
    else:
        raise UsageError(f"data is {type(data).__name__}; expected {_FORMS}")
    return _checked(arrays, example)


def fitted(arrays: Arrays, expected: Mapping[str, Input], *, labels: Input) -> Arrays:
    """The arrays in the element types that the step reads. Raises: UsageError for what does not fit it."""
    wanted = {**expected, LABELS: labels}
    return {name: _as_read(name, array, wanted[name]) for name, array in arrays.items()}


def _as_read(name: str, array: Array, wanted: Input) -> Array:
    if array.shape[1:] != wanted.shape[1:]:
        raise UsageError(
            f"{_what(name)} have shape {list(array.shape[1:])} per sample, the step reads {list(wanted.shape[1:])}"
        )
    is_real = wanted.dtype.startswith("float")
    if is_real and array.dtype.kind != "f" and name != LABELS:
        raise UsageError(f"{_what(name)} are {array.dtype}, the step reads {wanted.dtype}: convert (and scale) them")
    if not is_real and array.dtype.kind == "f":
        raise UsageError(f"{_what(name)} are {array.dtype}, the step reads {wanted.dtype}")
    return np.ascontiguousarray(array.astype(wanted.dtype))


def _what(name: str) -> str:
    return "the labels" if name == LABELS else f"the samples of input {name!r}"


# --------------------------------------------------------------------------------------------------------------- forms


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path}: not a readable npz: {problem}") from None


def _named(data: Mapping[str, Any], inputs: Sequence[str]) -> Arrays:
    """Inputs by name, or `x` for the only one; labels as `y`."""
    labels = next((name for name in _LABEL_NAMES if name in data and name not in inputs), None)
    if labels is None:
        raise UsageError(f"data has no labels: an array called {LABELS!r}; it holds: {', '.join(map(str, data))}")
    given: dict[str, Any] = {}
    for name in inputs:
        own = name if name in data else "x" if len(inputs) == 1 and "x" in data else ""
        if not own:
            raise UsageError(
                f"data has no array for input {name!r}; the model reads: {', '.join(inputs)}; data holds: "
                f"{', '.join(map(str, data))}"
            )
        given[name] = data[own]
    return {**{name: _array(value, name) for name, value in given.items()}, LABELS: _array(data[labels], LABELS)}


def _paired(x: Any, y: Any, inputs: Sequence[str]) -> Arrays:
    if isinstance(x, Mapping):
        return _named({**x, LABELS: y}, inputs)
    given = tuple(x) if isinstance(x, tuple | list) else (x,)
    if len(given) != len(inputs):
        raise UsageError(f"data has {len(given)} inputs, the model reads {len(inputs)}: {', '.join(inputs)}")
    return {**{name: _array(one, name) for name, one in zip(inputs, given, strict=True)}, LABELS: _array(y, LABELS)}


def _is_pair_of_samples(data: tuple[Any, Any]) -> bool:
    """True for two `(x, y)` rather than inputs and labels: what stands second is no array."""
    return isinstance(data[1], tuple | list) and len(data[1]) == 2 and not isinstance(data[1][0], int | float)


def _gathered(data: Any, inputs: Sequence[str], example: Mapping[str, Input]) -> Arrays:
    """All items of an iterable in a row: batches or single samples."""
    single = _holds_samples(data)
    rows: dict[str, list[Array]] = {}
    for position, item in enumerate(_items(data)):
        arrays = _item(item, inputs, position)
        if single is None:
            single = _is_sample(arrays, example)
        for name, array in arrays.items():
            rows.setdefault(name, []).append(array[None] if single else array)
    if not rows:
        raise UsageError("data holds no samples")
    try:
        return {name: np.concatenate(parts) for name, parts in rows.items()}
    except ValueError as problem:
        raise UsageError(f"data holds samples of different shapes: {problem}") from None


def _items(data: Any) -> Iterator[Any]:
    """By position up to its length where there is one: a Dataset's own iteration need not end."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (data[position] for position in range(len(data)))
    return iter(data)


def _item(item: Any, inputs: Sequence[str], position: int) -> Arrays:
    if isinstance(item, Mapping):
        return _named(item, inputs)
    if isinstance(item, tuple | list) and len(item) == 2:
        return _paired(item[0], item[1], inputs)
    if isinstance(item, tuple | list) and len(item) == len(inputs) + 1:
        return _paired(tuple(item[:-1]), item[-1], inputs)
    raise UsageError(f"item {position} of data is {type(item).__name__}; expected (x, y), or a mapping")


def _holds_samples(data: Any) -> bool | None:
    """True for a Dataset, False for a DataLoader, None for what does not tell."""
    if hasattr(data, "batch_size") and hasattr(data, "dataset"):
        return data.batch_size is None
    is_dataset = any(base.__name__ == "Dataset" for base in type(data).__mro__)
    return True if is_dataset else None


def _is_sample(arrays: Arrays, example: Mapping[str, Input]) -> bool:
    """True if an item is one sample and no batch: a batch has the axes of the example."""
    for name, array in arrays.items():
        if name in example:
            return array.ndim < len(example[name].shape)
    return arrays[LABELS].ndim == 0


def _array(value: Any, name: str) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise UsageError(f"{_what(name)} are no array: {problem}") from None
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{_what(name)} are {array.dtype}; expected numbers")
    return array


# -------------------------------------------------------------------------------------------------------------- checks


def _checked(arrays: Arrays, example: Mapping[str, Input]) -> Arrays:
    samples = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if 0 in samples.values():
        raise UsageError(f"data holds no samples: {samples}")
    if len(set(samples.values())) > 1:
        raise UsageError(f"arrays have different numbers of samples (first axis): {samples}")
    for name, wanted in example.items():
        if name in arrays and arrays[name].shape[1:] != wanted.shape[1:]:
            raise UsageError(
                f"{_what(name)} have shape {list(arrays[name].shape[1:])}, those of example_inputs "
                f"{list(wanted.shape[1:])}"
            )
    return arrays

"""A data set as a caller gives it, as the arrays that a run reads: inputs by name, and labels `y`.

Taken: a mapping of arrays, `(inputs, labels)`, the path of an npz, a PyTorch Dataset or DataLoader, or any iterable of
`(x, y)`, where x is an array, a tuple of them or a mapping. Arrays are NumPy's or PyTorch's, as the model takes them:
samples are the first axis, or the one that the step says. What is read has its samples first, as data sets have, and
what is the same for every sample once. An npz is a data set: it has them first already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from pockfarm.errors import BELOW, UsageError
from pockfarm.fine_tuning.model import Input
from pockfarm.local.preflight import arrays_in

Array = NDArray[Any]
Arrays = dict[str, Array]
Axes = Mapping[str, Optional[int]]
"""By array: where samples lie; None: the same for every sample."""
LABELS = "y"
_LABEL_NAMES = ("y", "labels", "label")
_FORMS = "a mapping of arrays, (inputs, labels), an npz, a Dataset or DataLoader, or an iterable of (x, y)"


@dataclass(frozen=True)
class Names:
    """Names of a step's inputs, in the order of the model's arguments, and of its arrays of labels."""

    inputs: tuple[str, ...]
    labels: tuple[str, ...] = (LABELS,)
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that are the same for every sample: data need not hold them."""

    @property
    def varying(self) -> tuple[str, ...]:
        """The inputs that data must hold."""
        return tuple(name for name in self.inputs if name not in self.examples)

    def key(self, name: str) -> str:
        """Returns the name of an input in a data set: `input.y` if labels have its name, else its name."""
        return f"input.{name}" if name in self.labels else name

    def keyed(self, inputs: Mapping[str, Input]) -> dict[str, Input]:
        """Returns the inputs under their names in a data set."""
        return {self.key(name): described for name, described in inputs.items()}


def read_data(
    data: Any, names: Names, example: Mapping[str, Input], labels: Mapping[str, Input] | None = None
) -> Arrays:
    """The whole data set: every input by its key and labels by their names, all with the same number of samples.

    `example` and `labels` say what a batch looks like, as far as that is known. Raises: UsageError.
    """
    example = names.keyed(example)
    axes = {name: input_.batch_axis for name, input_ in {**example, **(labels or {})}.items()}
    if data is None:
        raise UsageError(f"there is no data to train on: give data=(x, y), or {_FORMS}")
    if isinstance(data, list) and len(data) == 2 and all(hasattr(part, "shape") and part.ndim for part in data):
        data = tuple(data)
    if isinstance(data, (str, os.PathLike)):
        return _checked(_given_once(_by_names(_npz(Path(data)), names), example), example)
    if isinstance(data, Mapping):
        arrays = _samples_first(_by_names(data, names), axes)
    elif not names.labels and (hasattr(data, "shape") or isinstance(data, tuple)):
        arrays = _samples_first(_inputs(data, names), axes)
    elif names.labels and isinstance(data, tuple) and len(data) == 2 and not _is_pair_of_samples(data, names):
        arrays = _samples_first({**_inputs(data[0], names), **_labels(data[1], names)}, axes)
    elif isinstance(data, Iterable) or hasattr(data, "__getitem__"):
        arrays = _gathered(data, names, example, axes)
    else:
        raise UsageError(f"data is {type(data).__name__}", hint=f"expected {_FORMS}")
    return _checked(arrays, example)


def fitted(arrays: Arrays, inputs: Mapping[str, Input]) -> Arrays:
    """The arrays in the element types that the step reads. Raises: UsageError for what does not fit it."""
    return {name: _as_read(name, array, inputs[name]) if name in inputs else array for name, array in arrays.items()}


def _as_read(name: str, array: Array, input_: Input) -> Array:
    if array.shape[1:] != input_.sample_shape:
        raise UsageError(
            f"{_what(name)} have shape {list(array.shape[1:])} per sample, the step reads {list(input_.sample_shape)}",
            hint=_label_hint(array, input_),
            hint_form=BELOW,
        )
    is_real = input_.dtype.startswith("float")
    if is_real and array.dtype.kind != "f" and not input_.is_label:
        raise UsageError(f"{_what(name)} are {array.dtype}, the step reads {input_.dtype}: convert (and scale) them")
    if not is_real and array.dtype.kind == "f":
        hint = "classes are whole numbers: y.long(); a loss on real numbers is named in the spec (mse, ...)"
        raise UsageError(
            f"{_what(name)} are {array.dtype}, the step reads {input_.dtype}",
            hint=hint if input_.is_label else "",
            hint_form=BELOW,
        )
    return np.ascontiguousarray(array.astype(input_.dtype))


def _label_hint(array: Array, input_: Input) -> str:
    """Returns a hint for labels of another rank: a column of classes, or one number for each class."""
    if not input_.is_label or input_.dtype.startswith("float") or array.ndim != len(input_.shape) + 1:
        return ""
    use = "y.squeeze(-1)" if array.shape[-1] == 1 else "y.argmax(-1)"
    return f"a label is the number of its class: {use}"


def _what(name: str) -> str:
    return "the labels" if name == LABELS else f"the samples of {name!r}"


# --------------------------------------------------------------------------------------------------------------- forms


def _npz(path: Path) -> Arrays:
    return dict(arrays_in(path))


def _by_names(data: Mapping[str, Any], names: Names) -> Arrays:
    return {**_inputs(data, names), **_labels(data, names)}


def _inputs(x: Any, names: Names) -> Arrays:
    """Inputs by name (or `x` for the only one), in order, or the only one."""
    if not isinstance(x, Mapping):
        ordered = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        if len(names.inputs) == 1 and isinstance(x, list) and not (len(x) == 1 and hasattr(x[0], "shape")):
            ordered = (_stacked(x, names.key(names.inputs[0])),)
        if len(ordered) not in (len(names.inputs), len(names.varying)):
            raise UsageError(
                f"data has {len(ordered)} inputs, the model reads {len(names.inputs)}: {', '.join(names.inputs)}"
            )
        order = names.inputs if len(ordered) == len(names.inputs) else names.varying
        x = {names.key(name): array for name, array in zip(order, ordered)}
    arrays: Arrays = {}
    for input_name in names.inputs:
        name = names.key(input_name)
        key = name if name in x else "x" if names.varying == (input_name,) and "x" in x else ""
        if not key and input_name in names.examples:
            arrays[name] = _array(names.examples[input_name], name)
            continue
        if not key:
            raise UsageError(
                f"data has no array for input {name!r}",
                hint=f"the model reads: {', '.join(names.inputs)}; data holds: {', '.join(map(str, x))}",
            )
        arrays[name] = _array(x[key], name)
    return arrays


def _stacked(samples: list[Any], name: str) -> Array:
    """A list of samples, or of numbers, as one array."""
    try:
        return np.stack([_array(sample, name) for sample in samples]) if samples else np.zeros(0)
    except ValueError as problem:
        raise UsageError(f"{_what(name)} have different shapes: {problem}") from None


def unread_names(data: Any, names: Names) -> list[str]:
    """Arrays of a mapping that nothing reads."""
    if not isinstance(data, Mapping):
        return []
    read = {*map(names.key, names.inputs), *names.labels, "x", *_LABEL_NAMES}
    return [str(name) for name in data if name not in read]


def _labels(y: Any, names: Names) -> Arrays:
    """Labels by name, in order, or the only ones."""
    only = names.labels[0] if len(names.labels) == 1 else ""
    if isinstance(y, Mapping):
        keys = {name: name for name in names.labels}
        if only == LABELS:
            keys[only] = next((key for key in _LABEL_NAMES if key in y and key not in names.inputs), only)
        missing = [name for name, key in keys.items() if key not in y]
        if missing:
            raise UsageError(f"data has no labels {missing[0]!r}", hint=f"it holds: {', '.join(map(str, y))}")
        return {name: _array(y[key], name) for name, key in keys.items()}
    if only:
        return {only: _array(y, only)}
    ordered = tuple(y) if isinstance(y, (tuple, list)) else (y,)
    if len(ordered) != len(names.labels):
        raise UsageError(
            f"data has {len(ordered)} arrays of labels, the loss reads {len(names.labels)}: {', '.join(names.labels)}"
        )
    return {name: _array(array, name) for name, array in zip(names.labels, ordered)}


def _is_pair_of_samples(data: tuple[Any, Any], names: Names) -> bool:
    """True for two `(x, y)` rather than inputs and labels: both are pairs, and what stands second is no array."""
    pairs = all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in data)
    return pairs and len(names.labels) == 1 and not isinstance(data[1][0], (int, float))


def _gathered(data: Any, names: Names, example: Mapping[str, Input], axes: Axes) -> Arrays:
    """All items of an iterable in a row: batches or single samples."""
    single = _holds_samples(data)
    rows: dict[str, list[Array]] = {}
    for position, item in enumerate(_items(data)):
        arrays = _item(item, names, position)
        if single is None:
            single = _is_sample(arrays, names, example)
        for name, array in _samples_first(arrays, {} if single else axes).items():
            rows.setdefault(name, []).append(array[None] if single else array)
    if not rows:
        raise UsageError("data holds no samples")
    try:
        return {name: _in_a_row(name, parts, axes.get(name, 0)) for name, parts in rows.items()}
    except ValueError as problem:
        raise UsageError(f"data holds samples of different shapes: {problem}") from None


def _in_a_row(name: str, parts: list[Array], axis: int | None) -> Array:
    """All samples, or what is the same in all items."""
    if axis is not None:
        return np.concatenate(parts)
    if not all(np.array_equal(parts[0], part) for part in parts[1:]):
        raise UsageError(f"{_what(name)} differ, and the step takes one for all: it has batch_axis: null")
    return parts[0]


def _samples_first(arrays: Arrays, axes: Axes) -> Arrays:
    """As data sets have them, from what the model takes; with a first axis of 1 what is the same for every sample."""
    return {name: _moved(name, array, axes.get(name, 0)) for name, array in arrays.items()}


def _moved(name: str, array: Array, axis: int | None) -> Array:
    if axis is None:
        return array[None]
    if axis >= max(array.ndim, 1):
        raise UsageError(f"{_what(name)} have shape {list(array.shape)}, and their samples are to be in axis {axis}")
    return array if axis == 0 else np.moveaxis(array, axis, 0)


def _given_once(arrays: Arrays, example: Mapping[str, Input]) -> Arrays:
    """Accepts arrays that are the same for every sample either as they are, or with a first axis of 1."""
    once = [name for name, input_ in example.items() if input_.batch_axis is None and name in arrays]
    return {**arrays, **{name: arrays[name][None] for name in once if arrays[name].shape == example[name].shape}}


def _items(data: Any) -> Iterator[Any]:
    """By position up to its length where there is one: a Dataset's own iteration need not end."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (data[position] for position in range(len(data)))
    return iter(data)


def _item(item: Any, names: Names, position: int) -> Arrays:
    if isinstance(item, Mapping):
        return _by_names(item, names)
    if not names.labels:
        return _inputs(item, names)
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return {**_inputs(item[0], names), **_labels(item[1], names)}
    counts = (len(names.inputs), len(names.varying))
    if isinstance(item, (tuple, list)) and len(item) - len(names.labels) in counts:
        inputs = len(item) - len(names.labels)
        return {**_inputs(item[:inputs], names), **_labels(_last(item[inputs:]), names)}
    raise UsageError(f"item {position} of data is {type(item).__name__}", hint="expected (x, y), or a mapping")


def _last(labels: Sequence[Any]) -> Any:
    labels = tuple(labels)
    return labels[0] if len(labels) == 1 else labels


def _holds_samples(data: Any) -> bool | None:
    """True for a Dataset, False for a DataLoader, None for what does not tell."""
    if hasattr(data, "batch_size") and hasattr(data, "dataset"):
        return data.batch_size is None
    is_dataset = any(base.__name__ == "Dataset" for base in type(data).__mro__)
    return True if is_dataset else None


def _is_sample(arrays: Arrays, names: Names, example: Mapping[str, Input]) -> bool:
    """True if an item is one sample and no batch: a batch has the axes of the example."""
    for name, array in arrays.items():
        if name in example and example[name].batch_axis is not None:
            return array.ndim < len(example[name].shape)
    return any(arrays[name].ndim == 0 for name in names.labels)


def _array(value: Any, name: str) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(getattr(value, "layout", "")).startswith("torch.sparse"):
            raise UsageError(f"{_what(name)} are a sparse tensor", hint=f"give it dense: {name}.to_dense()")
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    try:
        array = np.asarray(value)
    except ValueError as problem:
        raise UsageError(f"{_what(name)} are no array: {problem}") from None
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{_what(name)} are {array.dtype}", hint="expected numbers")
    return array


# -------------------------------------------------------------------------------------------------------------- checks


def _checked(arrays: Arrays, example: Mapping[str, Input]) -> Arrays:
    once = {name for name, input_ in example.items() if input_.batch_axis is None}
    samples = {name: len(array) if array.ndim else 0 for name, array in arrays.items() if name not in once}
    if 0 in samples.values() or not samples:
        raise UsageError(f"data holds no samples: {samples}")
    if len(set(samples.values())) > 1:
        raise UsageError(f"arrays have different numbers of samples (first axis): {samples}")
    for name, example_input in example.items():
        if name in arrays and arrays[name].shape[1:] != example_input.sample_shape:
            raise UsageError(
                f"{_what(name)} have shape {list(arrays[name].shape[1:])}, those of example_inputs "
                f"{list(example_input.sample_shape)}"
            )
    return arrays


def any_arrays(data: Any) -> Arrays:
    """Returns the arrays of data whose model is unknown: a mapping as it is, else one input `x` and labels `y`. Raises:
    UsageError.
    """
    if isinstance(data, Mapping):
        return _checked({str(name): _array(array, str(name)) for name, array in data.items()}, {})
    return read_data(data, Names(("x",)), {})

"""Whether arrays of a data set are what a bundle reads, and what is odd about them: one rule for whoever asks.

The farm asks when a run is submitted, `pockfarm exec` before it starts one. Element types: a real input takes float32
and float64, which becomes float32 as it is read; whole numbers are for inputs and labels that are whole numbers.
Pictures as bytes are no real numbers yet: who converts them says how they are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

LABELS = "y"
"""The array of labels of a data set, unless a bundle names others."""
_REAL, _WHOLE = ("float32", "float64"), ("int64", "int32", "uint8", "bool")
TAKEN: Mapping[str, tuple[str, ...]] = {"f32": _REAL, "i64": _WHOLE, "i32": _WHOLE, "bool": ("bool", "uint8")}
"""The types that an array may have, by the element type of an input or of labels."""
BYTE_HIGH = (128, 255)
"""The range in which the largest number of a picture's bytes lies; whole numbers up to 16 or 100 may be counts."""
LEAST_CONSTANT = 16
"""Elements from which on it is odd that all are alike."""
FAR = 1000.0
"""Beyond this no number is near those that networks mostly learn on."""


class Misfit(Exception):
    """An array is not what the bundle reads. `array` names it; `hint` is the next step."""

    def __init__(self, code: str, message: str, array: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.message, self.array, self.hint = code, message, array, hint


@dataclass(frozen=True)
class TensorSpec:
    """An input of the model, or labels, as a bundle reads them; `batch_axis` holds the samples; None: it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    batch_axis: int | None = 0
    classes: int = 0
    """Number of classes, for labels that are numbers of classes."""
    ignored: int = -100
    """A label that counts for nothing."""
    is_weighed: bool = False
    """A layer with weights reads the input as it is: nothing in the model scales it before."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(extent for axis, extent in enumerate(self.shape) if axis != self.batch_axis)


@dataclass(frozen=True)
class ArraySummary:
    """An array as it was read; the first extent is samples. What nobody has looked at is None."""

    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    """The smallest number; of whole numbers but for -100, which losses pass over."""
    high: float | None = None
    is_whole: bool | None = None
    """Whether there is nothing but whole numbers."""


@dataclass(frozen=True)
class Remark:
    """Something odd that may be meant."""

    code: str
    array: str
    message: str
    hint: str


def inputs_of(manifest: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """The model's inputs, in its order."""
    return tuple(_tensor_of(entry) for entry in manifest.get("inputs", ()))


def labels_of(manifest: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Returns the form that each array of labels must have, by its name in a data set: one tensor is the array `y`."""
    entry = manifest.get("labels")
    if isinstance(entry, dict):
        return (replace(_tensor_of(entry), name=LABELS),)
    return tuple(map(_tensor_of, entry)) if isinstance(entry, list) else ()


def _tensor_of(entry: Mapping[str, Any]) -> TensorSpec:
    axis = entry.get("batch_axis", 0)
    shape = tuple(int(extent) for extent in entry["shape"])
    return TensorSpec(
        str(entry["name"]),
        str(entry["dtype"]),
        shape,
        None if axis is None else int(axis),
        int(entry.get("classes", 0)),
        int(entry.get("ignored", -100)),
        entry.get("weighed") is True,
    )


def check_fit(
    arrays: Mapping[str, ArraySummary],
    inputs: Sequence[TensorSpec],
    labels: Sequence[TensorSpec],
    *,
    reads_labels: bool = True,
) -> None:
    """Raises: Misfit if an input or labels have no array, or one of another type, shape or range."""
    samples = max(array.shape[0] for array in arrays.values())
    label_names = frozenset(tensor.name for tensor in labels)
    for tensor in inputs:
        name = array_of(arrays, tensor.name, label_names, is_only=len(inputs) == 1)
        who = f"the model's input {tensor.name!r} takes"
        if _is_text(arrays[name]):  # its shape says nothing about what is wrong
            _check_type(name, arrays[name], tensor, who)
        _check_exchanged(name, arrays, tensor, labels)
        _check_shape(name, arrays[name], tensor, samples)
        _check_type(name, arrays[name], tensor, who)
    for tensor in labels if reads_labels else ():
        if tensor.name not in arrays:
            raise Misfit(
                "data.arrays",
                f"no array for the labels {tensor.name!r}; there are {sorted(arrays)}",
                tensor.name,
                f"numpy.savez(file, x=inputs, {tensor.name}=labels)",
            )
        _check_shape(tensor.name, arrays[tensor.name], tensor, samples)
        _check_type(tensor.name, arrays[tensor.name], tensor, "the loss takes")
        _check_classes(tensor.name, arrays[tensor.name], tensor)


def array_of(arrays: Mapping[str, object], name: str, labels: frozenset[str], *, is_only: bool) -> str:
    """The array that holds an input, as the agent looks for it (`device_agents.job.dataset`). Raises: Misfit."""
    array_name = f"input.{name}" if name == LABELS or name in labels else name
    names = [array_name, *(["x"] if is_only and "x" not in labels else []), *({name} - labels)]
    match = next((candidate for candidate in names if candidate in arrays), None)
    if match is None:
        hint = "name arrays after the model's inputs (one called `y`: `input.y`), or `x` if it has one"
        near = next((array for array in arrays if array.lower() in names), "")
        hint = f"{near!r} in lower case, as {near.lower()!r}: names are compared letter by letter" if near else hint
        raise Misfit("data.arrays", f"no array for the model's input {name!r}; there are {sorted(arrays)}", name, hint)
    return match


def _check_exchanged(
    name: str, arrays: Mapping[str, ArraySummary], tensor: TensorSpec, labels: Sequence[TensorSpec]
) -> None:
    for label in labels:
        array, other = arrays[name], arrays.get(label.name)
        if other is None or tensor.sample_shape == label.sample_shape:
            continue
        if other.shape[1:] == tensor.sample_shape and array.shape[1:] == label.sample_shape:
            message = f"array {name!r} has the shape of {label.name!r}, and {label.name!r} that of {name!r}"
            raise Misfit(
                "data.shape", message, name, f"exchange them: numpy.savez(file, {name}=inputs, {label.name}=labels)"
            )


def _is_text(array: ArraySummary) -> bool:
    return array.dtype.startswith(("<U", "|S", "str", "object"))


def _check_shape(name: str, array: ArraySummary, tensor: TensorSpec, samples: int) -> None:
    if tensor.batch_axis is None:
        if array.shape not in (tensor.shape, (1, *tensor.shape)):
            raise Misfit(
                "data.shape",
                f"array {name!r} has shape {list(array.shape)}, the bundle's {tensor.name!r} "
                f"takes {[1, *tensor.shape]}, the same for every sample",
                name,
                "give one of that shape, or compile for this one",
            )
        return
    if array.shape[1:] != tensor.sample_shape:
        raise Misfit(
            "data.shape",
            f"array {name!r} has samples of shape {list(array.shape[1:])}, "
            f"the bundle's {tensor.name!r} takes {list(tensor.sample_shape)}",
            name,
            _shape_hint(name, array, tensor),
        )
    if array.shape[0] != samples:
        same = "what is the same for every sample has batch_axis: null in the spec's inputs"
        raise Misfit(
            "data.samples",
            f"array {name!r} has {array.shape[0]} samples, others have {samples}",
            name,
            same if array.shape[0] == 1 else "every array needs one entry for each sample",
        )


def _shape_hint(name: str, array: ArraySummary, tensor: TensorSpec) -> str:
    """Returns a hint of what was meant, by the two shapes."""
    have, need = array.shape[1:], tensor.sample_shape
    if tensor.classes and len(have) == len(need) + 1:
        return f"a label is the number of its class: {name}.{'squeeze(-1)' if have[-1] == 1 else 'argmax(-1)'}"
    if len(have) == len(need) == 3 and (have[2], have[0], have[1]) == need:
        return f"channels come first: numpy.ascontiguousarray({name}.transpose(0, 3, 1, 2))"
    if _size(have) == _size(need):
        return f"the same numbers in that shape: {name}.reshape({', '.join(map(str, (-1, *need)))})"
    return "give data of that shape, samples first, or compile for this one"


def _size(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _check_type(name: str, array: ArraySummary, tensor: TensorSpec, who: str) -> None:
    allowed = TAKEN.get(tensor.dtype, (tensor.dtype,))
    if array.dtype in allowed:
        return
    convert = f"convert it: {name}.astype(numpy.{allowed[0]})"
    if allowed is _REAL and array.dtype == "uint8":
        convert = f"{convert} / 255 for pictures, or however the model's own data were scaled"
    if tensor.classes and _is_text(array):
        convert = f"number the classes: numpy.unique({name}, return_inverse=True)[1]"
    raise Misfit("data.dtype", f"array {name!r} holds {array.dtype}, {who} {' or '.join(allowed[:2])}", name, convert)


def _check_classes(name: str, array: ArraySummary, tensor: TensorSpec) -> None:
    low, high, classes = array.low, array.high, tensor.classes
    if not classes or low is None or high is None:
        return
    is_low, is_high = low < 0 and low != tensor.ignored, high >= classes and high != tensor.ignored
    if is_low or is_high:
        fits = low == 1 and high == classes
        raise Misfit(
            "data.labels",
            f"labels {name!r} are {low:.0f} to {high:.0f}; the model tells {classes} classes "
            f"apart, 0 to {classes - 1} ({tensor.ignored} counts for nothing)",
            name,
            f"classes are numbered from 0: {name} - 1"
            if fits
            else "number the classes from 0, or give the model as many outputs as there are classes",
        )


def remarks(
    arrays: Mapping[str, ArraySummary], inputs: Sequence[TensorSpec], labels: Sequence[TensorSpec], *, batch: int = 0
) -> tuple[Remark, ...]:
    """Returns remarks on arrays that fit: numbers far from those that networks learn on, too few samples for a step."""
    label_names = frozenset(tensor.name for tensor in labels)
    remark_list = []
    for tensor in inputs:
        name = array_of(arrays, tensor.name, label_names, is_only=len(inputs) == 1)
        remark = _scale(name, arrays[name]) if tensor.is_weighed and tensor.dtype == "f32" else None
        remark_list += [remark] if remark else []
        remark = _constant(
            name,
            arrays[name],
            f"every element of array {name!r} is",
            "what is the same for all samples teaches nothing: was it read, or filled, as it should be?",
        )
        remark_list += [remark] if remark and tensor.batch_axis is not None else []
    for tensor in labels:
        if tensor.classes > 1 and tensor.name in arrays:
            remark = _constant(
                tensor.name,
                arrays[tensor.name],
                f"every label in {tensor.name!r} is",
                "a step learns to say that class always: are the labels those of all samples?",
            )
            remark_list += [remark] if remark else []
    samples = max(array.shape[0] for array in arrays.values())
    if samples < batch:
        remark_list.append(
            Remark(
                "data.few",
                "",
                f"{samples} samples, and a step takes {batch}: each step sees some of them more than once",
                "give more samples, or compile for a smaller batch",
            )
        )
    return tuple(remark_list)


def _constant(name: str, array: ArraySummary, message: str, hint: str) -> Remark | None:
    if array.low is None or array.low != array.high or _size(array.shape) < LEAST_CONSTANT:
        return None
    return Remark("data.constant", name, f"{message} {array.low:.4g}", hint)


def _scale(name: str, array: ArraySummary) -> Remark | None:
    """Pictures that nobody has scaled, and numbers that are far from 1."""
    if array.low is None or array.high is None:
        return None
    least, most = BYTE_HIGH
    if array.is_whole and array.low >= 0 and least <= array.high <= most:
        return Remark(
            "data.bytes",
            name,
            f"array {name!r} holds whole numbers from {array.low:.0f} to {array.high:.0f}, as "
            "pictures are stored, and the model's first layer reads them unscaled",
            "a model that learned on 0 "
            f"to 1 needs {name} / 255 (and its own mean and deviation); one that learned on bytes does not",
        )
    size = max(abs(array.low), abs(array.high))
    if size <= FAR:
        return None
    return Remark(
        "data.scale",
        name,
        f"array {name!r} reaches from {array.low:.4g} to {array.high:.4g}, and the model's "
        "first layer reads it unscaled: losses may explode",
        f"scale it as the data were that the model has learned on, such as ({name} - {name}.mean(0)) / {name}.std(0)",
    )

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
"""By the element type of an input or of labels: what an array may hold."""
BYTE_HIGH = (128, 255)
"""Where the largest number of a picture's bytes lies; whole numbers up to 16 or 100 may be counts."""
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
class Wanted:
    """An input of the model, or labels, as a bundle reads them; `batch_axis` holds the samples; None: it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    batch_axis: int | None = 0
    classes: int = 0
    """Of labels that are numbers of classes: how many there are."""
    ignored: int = -100
    """A label that counts for nothing."""
    is_weighed: bool = False
    """A layer with weights reads the input as it is: nothing in the model scales it before."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(extent for axis, extent in enumerate(self.shape) if axis != self.batch_axis)


@dataclass(frozen=True)
class Seen:
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


def inputs_of(manifest: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """The model's inputs, in its order."""
    return tuple(_wanted(entry) for entry in manifest.get("inputs", ()))


def labels_of(manifest: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """What each array of labels must look like, by its name in a data set: one tensor is the array `y`."""
    entry = manifest.get("labels")
    if isinstance(entry, dict):
        return (replace(_wanted(entry), name=LABELS),)
    return tuple(map(_wanted, entry)) if isinstance(entry, list) else ()


def _wanted(entry: Mapping[str, Any]) -> Wanted:
    axis = entry.get("batch_axis", 0)
    shape = tuple(int(extent) for extent in entry["shape"])
    return Wanted(
        str(entry["name"]),
        str(entry["dtype"]),
        shape,
        None if axis is None else int(axis),
        int(entry.get("classes", 0)),
        int(entry.get("ignored", -100)),
        entry.get("weighed") is True,
    )


def check_fit(
    arrays: Mapping[str, Seen], inputs: Sequence[Wanted], labels: Sequence[Wanted], *, reads_labels: bool = True
) -> None:
    """Raises: Misfit if an input or labels have no array, or one of another type, shape or range."""
    samples = max(seen.shape[0] for seen in arrays.values())
    taken = frozenset(wanted.name for wanted in labels)
    for wanted in inputs:
        name = array_of(arrays, wanted.name, taken, is_only=len(inputs) == 1)
        who = f"the model's input {wanted.name!r} takes"
        if _is_text(arrays[name]):  # its shape says nothing about what is wrong
            _check_type(name, arrays[name], wanted, who)
        _check_exchanged(name, arrays, wanted, labels)
        _check_shape(name, arrays[name], wanted, samples)
        _check_type(name, arrays[name], wanted, who)
    for wanted in labels if reads_labels else ():
        if wanted.name not in arrays:
            raise Misfit(
                "data.arrays",
                f"no array for the labels {wanted.name!r}; there are {sorted(arrays)}",
                wanted.name,
                f"numpy.savez(file, x=inputs, {wanted.name}=labels)",
            )
        _check_shape(wanted.name, arrays[wanted.name], wanted, samples)
        _check_type(wanted.name, arrays[wanted.name], wanted, "the loss takes")
        _check_classes(wanted.name, arrays[wanted.name], wanted)


def array_of(arrays: Mapping[str, object], name: str, labels: frozenset[str], *, is_only: bool) -> str:
    """The array that holds an input, as the agent looks for it (`device_agents.job.dataset`). Raises: Misfit."""
    own = f"input.{name}" if name == LABELS or name in labels else name
    names = [own, *(["x"] if is_only and "x" not in labels else []), *({name} - labels)]
    found = next((one for one in names if one in arrays), None)
    if found is None:
        hint = "name arrays after the model's inputs (one called `y`: `input.y`), or `x` if it has one"
        near = next((one for one in arrays if one.lower() in names), "")
        hint = f"{near!r} in lower case, as {near.lower()!r}: names are compared letter by letter" if near else hint
        raise Misfit("data.arrays", f"no array for the model's input {name!r}; there are {sorted(arrays)}", name, hint)
    return found


def _check_exchanged(name: str, arrays: Mapping[str, Seen], wanted: Wanted, labels: Sequence[Wanted]) -> None:
    for label in labels:
        seen, other = arrays[name], arrays.get(label.name)
        if other is None or wanted.sample_shape == label.sample_shape:
            continue
        if other.shape[1:] == wanted.sample_shape and seen.shape[1:] == label.sample_shape:
            told = f"array {name!r} has the shape of {label.name!r}, and {label.name!r} that of {name!r}"
            raise Misfit(
                "data.shape", told, name, f"exchange them: numpy.savez(file, {name}=inputs, {label.name}=labels)"
            )


def _is_text(seen: Seen) -> bool:
    return seen.dtype.startswith(("<U", "|S", "str", "object"))


def _check_shape(name: str, seen: Seen, wanted: Wanted, samples: int) -> None:
    if wanted.batch_axis is None:
        if seen.shape not in (wanted.shape, (1, *wanted.shape)):
            raise Misfit(
                "data.shape",
                f"array {name!r} has shape {list(seen.shape)}, the bundle's {wanted.name!r} "
                f"takes {[1, *wanted.shape]}, the same for every sample",
                name,
                "give one of that shape, or compile for this one",
            )
        return
    if seen.shape[1:] != wanted.sample_shape:
        raise Misfit(
            "data.shape",
            f"array {name!r} has samples of shape {list(seen.shape[1:])}, "
            f"the bundle's {wanted.name!r} takes {list(wanted.sample_shape)}",
            name,
            _shape_hint(name, seen, wanted),
        )
    if seen.shape[0] != samples:
        same = "what is the same for every sample has batch_axis: null in the spec's inputs"
        raise Misfit(
            "data.samples",
            f"array {name!r} has {seen.shape[0]} samples, others have {samples}",
            name,
            same if seen.shape[0] == 1 else "every array needs one entry for each sample",
        )


def _shape_hint(name: str, seen: Seen, wanted: Wanted) -> str:
    """What the two shapes say was meant."""
    have, need = seen.shape[1:], wanted.sample_shape
    if wanted.classes and len(have) == len(need) + 1:
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


def _check_type(name: str, seen: Seen, wanted: Wanted, who: str) -> None:
    allowed = TAKEN.get(wanted.dtype, (wanted.dtype,))
    if seen.dtype in allowed:
        return
    convert = f"convert it: {name}.astype(numpy.{allowed[0]})"
    if allowed is _REAL and seen.dtype == "uint8":
        convert = f"{convert} / 255 for pictures, or however the model's own data were scaled"
    if wanted.classes and _is_text(seen):
        convert = f"number the classes: numpy.unique({name}, return_inverse=True)[1]"
    raise Misfit("data.dtype", f"array {name!r} holds {seen.dtype}, {who} {' or '.join(allowed[:2])}", name, convert)


def _check_classes(name: str, seen: Seen, wanted: Wanted) -> None:
    low, high, classes = seen.low, seen.high, wanted.classes
    if not classes or low is None or high is None:
        return
    is_low, is_high = low < 0 and low != wanted.ignored, high >= classes and high != wanted.ignored
    if is_low or is_high:
        fits = low == 1 and high == classes
        raise Misfit(
            "data.labels",
            f"labels {name!r} are {low:.0f} to {high:.0f}; the model tells {classes} classes "
            f"apart, 0 to {classes - 1} ({wanted.ignored} counts for nothing)",
            name,
            f"classes are numbered from 0: {name} - 1"
            if fits
            else "number the classes from 0, or give the model as many outputs as there are classes",
        )


def remarks(
    arrays: Mapping[str, Seen], inputs: Sequence[Wanted], labels: Sequence[Wanted], *, batch: int = 0
) -> tuple[Remark, ...]:
    """What is odd of arrays that fit: numbers far from those that networks learn on, too few samples for a step."""
    taken = frozenset(wanted.name for wanted in labels)
    found = []
    for wanted in inputs:
        name = array_of(arrays, wanted.name, taken, is_only=len(inputs) == 1)
        remark = _scale(name, arrays[name]) if wanted.is_weighed and wanted.dtype == "f32" else None
        found += [remark] if remark else []
        remark = _constant(
            name,
            arrays[name],
            f"every element of array {name!r} is",
            "what is the same for all samples teaches nothing: was it read, or filled, as it should be?",
        )
        found += [remark] if remark and wanted.batch_axis is not None else []
    for wanted in labels:
        if wanted.classes > 1 and wanted.name in arrays:
            remark = _constant(
                wanted.name,
                arrays[wanted.name],
                f"every label in {wanted.name!r} is",
                "a step learns to say that class always: are the labels those of all samples?",
            )
            found += [remark] if remark else []
    samples = max(seen.shape[0] for seen in arrays.values())
    if samples < batch:
        found.append(
            Remark(
                "data.few",
                "",
                f"{samples} samples, and a step takes {batch}: each step sees some of them more than once",
                "give more samples, or compile for a smaller batch",
            )
        )
    return tuple(found)


def _constant(name: str, seen: Seen, says: str, hint: str) -> Remark | None:
    if seen.low is None or seen.low != seen.high or _size(seen.shape) < LEAST_CONSTANT:
        return None
    return Remark("data.constant", name, f"{says} {seen.low:.4g}", hint)


def _scale(name: str, seen: Seen) -> Remark | None:
    """Pictures that nobody has scaled, and numbers that are far from 1."""
    if seen.low is None or seen.high is None:
        return None
    least, most = BYTE_HIGH
    if seen.is_whole and seen.low >= 0 and least <= seen.high <= most:
        return Remark(
            "data.bytes",
            name,
            f"array {name!r} holds whole numbers from {seen.low:.0f} to {seen.high:.0f}, as "
            "pictures are stored, and the model's first layer reads them unscaled",
            "a model that learned on 0 "
            f"to 1 needs {name} / 255 (and its own mean and deviation); one that learned on bytes does not",
        )
    size = max(abs(seen.low), abs(seen.high))
    if size <= FAR:
        return None
    return Remark(
        "data.scale",
        name,
        f"array {name!r} reaches from {seen.low:.4g} to {seen.high:.4g}, and the model's "
        "first layer reads it unscaled: losses may explode",
        f"scale it as the data were that the model has learned on, such as ({name} - {name}.mean(0)) / {name}.std(0)",
    )

"""The losses of a step for the runtime: which output each reads, against which labels, and how both are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

from compiler.codegen.linking.c_text import c_string
from compiler.errors import InternalError
from compiler.graph import TensorType
from compiler.program.program import BinaryImage
from compiler.step.training import IGNORED, Term
from compiler.values import Value

MAX_LABELS, MAX_TERMS = 8, 16
"""PF_MAX_LABELS and PF_MAX_TERMS of the runtime."""
TypeOf = Callable[[Value], TensorType]


def label_name(image: BinaryImage, value: Value) -> str:
    """Returns the runtime's name for an input that takes labels: its array, where it is not the only one."""
    return "labels" if len(image.label_arrays) == 1 else image.label_arrays[value]


def classes_of(image: BinaryImage, value: Value, type_of: TypeOf) -> int:
    """Labels must be below this in every loss that reads them as classes; 0 if none does."""
    counts = [
        class_layout(type_of(term.output), term)[0] for term in image.terms if term.labels == value and term.classifies
    ]
    return min(counts, default=0)


def ignored_by(image: BinaryImage, value: Value) -> int:
    """The label that counts for nothing; losses that read the same array agree about it."""
    return next((term.ignored for term in image.terms if term.labels == value and term.classifies), IGNORED)


def class_layout(output: TensorType, term: Term) -> tuple[int, int]:
    """Returns how many classes there are, and how many elements lie between two of the same label."""
    axis = len(output.shape) - 1 if term.class_axis is None else term.class_axis
    return (output.shape[axis] if output.shape else 1), prod(output.shape[axis + 1 :])


def term_fields(image: BinaryImage, term: Term, output: str, offset: str, type_of: TypeOf) -> dict[str, str]:
    """Returns one loss as the runtime's `pf_term`; `output` is its tensor there."""
    tensor = type_of(term.output)
    classes, stride = class_layout(tensor, term)
    is_behind = term.labels is not None and term.class_axis is not None and term.batch_axis > term.class_axis
    kind = _RUNTIME_KINDS.get(term.kind, term.kind)
    return {
        "kind": f"PF_{kind.upper()}",
        "name": c_string(kind),
        "output": output,
        "offset": offset,
        "label": _position(image.label_arrays, term.labels),
        "own": _position(image.data_inputs, term.labels),
        "shift": str(int(term.is_shifted)),
        "classes": str(classes),
        "class_stride": str(stride),
        "label_stride": str(stride // tensor.shape[term.batch_axis] if is_behind else stride),
        "ignored": str(term.ignored),
        "weight": float(term.weight).hex(),
        "delta": float(term.delta).hex(),
        "smoothing": float(term.smoothing).hex(),
        "is_sum": str(term.is_sum).lower(),
        "class_weights": _numbers(term.class_weights, classes),
        "pos_weight": _numbers(term.pos_weight, classes),
    }


_RUNTIME_KINDS: Mapping[str, str] = {"next_token": "cross_entropy"}


def _position(among: Iterable[Value], value: Value | None) -> str:
    order = list(among)
    return "-1" if value is None or value not in order else str(order.index(value))


def _numbers(numbers: tuple[float, ...], classes: int) -> str:
    """A number for each class, of which all may be one."""
    each = numbers * classes if len(numbers) == 1 else numbers
    return f"(const double[]){{{', '.join(float(number).hex() for number in each)}}}" if each else "NULL"


def check_losses(image: BinaryImage, type_of: TypeOf, name_of: Callable[[Value], str]) -> None:
    """Element types that the runtime relies on. Raises: InternalError."""
    dtypes = {image.loss: "f32", image.logits: "f32"}
    for term in image.terms:
        dtypes[term.output] = "f32"
        if term.labels is not None:
            dtypes[term.labels] = "i64" if term.classifies else "f32"
    for value, dtype in dtypes.items():
        if type_of(value).dtype != dtype and value not in image.data_inputs:
            raise InternalError(f"is {type_of(value)}, the runtime needs {dtype}", where=name_of(value))
    if type_of(image.loss).size != 1:
        raise InternalError(f"the loss is {type_of(image.loss)}, not one number", where="loss")
    if len(image.terms) > MAX_TERMS or len(image.label_arrays) > MAX_LABELS:
        raise InternalError(f"{len(image.terms)} losses, {len(image.label_arrays)} arrays of labels", where="loss")

"""Gives every model input a static type: what the file fixes, what the user binds, and the batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from compiler.element_types import ELEMENT_TYPES, EMITTED, emitted_of_onnx
from compiler.errors import LimitExceeded, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.prescan import ModelLimits
from compiler.frontend.file.source import SourceInput, type_label
from compiler.frontend.input_axes import Axes, BatchAxis, batch_axes
from compiler.graph import TensorType
from compiler.warnings import CompileWarning


@dataclass(frozen=True, slots=True)
class Bound:
    """The static types of all inputs, in the model's order, and where their samples lie (None: nowhere)."""

    types: Mapping[str, TensorType]
    axes: Axes
    warnings: tuple[CompileWarning, ...]


def bind_inputs(
    inputs: Sequence[SourceInput],
    bound: Mapping[str, tuple[int, ...]],
    batch: int,
    limits: ModelLimits,
    declared: Mapping[str, BatchAxis],
) -> Bound:
    """Binds the inputs to static types; `declared` is where the spec says that samples lie.

    An open axis of samples is `batch`. Another open axis takes its extent from `bound`, or from another input that
    uses the same symbol. Raises: ModelShapeError naming the input and the axis.
    """
    unknown = sorted({*bound, *declared} - {value.name for value in inputs})
    if unknown:
        names = ", ".join(value.name for value in inputs)
        raise ModelShapeError("the model has no such input", where=f"input {unknown[0]!r}", hint=f"it has: {names}")
    axes, warnings = batch_axes(inputs, bound, batch, declared)
    symbols = _symbols(inputs, bound, batch, axes)
    types = {
        value.name: _bind(value, bound.get(value.name), symbols, _Samples(batch, axes[value.name])) for value in inputs
    }
    for name, tensor in types.items():
        if prod(tensor.shape) > limits.tensor_elements:
            raise LimitExceeded(
                f"{tensor} has {tensor.size:,} elements, the limit is {limits.tensor_elements:,}",
                where=f"input {name!r}",
            )
    return Bound(types, axes, warnings)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The number of samples, and the axis of an input along which they lie."""

    batch: int
    axis: int | None


def _symbols(
    inputs: Sequence[SourceInput], bound: Mapping[str, tuple[int, ...]], batch: int, axes: Axes
) -> dict[str, tuple[int, str]]:
    """Symbol -> (extent, the input and axis that says so)."""
    symbols: dict[str, tuple[int, str]] = {}
    for value in inputs:
        shape = bound.get(value.name)
        for axis, extent in enumerate(value.shape or ()):
            if not isinstance(extent, str):
                continue
            fixed = shape[axis] if shape is not None and axis < len(shape) else None
            fixed = batch if fixed is None and axis == axes[value.name] else fixed
            place = f"input {value.name!r} axis {axis}"
            if fixed is None:
                continue
            have, source = symbols.setdefault(extent, (fixed, place))
            if have != fixed:
                raise ModelShapeError(f"{extent!r} is {fixed} here and {have} at {source}", where=place)
    return symbols


def _bind(
    value: SourceInput, bound_shape: tuple[int, ...] | None, symbols: Mapping[str, tuple[int, str]], samples: _Samples
) -> TensorType:
    where = f"input {value.name!r}"
    element = emitted_of_onnx(value.element_type)
    if element is None:
        raise UnsupportedOperator(
            f"has element type {type_label(value.element_type)}; supported: {', '.join(row.label for row in EMITTED)}",
            where=where,
            hint="export the model in float32",
        )
    declared = value.shape if value.shape is not None else bound_shape
    if declared is None:
        raise ModelShapeError(
            "has no shape in the model", where=where, hint=f"bind it: inputs: {{{quoted(value.name)}: [...]}}"
        )
    if bound_shape is not None and len(bound_shape) != len(declared):
        raise ModelShapeError(
            f"has rank {len(declared)}, the bound shape {list(bound_shape)} has {len(bound_shape)}", where=where
        )
    line = _likely(value, declared, symbols, samples)
    shape = tuple(
        _extent(extent, None if bound_shape is None else bound_shape[axis], axis, symbols, samples, where, line)
        for axis, extent in enumerate(declared)
    )
    return TensorType(element.name, shape)


def _extent(
    declared: int | str | None,
    bound_extent: int | None,
    axis: int,
    symbols: Mapping[str, tuple[int, str]],
    samples: _Samples,
    where: str,
    line: str,
) -> int:
    place = f"{where} axis {axis}"
    if isinstance(declared, str) and declared in symbols:
        declared = symbols[declared][0]
    elif not isinstance(declared, int):
        declared = bound_extent if bound_extent is not None else samples.batch if axis == samples.axis else None
    if declared is None:
        raise ModelShapeError("is open and nothing binds it", where=place, hint=f"bind it in the spec, as in {line}")
    if declared < 1:
        raise ModelShapeError(f"is {declared}, must be at least 1", where=place)
    if bound_extent is not None and bound_extent != declared:
        raise ModelShapeError(f"is {declared} in the model and {bound_extent} in the spec", where=place)
    if axis == samples.axis and declared != samples.batch:
        raise ModelShapeError(
            f"is {declared} in the model, the spec's batch is {samples.batch}",
            where=place,
            hint=f"set batch: {declared}, or export with a dynamic batch axis; where samples lie elsewhere, or the "
            "input is the same for all, say so by batch_axis under inputs",
        )
    return declared


_LIKELY = {2: 16000, 4: 224}
"""Extents by rank: a second of sound, a picture's side."""
_LIKELY_ELSE = 128


def _likely(
    value: SourceInput, declared: Sequence[int | str | None], symbols: Mapping[str, tuple[int, str]], samples: _Samples
) -> str:
    """The line of a spec that binds an input, with likely numbers where the model leaves extents open."""
    is_real = value.element_type == ELEMENT_TYPES["f32"].onnx
    likely = _LIKELY.get(len(declared), _LIKELY_ELSE) if is_real else _LIKELY_ELSE
    extents = [
        extent
        if isinstance(extent, int)
        else samples.batch
        if axis == samples.axis
        else symbols[extent][0]
        if isinstance(extent, str) and extent in symbols
        else likely
        for axis, extent in enumerate(declared)
    ]
    shape = f"{{shape: {extents[1:]}, batch_axis: new}}" if value.has_new_axis else f"{extents}"
    return f"inputs: {{{quoted(value.name)}: {shape}}}"


def quoted(name: str) -> str:
    """A name as YAML and JSON take it for a key."""
    return name if re.fullmatch(r"[A-Za-z_][\w.-]*", name) else json.dumps(name)

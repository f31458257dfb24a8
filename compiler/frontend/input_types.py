"""Gives every model input a static type: what the file fixes, what the user binds, and the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from compiler.element_types import EMITTED, emitted_of_onnx
from compiler.errors import LimitExceeded, ModelShapeError, UnsupportedOperator
from compiler.frontend.file.limits import ModelLimits
from compiler.frontend.file.source import SourceInput, type_label
from compiler.graph import TensorType


def bind_inputs(
    inputs: Sequence[SourceInput], bound: Mapping[str, tuple[int, ...]], batch: int, limits: ModelLimits
) -> dict[str, TensorType]:
    """Static types of all inputs, in the model's order.

    An open first axis is `batch`. Another open axis takes its extent from `bound`, or from another input that uses
    the same symbol. Raises: ModelShapeError naming the input and the axis.
    """
    unknown = sorted(set(bound) - {value.name for value in inputs})
    if unknown:
        known = ", ".join(value.name for value in inputs)
        raise ModelShapeError("the model has no such input", where=f"input {unknown[0]!r}", hint=f"it has: {known}")
    symbols = _symbols(inputs, bound, batch)
    types = {value.name: _bind(value, bound.get(value.name), symbols, batch) for value in inputs}
    for name, tensor in types.items():
        if prod(tensor.shape) > limits.tensor_elements:
            raise LimitExceeded(
                f"{tensor} has {tensor.size:,} elements, the limit is {limits.tensor_elements:,}",
                where=f"input {name!r}",
            )
    return types


def _symbols(
    inputs: Sequence[SourceInput], bound: Mapping[str, tuple[int, ...]], batch: int
) -> dict[str, tuple[int, str]]:
    """Symbol -> (extent, the input and axis that says so)."""
    symbols: dict[str, tuple[int, str]] = {}
    for value in inputs:
        given = bound.get(value.name)
        for axis, extent in enumerate(value.shape or ()):
            if not isinstance(extent, str):
                continue
            fixed = given[axis] if given is not None and axis < len(given) else batch if axis == 0 else None
            place = f"input {value.name!r} axis {axis}"
            if fixed is None:
                continue
            have, said = symbols.setdefault(extent, (fixed, place))
            if have != fixed:
                raise ModelShapeError(f"{extent!r} is {fixed} here and {have} at {said}", where=place)
    return symbols


def _bind(
    value: SourceInput, given: tuple[int, ...] | None, symbols: Mapping[str, tuple[int, str]], batch: int
) -> TensorType:
    where = f"input {value.name!r}"
    element = emitted_of_onnx(value.element_type)
    if element is None:
        raise UnsupportedOperator(
            f"has element type {type_label(value.element_type)}; supported: {', '.join(row.label for row in EMITTED)}",
            where=where,
            hint="export the model in float32",
        )
    declared = value.shape if value.shape is not None else given
    if declared is None:
        raise ModelShapeError(
            "has no shape in the model", where=where, hint=f"bind it: inputs: {{{value.name}: [...]}}"
        )
    if given is not None and len(given) != len(declared):
        raise ModelShapeError(f"has rank {len(declared)}, the bound shape {list(given)} has {len(given)}", where=where)
    shape = tuple(
        _extent(extent, None if given is None else given[axis], axis, symbols, batch, where)
        for axis, extent in enumerate(declared)
    )
    return TensorType(element.name, shape)


def _extent(
    declared: int | str | None,
    given: int | None,
    axis: int,
    symbols: Mapping[str, tuple[int, str]],
    batch: int,
    where: str,
) -> int:
    place = f"{where} axis {axis}"
    if isinstance(declared, str) and declared in symbols:
        declared = symbols[declared][0]
    elif not isinstance(declared, int):
        declared = given if given is not None else batch if axis == 0 else None
    if declared is None:
        raise ModelShapeError("is open and nothing binds it", where=place, hint="give the input's shape in the spec")
    if declared < 1:
        raise ModelShapeError(f"is {declared}, must be at least 1", where=place)
    if given is not None and given != declared:
        raise ModelShapeError(f"is {declared} in the model and {given} in the spec", where=place)
    if axis == 0 and declared != batch:
        raise ModelShapeError(
            f"is {declared} in the model, the spec's batch is {batch}",
            where=place,
            hint=f"set batch: {declared}, or export with a dynamic batch axis",
        )
    return declared

"""Inputs to which the spec gives a value for good, such as the rate of samples of a voice model: constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import onnx

from compiler.errors import SpecError
from compiler.frontend.file.source import SourceInput, SourceModel
from compiler.graph import Array
from compiler.naming import near_names

MAX_ELEMENTS = 65536
"""The most elements of an input with a value: it is a setting of the model, no data."""


def bind_values(source: SourceModel, values: Mapping[str, tuple[float, ...]]) -> SourceModel:
    """The model without the inputs that have a value, which are constants of their types.

    Raises: SpecError for a name that no input has, and for a value that does not fit it.
    """
    if not values:
        return source
    inputs = {value.name: value for value in source.inputs}
    constants = {name: _constant(name, numbers, inputs) for name, numbers in values.items()}
    return replace(
        source,
        inputs=tuple(value for value in source.inputs if value.name not in constants),
        initializers={**source.initializers, **constants},
        constants=source.constants | constants.keys(),
    )


def _constant(name: str, numbers: tuple[float, ...], inputs: Mapping[str, SourceInput]) -> Array:
    where = f"spec.inputs.{name}.value"
    if name not in inputs:
        raise SpecError("the model has no such input", where=where, hint=near_names(name, [*inputs]))
    shape = tuple(extent if isinstance(extent, int) else 1 for extent in inputs[name].shape or ())
    if len(numbers) not in (1, prod(shape)) or prod(shape) > MAX_ELEMENTS:
        problem = f"{len(numbers)} numbers for an input of shape {list(shape)}"
        raise SpecError(problem, where=where, hint=f"give one number, or each of at most {MAX_ELEMENTS:,}")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(inputs[name].element_type)
    exact = np.asarray(numbers, np.float64)
    with np.errstate(invalid="ignore"):
        array = exact.astype(dtype)
    if dtype.kind not in "f" and not np.array_equal(array.astype(np.float64), exact):
        raise SpecError(f"{numbers[0]:g} is no {dtype.name}", where=where, hint=f"the input takes {dtype.name}")
    return np.asarray(np.broadcast_to(array.reshape(shape if array.size > 1 else ()), shape))

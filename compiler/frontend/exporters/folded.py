"""What an initializer is to the one parameter that PyTorch's exporter folded it from: a view, or arithmetic.

The names of the values it was folded through tell: they are those of the exported program's operators.
"""

from __future__ import annotations

import re
from enum import Enum

import numpy as np

from compiler.frontend.file.torch_record import TorchRecord
from compiler.graph import Array

_INTERNAL = re.compile(r"val_\d+")
"""A value inside one operator's decomposition."""
_NUMBERED = re.compile(r"_\d+$")
_SWAPS = frozenset({"t", "numpy_t", "transpose", "permute"})
_PASSES = frozenset({"clone", "contiguous", "detach", "alias", "_to_copy", "lift_fresh_copy"})
_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "movedim"})
_REARRANGES = _SWAPS | _PASSES | _VIEWS
_SELECTS = frozenset({"slice", "select", "narrow", "embedding", "index_select"})
_POSITIONS = frozenset({"add", "sub", "arange", "cumsum", "expand", "full", "ones", "zeros", "scalar_tensor_default"})
"""What computes the integer positions at which a table is looked up."""


class Folded(Enum):
    """How much of a parameter survives in what was folded from it."""

    TRANSPOSED = "its transpose"
    MOVED = "its elements, or some of them, each once"
    EXPANDED = "its elements, repeated along axes on which it had extent 1"
    COMPUTED = "the result of arithmetic, or elements several times"


def standing_for(name: str, record: TorchRecord, array: Array) -> Folded:
    """What the folded initializer `name` is to the parameter that it was folded from."""
    through = {name, *record.folded_from[name]} - record.parameters - record.buffers
    operators = {_NUMBERED.sub("", value) for value in through if not _INTERNAL.fullmatch(value)}
    last = _NUMBERED.sub("", name)
    if not operators:
        return Folded.COMPUTED
    if operators <= _REARRANGES:
        swaps = [value for value in through if _NUMBERED.sub("", value) in _SWAPS]
        transposed = array.ndim == 2 and len(swaps) == 1 and not operators & _VIEWS
        return Folded.TRANSPOSED if transposed else Folded.MOVED
    if "expand" in operators and operators <= _REARRANGES | {"expand"}:
        single = once(array)
        return Folded.EXPANDED if single.size > 1 and _slices_differ(single) else Folded.COMPUTED
    looks_up = operators <= _REARRANGES | _SELECTS | (_POSITIONS if last == "embedding" else frozenset())
    return Folded.MOVED if looks_up and _slices_differ(array) else Folded.COMPUTED


def once(array: Array) -> Array:
    """The array with extent 1 on each axis along which all slices are equal."""
    for axis in range(array.ndim):
        first = np.take(array, [0], axis)
        array = first if bool((array == first).all()) else array
    return array


def _slices_differ(array: Array) -> bool:
    """True if no two slices along any axis are equal, so that no element can be there twice."""
    for axis in range(array.ndim):
        slices = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        if len({row.tobytes() for row in slices}) != len(slices):
            return False
    return True

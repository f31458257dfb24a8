"""Relations of an initializer to the one parameter that PyTorch's exporter folded it from: a view, or arithmetic.

The names of the values it was folded through tell: they are those of the exported program's operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
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
_SELECTS = frozenset({"slice", "select", "narrow", "embedding", "index_select", "index", "gather"})
_POSITIONS = frozenset({"add", "sub", "arange", "cumsum", "expand", "full", "ones", "zeros", "scalar_tensor_default"})
"""Operators that compute the integer positions at which a table is looked up."""


_DISTINCT = 0.99
"""Share of different elements in a table of random numbers; some are equal by chance."""


class Folded(Enum):
    """The kinds of what was folded from a parameter, by how much of the parameter survives in it."""

    TRANSPOSED = "its transpose"
    MOVED = "its elements, or some of them, each once"
    EXPANDED = "its elements, repeated along axes on which it had extent 1"
    REPEATED = "some of its rows, some of them several times"
    COMPUTED = "the result of arithmetic, or elements several times"


def standing_for(name: str, record: TorchRecord, array: Array) -> Folded:
    """Returns the relation of the folded initializer `name` to the parameter that it was folded from."""
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
    if not looks_up:
        return Folded.COMPUTED
    return Folded.MOVED if _slices_differ(array) else Folded.REPEATED if distinct_rows(array) else Folded.COMPUTED


@dataclass(frozen=True, slots=True)
class Rows:
    """An array as a lookup: `array.moveaxis(axis, -1) == table[positions]`."""

    axis: int
    table: Array
    positions: Array


def distinct_rows(array: Array) -> Rows | None:
    """The rows that an array repeats, along the axis where they are fewest; None if that may be chance.

    Rows of a table in use are told apart by any of their elements: a table in which elements repeat is no evidence.
    """
    best: Rows | None = None
    for axis in range(array.ndim):
        moved = np.moveaxis(array, axis, -1)
        rows, positions = np.unique(moved.reshape(-1, array.shape[axis]), axis=0, return_inverse=True)
        if best is None or rows.size < best.table.size:
            best = Rows(axis, rows, positions.reshape(moved.shape[:-1]))
    if best is None or best.table.size < 2 or np.unique(best.table).size < _DISTINCT * best.table.size:
        return None
    return best


def operators_behind(name: str, record: TorchRecord) -> tuple[list[str], bool]:
    """The program's operators that made a folded initializer, its own last; False if constants had a part in it.

    Names of casts and copies are left out, and so is what lies inside an operator's decomposition.
    """
    last_operator = _NUMBERED.sub("", name)
    others = {*record.folded_from.get(name, ())} - {name} - record.parameters
    plain = not any(_INTERNAL.fullmatch(value) or value in record.buffers for value in others)
    operators = sorted(_NUMBERED.sub("", value) for value in others - record.buffers if not _INTERNAL.fullmatch(value))
    return [*(operator for operator in operators if operator not in _PASSES), last_operator], plain


def once(array: Array) -> Array:
    """The array with extent 1 on each axis along which all slices are equal."""
    for axis in range(array.ndim):
        first = np.take(array, [0], axis)
        array = first if bool((array == first).all()) else array
    return array


def _slices_differ(array: Array) -> bool:
    """Whether no two slices along any axis are equal, so that no element can be there twice."""
    for axis in range(array.ndim):
        slices = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        if len({row.tobytes() for row in slices}) != len(slices):
            return False
    return True

"""Kernels that pick, scatter, weigh and scan along one axis of a tensor seen as [outer, rows, inner].

Operands that hold positions (`index`) are i64 or i32; negative ones count from the end. `stored`: see
`compiler.kernels.places`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compiler.element_types import DType
from compiler.kernels.places import LATER, Stored

IndexDType = Literal["i64", "i32"]


@dataclass(frozen=True, slots=True)
class ElementsSpec:
    """Elements picked, or put, at positions of their own: `y[o, j, i] = x[o, index[o, j, i], i]`.

    `per_outer`, `per_inner`: False means that the index has extent 1 there (the same for all).
    gather: x [outer, rows, inner], index -> y [outer, count, inner].
    add:    index, u [outer, count, inner] -> y [outer, rows, inner], sums over what goes to one place, in order of j.
    max, mul: x, index, u -> y: x combined with all that goes to its place.
    last:   index -> y [outer or 1, rows, inner or 1] i64: 1 + the last j that goes there, 0 where none does.
    """

    kind: Literal["gather", "add", "max", "mul", "last"]
    outer: int
    rows: int
    inner: int
    count: int
    dtype: DType = field(kw_only=True)
    index_dtype: IndexDType = "i64"
    per_outer: bool = True
    per_inner: bool = True
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class ResampleSpec:
    """Rows mixed by tables of weights (a sparse matrix along one axis); tables are [taps, count].

    forward:  x [outer, rows, inner], index, weight -> y[o, j, i] = sum_t weight[t, j] x[o, index[t, j], i].
    gradient: d_y [outer, count, inner], index, weight -> d_x[o, r, i] = sum over index[t, j] = r of weight[t, j]
              d_y[o, j, i].
    """

    kind: Literal["forward", "gradient"]
    outer: int
    rows: int
    inner: int
    count: int
    taps: int
    dtype: DType = field(kw_only=True)
    index_dtype: IndexDType = "i32"
    stored: Stored = field(default=(), kw_only=True, metadata=LATER)


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """Running values along the rows of [outer, rows, inner], from the first or (`reverse`) from the last.

    sum:    x -> y[o, j, i] = sum of x up to j; without x[o, j, i] itself if `exclusive`.
    linear: a, b -> y[o, j, i] = a[o, j, i] y[o, j - 1, i] + b[o, j, i], beginning from 0.
    """

    kind: Literal["sum", "linear"]
    outer: int
    rows: int
    inner: int
    dtype: DType = field(kw_only=True)
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class SelectSpec:
    """x [outer, rows, inner] -> y [outer, count, inner] i64: where the `count` best rows are, in order.

    The best are the largest, or the smallest. Of equal ones the first comes first; NaN is larger than any number, as in
    PyTorch.
    """

    outer: int
    rows: int
    inner: int
    count: int
    dtype: DType = field(kw_only=True)
    largest: bool = True


MovementSpec = ElementsSpec | ResampleSpec | ScanSpec | SelectSpec

"""Random accesses over small iteration spaces, and what they read, point by point in NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine

OUTSIDE = -1
"""Stands for the fill of a guarded access where a walk is compared."""

Walk = NDArray[np.int64]


def extents(rank: int = 4, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Extents of an iteration space; ones are frequent, as in models."""
    return st.lists(st.integers(1, most) | st.just(1), max_size=rank).map(tuple)


@st.composite
def accesses(draw: st.DrawFn, over: tuple[int, ...], *, guarded: bool = False) -> Access:
    """An access over a space: any affine indices, in bounds by construction unless it is guarded."""
    shape: list[int] = []
    index: list[Affine] = []
    axes = st.lists(st.integers(0, len(over) - 1), unique=True, max_size=2) if over else st.builds(list[int])
    for _ in range(draw(st.integers(0, 3))):
        terms = tuple((axis, draw(st.sampled_from((1, 1, 1, 2, 3, -1)))) for axis in sorted(draw(axes)))
        low = sum(min(0, coefficient * (over[axis] - 1)) for axis, coefficient in terms)
        high = sum(max(0, coefficient * (over[axis] - 1)) for axis, coefficient in terms)
        offset = draw(st.integers(0, 2) | st.just(0)) - low
        extent = offset + high + 1 + draw(st.integers(0, 2) | st.just(0))
        if guarded:
            offset, extent = offset + draw(st.integers(-4, 4)), max(1, extent + draw(st.integers(-4, 2)))
        shape.append(extent)
        index.append(Affine(terms, offset))
    return Access(TensorType("f32", tuple(shape)), tuple(index), 0.5 if guarded else None)


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two ways to group the same points: consecutive factors merged at will, with ones in between."""
    factors = draw(st.lists(st.integers(2, 4), max_size=4))

    def grouped() -> tuple[int, ...]:
        result: list[int] = []
        for factor in factors:
            result += [1] * draw(st.integers(0, 1))
            joins: bool = draw(st.booleans())
            if result and joins:
                result[-1] *= factor
            else:
                result.append(factor)
        return (*result, *[1] * draw(st.integers(0, 1)))

    return grouped(), grouped()


def points(over: Sequence[int]) -> Walk:
    """Every point of a space in row-major order: [points, axes]."""
    return np.indices(tuple(over)).reshape(len(over), math.prod(over)).T.astype(np.int64)


def walk_of(access: Access, over: Sequence[int]) -> Walk:
    """The flat element that the access reads at each point in row-major order; OUTSIDE where it reads its fill."""
    at = points(over)
    flat = np.zeros(len(at), np.int64)
    inside = np.ones(len(at), bool)
    for extent, affine in zip(access.type.shape, access.index, strict=True):
        index = np.full(len(at), affine.offset, np.int64)
        for axis, coefficient in affine.terms:
            index += coefficient * at[:, axis]
        inside &= (index >= 0) & (index < extent)
        flat = flat * extent + index
    assert access.fill is not None or inside.all(), "an access without a fill is in bounds"
    return np.where(inside, flat, OUTSIDE)

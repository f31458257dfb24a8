"""Algebra of accesses: an access as one linear form over the iteration axes, and back.

Every operand is contiguous, so an access is fully described by the flat element it reads:
`offset + sum(stride[i] * axis[i])`. Two accesses with equal linear forms read the same element whatever shape each
gave the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.graph import TensorType
from compiler.kernels.access import Access, Affine


@dataclass(frozen=True, slots=True)
class Linear:
    """`offset + sum(strides[i] * axis_i)` in elements."""

    strides: tuple[int, ...]
    offset: int = 0


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours along each axis of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def linear_form(access: Access, rank: int) -> Linear | None:
    """The flat element an access reads, over `rank` iteration axes; None for a guarded access."""
    if access.fill is not None:
        return None
    strides, offset = [0] * rank, 0
    for affine, step in zip(access.index, row_major(access.type.shape), strict=True):
        offset += affine.offset * step
        for axis, coefficient in affine.terms:
            strides[axis] += coefficient * step
    return Linear(tuple(strides), offset)


def is_identity(access: Access, extents: tuple[int, ...]) -> bool:
    """Whether the access walks the whole tensor in order as the axes walk `extents`."""
    form = linear_form(access, len(extents))
    if form is None or form.offset:
        return False
    size = 1
    for extent in extents:
        size *= extent
    pairs = zip(form.strides, row_major(extents), extents, strict=True)
    return size == access.type.size and all(extent == 1 or have == want for have, want, extent in pairs)


def is_streaming(access: Access, extents: tuple[int, ...]) -> bool:
    """Whether neighbours along the innermost moving axis are neighbours in memory, or the same element."""
    moving = [axis for axis, extent in enumerate(extents) if extent > 1]
    if not moving:
        return True
    strides = [0] * len(extents)
    for affine, step in zip(access.index, row_major(access.type.shape), strict=True):
        for axis, coefficient in affine.terms:
            strides[axis] += coefficient * step
    return strides[moving[-1]] in (0, 1)


def unflatten(form: Linear, extents: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Affine, ...] | None:
    """Per-dimension indices into `shape` that reach the flat element of `form`; None if an axis crosses dimensions.

    A mixed-radix number has one digit string, so digits that stay in range are right.
    """
    steps = row_major(shape)
    terms: list[list[tuple[int, int]]] = [[] for _ in shape]
    offsets, rest = [0] * len(shape), form.offset
    for dimension, step in enumerate(steps):
        offsets[dimension], rest = divmod(rest, step)
    if rest:
        return None  # a scalar has no dimension to take it
    for axis, (stride, extent) in enumerate(zip(form.strides, extents, strict=True)):
        if stride == 0 or extent == 1:
            continue
        fitting = [d for d, step in enumerate(steps) if shape[d] > 1 and stride > 0 and stride % step == 0]
        if not fitting:
            return None
        terms[fitting[0]].append((axis, stride // steps[fitting[0]]))
    for dimension, size in enumerate(shape):
        reach = sum(coefficient * (extents[axis] - 1) for axis, coefficient in terms[dimension])
        if offsets[dimension] + reach >= size:
            return None
    return tuple(Affine(tuple(pairs), offset) for pairs, offset in zip(terms, offsets, strict=True))


def collapse(form: Linear, extents: tuple[int, ...], groups: tuple[int, ...]) -> Linear | None:
    """Returns the same walk over fewer (or regrouped) axes of extents `groups`; None if a group is not evenly strided.

    Both iteration spaces enumerate the same points in row-major order.
    """
    finest = refine(extents, groups)
    if finest is None:
        return None
    fine = _split(form.strides, extents, finest)
    strides, position = [], 0
    for extent in groups:
        size = 1
        members: list[int] = []
        while size < extent:
            members.append(position)
            size *= finest[position]
            position += 1
        stride = _merged(fine, finest, members)
        if stride is None:
            return None
        strides.append(stride)
    return Linear(tuple(strides), form.offset)


def refine(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    """The coarsest extents that split both spaces' axes; None if their boundaries interleave."""
    left, right = [e for e in first if e > 1], [e for e in second if e > 1]
    result: list[int] = []
    a = b = 1
    while left or right or a != b or a != 1:
        if a == 1:
            if not left:
                return None
            a = left.pop()
        if b == 1:
            if not right:
                return None
            b = right.pop()
        small, large = min(a, b), max(a, b)
        if large % small:
            return None
        result.append(small)
        a, b = a // small, b // small
    return tuple(reversed(result))


def _split(strides: tuple[int, ...], extents: tuple[int, ...], finest: tuple[int, ...]) -> list[int]:
    """Strides along the finest axes."""
    result: list[int] = []
    position = len(finest) - 1
    for stride, extent in zip(reversed(strides), reversed(extents), strict=True):
        size = 1
        while size < extent:
            result.append(stride * size)
            size *= finest[position]
            position -= 1
    return list(reversed(result))


def _merged(strides: list[int], extents: tuple[int, ...], members: list[int]) -> int | None:
    """The one stride of consecutive axes walked as one."""
    if not members:
        return 0
    stride, size = strides[members[-1]], extents[members[-1]]
    for member in reversed(members[:-1]):
        if strides[member] != stride * size:
            return None
        size *= extents[member]
    return stride


def flat_access(dtype_of: TensorType, form: Linear) -> Access:
    """A flat view of a tensor read by a linear form."""
    terms = tuple((axis, stride) for axis, stride in enumerate(form.strides) if stride)
    return Access(TensorType(dtype_of.dtype, (dtype_of.size,)), (Affine(terms, form.offset),))


def regrouped(access: Access, extents: tuple[int, ...], groups: tuple[int, ...]) -> Access | None:
    """The access over axes of extents `groups` instead of `extents`; None if it has no such form."""
    if extents == groups:
        return access
    form = linear_form(access, len(extents))
    moved = collapse(form, extents, groups) if form is not None else None
    return None if moved is None else flat_access(access.type, moved)

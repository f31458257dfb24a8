"""Iteration spaces as plain data: flat accesses, guards, regions and merged axes. Knows nothing of TVM."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.element_types import ELEMENT_TYPES, DType, higher
from compiler.graph import TensorType
from compiler.kernels.access import Access
from compiler.kernels.expressions import Binary, Expr, Index, Ref, Select, Unary


@dataclass(frozen=True, slots=True)
class Guard:
    """`0 <= offset + sum(coefficient * axis) < extent`: one dimension's bound that a point may break."""

    terms: tuple[tuple[int, int], ...]
    offset: int
    extent: int


@dataclass(frozen=True, slots=True)
class FlatAccess:
    """An access as one affine index into the flat buffer, with the bounds still to be checked.

    `never`: every point of the iteration is outside the tensor, so only `fill` is read.
    """

    type: TensorType
    offset: int
    strides: tuple[int, ...]
    guards: tuple[Guard, ...]
    fill: float | None
    never: bool = False


def flatten_access(access: Access, extents: Sequence[int]) -> FlatAccess:
    """`access` over an iteration space, keeping the guards that some point can break."""
    strides, offset, stride = [0] * len(extents), 0, access.type.size
    guards: list[Guard] = []
    for extent, dimension in zip(access.type.shape, access.index, strict=True):
        stride //= max(extent, 1)
        offset += stride * dimension.offset
        for axis, coefficient in dimension.terms:
            strides[axis] += stride * coefficient
        if access.fill is not None:
            guards.append(Guard(dimension.terms, dimension.offset, extent))
    return settle(FlatAccess(access.type, offset, tuple(strides), tuple(guards), access.fill), extents)


def settle(access: FlatAccess, extents: Sequence[int]) -> FlatAccess:
    """Drops guards that hold at every point; notes when one never holds."""
    open_guards: list[Guard] = []
    for guard in access.guards:
        low = guard.offset + sum(min(0, c * (extents[axis] - 1)) for axis, c in guard.terms)
        high = guard.offset + sum(max(0, c * (extents[axis] - 1)) for axis, c in guard.terms)
        if high < 0 or low >= guard.extent:
            return replace(access, guards=(), never=True)
        if low < 0 or high >= guard.extent:
            open_guards.append(guard)
    return replace(access, guards=tuple(open_guards))


@dataclass(frozen=True, slots=True)
class Space:
    """Iteration axes with the accesses over them.

    `origins[axis]` is the axis of the spec that a (never merged) axis stands for, or -1; `starts[axis]` is where it
    begins there. Needed only for `Index`.
    """

    extents: tuple[int, ...]
    accesses: tuple[FlatAccess, ...]
    origins: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Points in the space."""
        count = 1
        for extent in self.extents:
            count *= extent
        return count


def space_of(extents: Sequence[int], accesses: Sequence[Access]) -> Space:
    """The space of a spec, axis for axis."""
    flat = tuple(flatten_access(access, extents) for access in accesses)
    return Space(tuple(extents), flat, tuple(range(len(extents))), (0,) * len(extents))


def regions(space: Space, most: int) -> Iterator[Space]:
    """Splits axes at the points where a one-axis guard changes, so that in each region it always or never holds.

    Innermost axes are split first; an axis that would make more than `most` regions keeps its guards.
    """
    cuts: list[list[int]] = [[0, extent] for extent in space.extents]
    count = 1
    for axis in reversed(range(len(space.extents))):
        bounds = sorted({0, space.extents[axis], *_cuts(space, axis)})
        if count * (len(bounds) - 1) <= most:
            cuts[axis] = bounds
            count *= len(bounds) - 1
    pieces = [list(itertools.pairwise(points)) for points in cuts]
    for choice in itertools.product(*pieces):
        yield subspace(space, choice)


def _cuts(space: Space, axis: int) -> Iterator[int]:
    for guard in (guard for access in space.accesses for guard in access.guards):
        if len(guard.terms) != 1 or guard.terms[0][0] != axis:
            continue
        coefficient = guard.terms[0][1]
        for bound in (-guard.offset, guard.extent - guard.offset):
            # The first index at which `coefficient * i >= bound` becomes (rising) or is no longer (falling) true.
            cut = -(-bound // coefficient) if coefficient > 0 else bound // coefficient + 1
            if 0 < cut < space.extents[axis]:
                yield cut


def subspace(space: Space, choice: Sequence[tuple[int, int]]) -> Space:
    """The points with `start <= axis < stop`, for a (start, stop) per axis."""
    extents = tuple(stop - start for start, stop in choice)
    starts = tuple(start for start, _ in choice)
    accesses = []
    for access in space.accesses:
        moved = access.offset + sum(s * stride for s, stride in zip(starts, access.strides, strict=True))
        guards = tuple(
            replace(guard, offset=guard.offset + sum(c * starts[axis] for axis, c in guard.terms))
            for guard in access.guards
        )
        accesses.append(settle(replace(access, offset=moved, guards=guards), extents))
    new_starts = tuple(a + b for a, b in zip(space.starts, starts, strict=True))
    return replace(space, extents=extents, accesses=tuple(accesses), starts=new_starts)


def reorder(space: Space, order: Sequence[int]) -> Space:
    """Returns the same space with axes permuted: new axis i is old axis `order[i]`; axes left out must have extent
    1.
    """
    place = {old: new for new, old in enumerate(order)}
    accesses = []
    for access in space.accesses:
        guards = tuple(
            replace(guard, terms=tuple((place[axis], c) for axis, c in guard.terms if axis in place))
            for guard in access.guards
        )
        accesses.append(replace(access, strides=tuple(access.strides[axis] for axis in order), guards=guards))
    return Space(
        tuple(space.extents[axis] for axis in order),
        tuple(accesses),
        tuple(space.origins[axis] for axis in order),
        tuple(space.starts[axis] for axis in order),
    )


def merge(space: Space, pinned: frozenset[int]) -> Space:
    """Fuses neighbouring axes through which every access runs evenly; `pinned` origins and guarded axes stay apart."""
    axis = len(space.extents) - 1
    while axis > 0:
        if _mergeable(space, axis - 1, pinned):
            space = _fuse(space, axis - 1)
        axis -= 1
    return space


def _mergeable(space: Space, axis: int, pinned: frozenset[int]) -> bool:
    if pinned & {space.origins[axis], space.origins[axis + 1]}:
        return False
    extent = space.extents[axis + 1]
    for access in space.accesses:
        if any(a in (axis, axis + 1) for guard in access.guards for a, _ in guard.terms):
            return False
        if not access.never and access.strides[axis] != access.strides[axis + 1] * extent:
            return False
    return True


def _fuse(space: Space, axis: int) -> Space:
    def drop(values: tuple[int, ...], joined: int) -> tuple[int, ...]:
        return (*values[:axis], joined, *values[axis + 2 :])

    def shift(guard: Guard) -> Guard:
        return replace(guard, terms=tuple((a - 1 if a > axis else a, c) for a, c in guard.terms))

    accesses = tuple(
        replace(a, strides=drop(a.strides, a.strides[axis + 1]), guards=tuple(map(shift, a.guards)))
        for a in space.accesses
    )
    extents = drop(space.extents, space.extents[axis] * space.extents[axis + 1])
    return Space(extents, accesses, drop(space.origins, -1), drop(space.starts, 0))


def split(space: Space, axis: int, inner: int, place: int) -> Space:
    """Splits an axis (free of guards) into blocks of `inner`, which must divide it; the inner part goes to `place`.

    The outer part stays where it is; `place` counts axes after the split.
    """

    def put(values: tuple[int, ...], outer_value: int, inner_value: int) -> tuple[int, ...]:
        listed = [*values[:axis], outer_value, *values[axis + 1 :]]
        listed.insert(place, inner_value)
        return tuple(listed)

    accesses = tuple(
        replace(
            access,
            strides=put(access.strides, access.strides[axis] * inner, access.strides[axis]),
            guards=tuple(_moved_guard(guard, place) for guard in access.guards),
        )
        for access in space.accesses
    )
    extents = put(space.extents, space.extents[axis] // inner, inner)
    return Space(extents, accesses, put(space.origins, -1, -1), put(space.starts, 0, 0))


def _moved_guard(guard: Guard, place: int) -> Guard:
    return replace(guard, terms=tuple((a + 1 if a >= place else a, c) for a, c in guard.terms))


def indexed_axes(*expressions: Expr) -> frozenset[int]:
    """The axes whose `Index` any of the expressions reads."""
    axes: set[int] = set()
    visited: set[int] = set()
    todo: list[Expr] = list(expressions)
    while todo:
        expr = todo.pop()
        if id(expr) in visited:
            continue
        visited.add(id(expr))
        match expr:
            case Index(axis):
                axes.add(axis)
            case Unary(_, x):
                todo.append(x)
            case Binary(_, x, y):
                todo.extend((x, y))
            case Select(cond, then, other):
                todo.extend((cond, then, other))
    return frozenset(axes)


def chunks(extent: int, lanes: int) -> list[tuple[int, int]]:
    """Splits what is left of `extent` after full vectors into (start, width) with widths halving: 10 of 8 ->
    [(8, 2)].
    """
    start = extent - extent % lanes
    pieces: list[tuple[int, int]] = []
    width = lanes // 2
    while start < extent:
        if start + width <= extent:
            pieces.append((start, width))
            start += width
        else:
            width //= 2
    return pieces


def expression_dtype(expr: Expr, refs: Sequence[DType]) -> DType | None:
    """The type of an expression over operands of the given types; None for a bare constant."""
    match expr:
        case Ref(operand):
            element = ELEMENT_TYPES[refs[operand]]
            return element.sums_in if element.is_half else element.name
        case Index():
            return "i64"
        case Unary(op, x):
            fixed: DType | None = _RESULTS.get(op)
            return fixed or expression_dtype(x, refs)
        case Binary(op, x, y):
            return _RESULTS.get(op) or _higher(expression_dtype(x, refs), expression_dtype(y, refs))
        case Select(_, then, other):
            return _higher(expression_dtype(then, refs), expression_dtype(other, refs))
    return None


_RESULTS: dict[str, DType] = {
    **{f"to_{row.name}": row.name for row in ELEMENT_TYPES.values()},
    **dict.fromkeys(("not", "is_nan", "lt", "le", "eq", "and", "or"), "bool"),
    **dict.fromkeys(("philox", "philox0", "philox1"), "i64"),
}


def _higher(x: DType | None, y: DType | None) -> DType | None:
    return x or y if x is None or y is None else higher(x, y)

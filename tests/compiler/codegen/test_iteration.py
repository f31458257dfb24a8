"""Iteration spaces as data: whatever is done to one, each access reads at each point what its spec says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from compiler.codegen.tir.iteration import (
    FlatAccess,
    Space,
    chunks,
    flatten_access,
    merge,
    regions,
    reorder,
    space_of,
    split,
)
from compiler.kernels.access import Access
from tests.compiler.kernels.walks import OUTSIDE, Walk, accesses, extents, points, walk_of


def walk_of_flat(access: FlatAccess, over: Sequence[int]) -> Walk:
    """As `walk_of`, for a flat access."""
    at = points(over)
    if access.never:
        return np.full(len(at), OUTSIDE)
    inside = np.ones(len(at), bool)
    for guard in access.guards:
        index = np.full(len(at), guard.offset)
        for axis, coefficient in guard.terms:
            index += coefficient * at[:, axis]
        inside &= (index >= 0) & (index < guard.extent)
    flat = at @ np.array(access.strides, np.int64).reshape(len(over)) + access.offset
    return np.where(inside, flat, OUTSIDE)


@st.composite
def spaces(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Access, ...]]:
    """Extents and accesses over them, some of them guarded."""
    over = draw(extents())
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    return over, tuple(draw(accesses(over, guarded=guarded)) for guarded in kinds)


def walks_of(space: Space) -> list[Walk]:
    return [walk_of_flat(access, space.extents) for access in space.accesses]


def assert_same_walks(space: Space, wanted: Sequence[Walk]) -> None:
    for got, want in zip(walks_of(space), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@given(spaces())
def test_a_flat_access_reads_the_same_elements_and_guards_no_more_than_it_must(
    drawn: tuple[tuple[int, ...], tuple[Access, ...]],
) -> None:
    over, given_accesses = drawn
    for access in given_accesses:
        flat = flatten_access(access, over)
        walk = walk_of(access, over)
        np.testing.assert_array_equal(walk_of_flat(flat, over), walk)
        if (walk != OUTSIDE).all():
            assert not flat.guards
            assert not flat.never
        if len(access.index) == 1:
            assert flat.never == (walk == OUTSIDE).all() or flat.guards


@given(spaces(), st.sampled_from((1, 4, 64)))
def test_regions_hold_every_point_once_and_read_there_the_same(
    drawn: tuple[tuple[int, ...], tuple[Access, ...]], most: int
) -> None:
    over, given_accesses = drawn
    space = space_of(over, given_accesses)
    got = [np.full(over, OUTSIDE - 1) for _ in given_accesses]
    pieces = list(regions(space, most))
    assert len(pieces) <= most
    for piece in pieces:
        place = tuple(slice(a, a + n) for a, n in zip(piece.starts, piece.extents, strict=True))
        for array, walk in zip(got, walks_of(piece), strict=True):
            assert (array[place] == OUTSIDE - 1).all(), "a point is in two regions"
            array[place] = walk.reshape(piece.extents)
    for array, access in zip(got, given_accesses, strict=True):
        np.testing.assert_array_equal(array.reshape(-1), walk_of(access, over))


@given(spaces())
def test_enough_regions_leave_no_guard_of_one_axis(drawn: tuple[tuple[int, ...], tuple[Access, ...]]) -> None:
    over, given_accesses = drawn
    for piece in regions(space_of(over, given_accesses), 10_000):
        assert not [guard for access in piece.accesses for guard in access.guards if len(guard.terms) == 1]


@given(spaces(), st.randoms(use_true_random=False), st.booleans())
def test_reordered_axes_walk_the_same_points_in_the_new_order(
    drawn: tuple[tuple[int, ...], tuple[Access, ...]], random: object, drops_ones: bool
) -> None:
    over, given_accesses = drawn
    order = [axis for axis in range(len(over)) if over[axis] > 1 or not drops_ones]
    random.shuffle(order)  # type: ignore[attr-defined]
    ones = [axis for axis in range(len(over)) if axis not in order]
    wanted = [walk_of(access, over).reshape(over).transpose([*order, *ones]).reshape(-1) for access in given_accesses]
    assert_same_walks(reorder(space_of(over, given_accesses), order), wanted)


@given(spaces(), st.sets(st.integers(0, 3)))
def test_merged_axes_walk_the_same_points_in_the_same_order(
    drawn: tuple[tuple[int, ...], tuple[Access, ...]], pinned: set[int]
) -> None:
    over, given_accesses = drawn
    merged = merge(space_of(over, given_accesses), frozenset(pinned))
    assert_same_walks(merged, [walk_of(access, over) for access in given_accesses])
    assert merged.size == math.prod(over)
    assert set(merged.origins) >= pinned & set(range(len(over))), "a pinned axis stays one"


@given(spaces())
def test_what_is_walked_evenly_merges_into_one_axis(drawn: tuple[tuple[int, ...], tuple[Access, ...]]) -> None:
    over, given_accesses = drawn
    merged = merge(space_of(over, given_accesses), frozenset())
    for axis in range(len(merged.extents) - 1):
        extent = merged.extents[axis + 1]
        walked = [access for access in merged.accesses if not access.never]
        uneven = [access for access in walked if access.strides[axis] != access.strides[axis + 1] * extent]
        guarded = [g for a in merged.accesses for g in a.guards if {axis, axis + 1} & {moved for moved, _ in g.terms}]
        assert uneven or guarded


@given(st.data())
def test_a_split_axis_walks_block_by_block(data: st.DataObject) -> None:
    over, given_accesses = data.draw(spaces().filter(lambda drawn: drawn[0]))
    space = space_of(over, given_accesses)
    held = {axis for access in space.accesses for guard in access.guards for axis, _ in guard.terms}
    free = sorted(set(range(len(over))) - held)
    assume(free)
    axis = data.draw(st.sampled_from(free))
    inner = data.draw(st.sampled_from([size for size in range(1, over[axis] + 1) if over[axis] % size == 0]))
    place = data.draw(st.integers(axis + 1, len(over)))
    apart = (*over[:axis], over[axis] // inner, inner, *over[axis + 1 :])
    order = [*range(axis + 1), *range(axis + 2, len(apart))]
    order.insert(place, axis + 1)
    wanted = [walk_of(access, over).reshape(apart).transpose(order).reshape(-1) for access in given_accesses]
    assert_same_walks(split(space, axis, inner, place), wanted)


@given(st.integers(0, 200), st.sampled_from((1, 2, 4, 8, 16)))
def test_chunks_cover_what_is_left_by_halving_widths(extent: int, lanes: int) -> None:
    found = chunks(extent, lanes)
    covered = list(itertools.chain.from_iterable(range(start, start + width) for start, width in found))
    assert covered == list(range(extent - extent % lanes, extent))
    widths = [width for _, width in found]
    assert widths == sorted(set(widths), reverse=True)
    assert all(lanes % width == 0 for width in widths)

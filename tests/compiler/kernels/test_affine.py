"""The algebra of accesses against walks that are enumerated point by point."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from compiler.graph import TensorType
from compiler.kernels.access import Access
from compiler.kernels.affine import (
    Linear,
    collapse,
    is_identity,
    is_streaming,
    linear_form,
    refine,
    regrouped,
    row_major,
    unflatten,
)
from tests.compiler.kernels.walks import Walk, accesses, extents, points, regroupings, walk_of


def walk_of_form(form: Linear, over: tuple[int, ...]) -> Walk:
    return points(over) @ np.array(form.strides, np.int64) + form.offset


@st.composite
def access_and_space(draw: st.DrawFn, guarded: bool = False) -> tuple[Access, tuple[int, ...]]:
    over = draw(extents())
    return draw(accesses(over, guarded=guarded)), over


@given(access_and_space())
def test_the_linear_form_reads_the_same_elements(drawn: tuple[Access, tuple[int, ...]]) -> None:
    access, over = drawn
    form = linear_form(access, len(over))
    assert form is not None
    np.testing.assert_array_equal(walk_of_form(form, over), walk_of(access, over))


@given(access_and_space(guarded=True))
def test_a_guarded_access_has_no_linear_form(drawn: tuple[Access, tuple[int, ...]]) -> None:
    access, over = drawn
    assert linear_form(access, len(over)) is None
    assert not is_identity(access, over)


@given(access_and_space())
def test_an_identity_is_what_walks_the_whole_tensor_in_order(drawn: tuple[Access, tuple[int, ...]]) -> None:
    access, over = drawn
    wanted = walk_of(access, over).tolist() == list(range(access.type.size))
    assert is_identity(access, over) == wanted


@given(extents(), st.data())
def test_identities_of_other_shapes_are_found(over: tuple[int, ...], data: st.DataObject) -> None:
    """A flat view of the whole, and the tensor as the axes walk it."""
    form = Linear(row_major(over))
    for shape in (over, (math.prod(over),)):
        index = unflatten(form, over, shape)
        assert index is not None
        access = Access(TensorType("f32", shape), index)
        assert is_identity(access, over)
        assert is_streaming(access, over)


@given(access_and_space())
def test_streaming_is_a_step_of_nought_or_one_on_the_innermost_moving_axis(
    drawn: tuple[Access, tuple[int, ...]],
) -> None:
    access, over = drawn
    moving = [axis for axis, extent in enumerate(over) if extent > 1]
    wanted = True
    if moving:
        steps = np.diff(walk_of(access, over).reshape(over), axis=moving[-1])
        wanted = bool(np.isin(steps, (0, 1)).all())
    assert is_streaming(access, over) == wanted


@given(access_and_space(), extents(rank=3))
def test_unflattened_indices_reach_the_same_elements_in_bounds(
    drawn: tuple[Access, tuple[int, ...]], other: tuple[int, ...]
) -> None:
    """Into the tensor's own shape, and into any other that holds the elements."""
    access, over = drawn
    form = linear_form(access, len(over))
    assert form is not None
    for shape in (access.type.shape, other):
        index = unflatten(form, over, shape)
        if index is not None:
            # `walk_of` asserts that it is in bounds.
            again = walk_of(Access(TensorType("f32", shape), index), over)
            np.testing.assert_array_equal(again, walk_of(access, over))


@given(regroupings(), st.data())
def test_a_collapsed_form_walks_the_same_elements_in_the_same_order(
    ways: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    over, groups = ways
    strides = data.draw(st.lists(st.integers(-3, 12), min_size=len(over), max_size=len(over)))
    form = Linear(tuple(strides), data.draw(st.integers(0, 3)))
    for given_form in (form, Linear(row_major(over), form.offset)):
        moved = collapse(given_form, over, groups)
        if moved is not None:
            np.testing.assert_array_equal(walk_of_form(moved, groups), walk_of_form(given_form, over))
    assert collapse(Linear(row_major(over)), over, groups) is not None, "what runs evenly through all runs so in groups"


@given(regroupings(), st.data())
def test_collapse_gives_up_only_where_a_group_is_uneven(
    ways: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    over, groups = ways
    strides = data.draw(st.lists(st.integers(0, 12), min_size=len(over), max_size=len(over)))
    form = Linear(tuple(strides))
    walked = walk_of_form(form, over).reshape(groups)
    even = all(len(np.unique(np.diff(walked, axis=axis))) == 1 for axis, extent in enumerate(groups) if extent > 1)
    assert (collapse(form, over, groups) is not None) == even


def suffix_products(over: tuple[int, ...]) -> set[int]:
    return {math.prod(over[axis:]) for axis in range(len(over) + 1)}


@given(extents(), extents())
def test_refined_extents_have_the_boundaries_of_both_and_no_others(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    wanted = sorted(suffix_products(first) | suffix_products(second))
    nests = all(large % small == 0 for small, large in itertools.pairwise(wanted))
    finest = refine(first, second)
    if math.prod(first) != math.prod(second) or not nests:
        assert finest is None
    else:
        assert finest is not None
        assert 1 not in finest
        assert suffix_products(finest) == set(wanted)


@given(access_and_space(), st.data())
def test_a_regrouped_access_reads_the_same_elements(drawn: tuple[Access, tuple[int, ...]], data: st.DataObject) -> None:
    access, over = drawn
    assume(over)
    cut = data.draw(st.integers(0, len(over)))
    for groups in ((math.prod(over),), (math.prod(over[:cut]), math.prod(over[cut:])), (1, *over)):
        moved = regrouped(access, over, groups)
        if moved is not None:
            np.testing.assert_array_equal(walk_of(moved, groups), walk_of(access, over))

"""Reductions on a grid against NumPy float64: along results, along terms, in parts, whole numbers, in place."""

from __future__ import annotations

from typing import Literal, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.grid.reduce_plan import plan, workspace_bytes
from compiler.codegen.grid.split import split_sums
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Unary
from compiler.kernels.spec import ReduceSpec
from compiler.targets import GridTarget, load
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity, picked, run_reduce
from tests.compiler.codegen.test_reduce import kept_access, reduction
from tests.kernel_harness.launch import run_kernel
from tests.sample import sample, thinned

TARGET = cast(GridTarget, load(OPENCL))
SUM_ERROR = 1.5e-6
"""Largest error of a sum, relative to the sum of absolute values."""


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(spec: ReduceSpec, inputs: list[Array]) -> None:
    (got,) = run_kernel(spec, inputs, target=OPENCL)
    want = run_reduce(spec, inputs)
    if spec.combine == "max":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    expr = Unary("abs", spec.expr)
    sizes = run_reduce(ReduceSpec(spec.extents, spec.reduced, "sum", spec.inputs, expr, spec.output), inputs)
    assert np.max(np.abs(got - want) / (np.maximum(sizes, np.abs(want)) + 1e-30)) <= SUM_ERROR


@settings(max_examples=150)
@given(st.integers(1, 300), st.integers(1, 20_000), st.booleans(), st.booleans(), st.integers(1, 5), st.integers(1, 8))
def test_every_term_of_every_result_is_some_items(
    results: int, terms: int, columns: bool, splits: bool, alike: int, least: int
) -> None:
    split = split_sums(results, terms, TARGET, columns=columns, splits=splits, alike=alike, least_terms=least)
    assert split.items <= TARGET.items
    assert all(number & (number - 1) == 0 for number in (split.across, split.down))
    assert split.blocks * split.across >= results > (split.blocks - 1) * split.across
    assert splits or split.parts == 1
    starts = [part * split.share for part in range(split.parts)]
    assert starts[-1] < terms <= split.parts * split.share
    lane_terms = [
        range(start + lane, min(start + split.share, terms), split.down)
        for start in starts
        for lane in range(split.down)
    ]
    assert max(map(len, lane_terms)) <= split.turns
    assert sorted(term for own in lane_terms for term in own) == list(range(terms))


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((7,), (0,)),
    ((100_003,), (0,)),
    ((1, 1), (0, 1)),
    ((5, 1, 3), (1,)),
    ((392, 1280), (0,)),
    ((12_544, 32), (0,)),
    ((3000, 3), (0,)),
    ((64, 1000), (1,)),
    ((300, 77), (1,)),
    ((8, 14, 14, 24), (1, 2)),
    ((8, 14, 14, 24), (0, 1, 3)),
    ((4, 33, 65), (0, 2)),
    ((2, 3, 40, 50), (1, 3)),
    ((2, 40_000), (1,)),
    ((40_000, 2), (1,)),
]


@pytest.mark.parametrize(("extents", "reduced"), thinned((pytest.param(*case, id=str(case)) for case in CASES), 7))
def test_sums(extents: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    check(reduction(extents, reduced), [draw(*extents)])


@pytest.mark.parametrize(("extents", "reduced"), CASES[1::3], ids=str)
def test_maxima(extents: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    check(reduction(extents, reduced, "max"), [draw(*extents) - 5])


def test_few_long_sums_are_split_and_many_are_not() -> None:
    for extents, axis, is_split in [
        ((12_544, 32), 0, True),
        ((100_003,), 0, True),
        ((2, 40_000), 1, True),
        ((392, 20_000), 0, False),
        ((20_000, 392), 1, False),
    ]:
        spec = reduction(extents, (axis,))
        assert (plan(spec, TARGET).split.parts > 1) == is_split
        assert bool(workspace_bytes(spec, TARGET, 1)) == is_split


@pytest.mark.parametrize("shape", sample([(30_000, 5), (300_000, 1), (600, 20_000)], {"(30000, 5)"}))
def test_long_sums_of_one_sign_stay_accurate(shape: tuple[int, int]) -> None:
    """The last is not split, and each item adds up hundreds of terms."""
    x = np.random.default_rng(2).uniform(0.5, 1.5, size=shape).astype(np.float32)
    check(reduction(shape, (0,)), [x])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", sample(["i64", "i32"], {"i64"}))
@pytest.mark.parametrize("combine", ["sum", "max"])
def test_whole_numbers(combine: Literal["sum", "max"], dtype: Literal["i64", "i32"], axis: int) -> None:
    extents, bits = (3001, 7) if axis == 0 else (7, 3001), {"i64": 48, "i32": 18}[dtype]
    output = kept_access(extents, (axis,), dtype)
    spec = ReduceSpec(extents, (axis,), combine, (identity(*extents, dtype=dtype),), Ref(0), output)
    x = np.random.default_rng(6).integers(-(2**bits), -1, extents)
    np.testing.assert_array_equal(run_kernel(spec, [x], target=OPENCL)[0], getattr(np, combine)(x, axis))


@pytest.mark.parametrize("extents", [(50, 100), (2, 20_000)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_max_passes_nan_on(extents: tuple[int, int], axis: int) -> None:
    x = np.full(extents, -np.inf, np.float32)
    x[1, 3], x[0, -1] = np.nan, np.nan
    (got,) = run_kernel(reduction(extents, (axis,), "max"), [x], target=OPENCL)
    np.testing.assert_array_equal(got, x.max(axis))


def test_counting_true_values() -> None:
    access = identity(500, 33, dtype="bool")
    spec = ReduceSpec((500, 33), (1,), "sum", (access,), Unary("to_f32", Ref(0)), picked((500,), 0))
    x = np.random.default_rng(7).random((500, 33)) < 0.3
    np.testing.assert_array_equal(run_kernel(spec, [x], target=OPENCL)[0], x.sum(1))


def test_sums_of_windows_that_reach_past_the_edge() -> None:
    """out[i, c] = sum over j of x[i + j - 2, c], read as 0 outside."""
    extents = (40, 5, 30)
    window = Access(TensorType("f32", (40, 30)), (Affine(((0, 1), (1, 1)), -2), Affine(((2, 1),))), 0.0)
    spec = ReduceSpec(extents, (1,), "sum", (window,), Ref(0), picked((40, 30), 0, 2))
    check(spec, [draw(40, 30)])


def test_positions_can_be_read() -> None:
    """The last 5 of each row, times the row's number in the epilogue."""
    below = Binary("lt", Index(1), Const(95))
    scaled = Binary("mul", Ref(0), Unary("to_f32", Index(0)))
    spec = ReduceSpec(
        (20, 100), (1,), "sum", (identity(20, 100),), Select(below, Const(0.0), Ref(0)), picked((20,), 0), scaled
    )
    x = draw(20, 100)
    (got,) = run_kernel(spec, [x], target=OPENCL)
    np.testing.assert_allclose(got, x[:, 95:].sum(1) * np.arange(20), rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(700, 72), (10, 72), (5000, 3)])
def test_an_update_in_place(rows: int, columns: int) -> None:
    """bias - 0.1 sum(d_y scale), where bias lies, whether or not the sums come in parts."""
    term: Expr = Binary("mul", Ref(0), Ref(1))
    update = Binary("sub", Ref(1), Binary("mul", Ref(0), Const(0.1)))
    output = picked((columns,), 1)
    accesses = (identity(rows, columns), picked((rows,), 0))
    spec = ReduceSpec((rows, columns), (0,), "sum", accesses, term, output, update, (output,))
    inputs = [draw(rows, columns), draw(rows, seed=1), draw(columns, seed=2)]
    (got,) = run_in_place(spec, inputs, [2])
    np.testing.assert_allclose(got, run_reduce(spec, inputs), atol=2e-5)

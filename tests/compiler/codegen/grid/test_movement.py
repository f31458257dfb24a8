"""Kernels that pick, put, resample, scan and select along an axis, on a grid: every way of sharing out."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.grid.points import ITEMS
from compiler.graph import Array
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.targets import load
from tests.compiler.codegen.grid.in_place import OPENCL
from tests.compiler.codegen.movement_reference import run_movement
from tests.compiler.codegen.test_movement import drawn
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import crossed, sample, thinned

EVERYWHERE, BY_SAMPLE, BY_COLUMN, ONE = (True, True), (True, False), (False, True), (False, False)


def launches(spec: MovementSpec) -> list[tuple[int, int]]:
    """(groups, items) of each launch."""
    return [(launch.groups, launch.items) for launch in build_object(spec, load(OPENCL)).launches]


def check(spec: MovementSpec, inputs: list[Array]) -> None:
    """Whole numbers, so that every order of summation gives one result. What is the same everywhere is given once."""
    (want,) = run_movement(spec, inputs)
    (got,) = run_kernel(spec, inputs, target=OPENCL)
    np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want)


# ----------------------------------------------------------------------------------------------------------- elements


@pytest.mark.parametrize("shape", [(1, 300, 70, 64), (3, 7, 1, 40), (2, 5, 3, 4)], ids=str)
@pytest.mark.parametrize("per", sample([EVERYWHERE, BY_SAMPLE, BY_COLUMN, ONE], {str(BY_SAMPLE)}))
def test_elements_are_picked(shape: tuple[int, int, int, int], per: tuple[bool, bool]) -> None:
    spec = ElementsSpec("gather", *shape, dtype="f32", per_outer=per[0], per_inner=per[1])
    check(spec, drawn(spec, spec.rows))


# outer, rows, inner, count; launches: results that look for themselves, or zeros and then columns
@pytest.mark.parametrize(("shape", "count"), [((2, 5, 3, 70), 1), ((5, 300, 70, 3), 1), ((2, 700, 30, 20), 2)], ids=str)
@pytest.mark.parametrize("kind", sample(["add", "max", "mul", "last"], {"add", "last"}))
@pytest.mark.parametrize("per", sample([EVERYWHERE, BY_SAMPLE, BY_COLUMN], {str(BY_COLUMN)}))
def test_elements_are_put(shape: tuple[int, int, int, int], count: int, kind: str, per: tuple[bool, bool]) -> None:
    spec = ElementsSpec(kind, *shape, dtype="f32", index_dtype="i32", per_outer=per[0], per_inner=per[1])  # type: ignore[arg-type]
    assert kind == "last" or len(launches(spec)) == count
    check(spec, [array / 2 if array.dtype == np.float32 else array for array in drawn(spec, spec.rows)])


@pytest.mark.parametrize(("count", "expected"), [(9, 1), (300, 3)])
def test_elements_that_go_to_the_same_rows_everywhere_are_summed(count: int, expected: int) -> None:
    spec = ElementsSpec("add", 3, 40, 11, count, dtype="f32", per_outer=False, per_inner=False)
    assert len(launches(spec)) == expected
    check(spec, drawn(spec, spec.rows))


@pytest.mark.parametrize("kind", ["add", "max"])
def test_whole_numbers_are_put(kind: str) -> None:
    spec = ElementsSpec(kind, 2, 6, 5, 20, dtype="i64")  # type: ignore[arg-type]
    generator = np.random.default_rng(2)
    index, u = generator.integers(-6, 6, (2, 20, 5)), generator.integers(-(2**31), 2**31, (2, 20, 5))
    x = generator.integers(-(2**31), 2**31, (2, 6, 5))
    check(spec, [index, u] if kind == "add" else [x, index, u])


def test_nan_is_higher_than_any_number_that_is_put() -> None:
    spec = ElementsSpec("max", 1, 3, 1, 4, dtype="f32")
    x, u = np.array([1, np.nan, 3], np.float32), np.array([np.nan, 2, -np.inf, 7], np.float32)
    (got,) = run_kernel(
        spec, [x.reshape(1, 3, 1), np.array([0, 1, 2, 2]).reshape(1, 4, 1), u.reshape(1, 4, 1)], target=OPENCL
    )
    np.testing.assert_array_equal(got.ravel(), [np.nan, np.nan, 7])


def test_positions_outside_touch_no_foreign_memory() -> None:
    index = np.tile(np.array([-1000, 2**40, 5, -(2**62), 2**63 - 1]), 4).reshape(1, 20, 1)
    x = np.arange(30, dtype=np.float32).reshape(1, 6, 5)
    spec = ElementsSpec("gather", 1, 6, 5, 20, dtype="f32", per_inner=False)
    (picked,) = run_kernel(spec, [x, index], target=OPENCL)
    np.testing.assert_array_equal(picked[0, :5], x[0][[0, 5, 5, 0, 5]])
    (got,) = run_kernel(
        ElementsSpec("mul", 1, 6, 5, 20, dtype="f32", per_inner=False), [x, index, picked], target=OPENCL
    )
    np.testing.assert_array_equal(got[0, 1:5], x[0, 1:5])


# ----------------------------------------------------------------------------------------------------------- resample


@pytest.mark.parametrize("taps", sample([2, 11], {"11"}))
@pytest.mark.parametrize("shape", [(1, 30, 70, 64), (3, 7, 1, 40), (2, 5, 3, 1)], ids=str)
@pytest.mark.parametrize("kind", ["forward", "gradient"])
def test_resample(kind: str, shape: tuple[int, int, int, int], taps: int) -> None:
    spec = ResampleSpec(kind, *shape, taps, dtype="f32", index_dtype="i64" if taps == 2 else "i32")  # type: ignore[arg-type]
    check(spec, drawn(spec, spec.rows))


def test_a_single_row_that_is_spread_far_gathers_its_gradient() -> None:
    spec = ResampleSpec("gradient", 2, 1, 5, 1500, 1, dtype="f32")
    assert launches(spec)[-1] == (10 * 16 // 256 + 1, 256)
    check(spec, drawn(spec, 1))


# --------------------------------------------------------------------------------------------------------------- scan


@pytest.mark.parametrize(("exclusive", "reverse"), thinned(crossed([False, True], [False, True]), 2))
@pytest.mark.parametrize(
    ("shape", "launch"),
    [((1, 50, 70), (1, ITEMS)), ((300, 70, 1), (3, ITEMS)), ((2, 600, 3), (6, 256)), ((1, 256, 1), (1, 256))],
    ids=str,
)
def test_running_sum(shape: tuple[int, int, int], launch: tuple[int, int], exclusive: bool, reverse: bool) -> None:
    spec = ScanSpec("sum", *shape, dtype="f32", exclusive=exclusive, reverse=reverse)
    assert launches(spec) == [launch]
    check(spec, drawn(spec, 1))


def test_long_running_sums_of_reals_lose_few_bits() -> None:
    spec = ScanSpec("sum", 1, 20_000, 2, dtype="f32")
    x = np.random.default_rng(1).uniform(0.5, 1.5, (1, 20_000, 2)).astype(np.float32)
    (got,) = run_kernel(spec, [x], target=OPENCL)
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64), axis=1), rtol=1.5e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence(reverse: bool) -> None:
    spec = ScanSpec("linear", 3, 90, 13, dtype="f32", reverse=reverse)
    check(spec, [np.sign(array) for array in drawn(spec, 1)])


@pytest.mark.parametrize("rows", [5, 700])
def test_running_sums_of_whole_numbers_are_exact(rows: int) -> None:
    spec = ScanSpec("sum", 2, rows, 3, dtype="i64")
    x = np.random.default_rng(1).integers(-(2**53), 2**53, (2, rows, 3))
    np.testing.assert_array_equal(run_kernel(spec, [x], target=OPENCL)[0], np.cumsum(x, axis=1))


# ------------------------------------------------------------------------------------------------------------- select


@pytest.mark.parametrize(
    ("count", "inner", "rows", "group"),
    [(1, 1, 40, False), (2, 3, 40, False), (40, 1, 40, False), (1, 1, 200, True), (3, 2, 200, True)],
)
@pytest.mark.parametrize("largest", sample([True, False], {"True"}))
def test_select(count: int, inner: int, rows: int, group: bool, largest: bool) -> None:
    """Many equal elements; the last line has NaN."""
    spec = SelectSpec(30, rows, inner, count, dtype="f32", largest=largest)
    assert (launches(spec) == [(30 * inner, ITEMS)]) == group
    x = np.random.default_rng(count).integers(-9, 10, (30, rows, inner)).astype(np.float32)
    x[-1, 3:6] = np.nan
    x[-2, 1], x[-2, 2] = np.inf, -np.inf
    check(spec, [x])


@pytest.mark.parametrize("dtype", ["i64", "i32"])
@pytest.mark.parametrize("rows", [40, 300])
def test_select_of_whole_numbers(dtype: str, rows: int) -> None:
    spec = SelectSpec(3, rows, 1, 4, dtype=dtype)  # type: ignore[arg-type]
    x = np.random.default_rng(3).integers(-(2**31), 2**31, (3, rows, 1))
    (got,) = run_kernel(spec, [x], target=OPENCL)
    np.testing.assert_array_equal(got, np.argsort(-x, axis=1, kind="stable")[:, :4])

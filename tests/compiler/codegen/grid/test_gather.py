"""Gather, scatter-add and updates of tables on a grid, against NumPy float64: every way of sharing out sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.family import can_update
from compiler.codegen.gather.plan import MOST_POSITIONS
from compiler.codegen.grid.gather_plan import sums_of
from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import GatherSpec
from compiler.targets import GridTarget, load
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.test_gather import RATE, TABLE, WHOLE, indices, spec_of
from tests.kernel_harness.launch import run_kernel
from tests.sample import sample, thinned

# outer, rows, inner, count; who sums, and how many items share a sum
SUMS = [
    ((4, 50, 33, 20), "rows", 1),
    ((1, 1000, 5, 197), "rows", 1),
    ((1, 20, 96, 3000), "rows", 4),
    ((2, 3, 1, 5000), "rows", 32),
    ((1, 2, 7, 500), "rows", 4),
    ((3, 7, 1, 16), "looking", 1),
    ((8, 197, 24, 1), "looking", 1),
    ((1, 1, 16, 1), "looking", 1),
]
MOMENTUM = Binary("add", Binary("mul", Const(0.75), Ref(2)), Ref(0))
MOVED = Binary("sub", Ref(1), Binary("mul", Ref(3), MOMENTUM))
LEARNING_RATE = np.asarray(0.25, np.float32)
DESCENT = Binary("sub", Ref(1), Binary("mul", Ref(2), Ref(0)))


def way_of(spec: GatherSpec) -> tuple[str, int]:
    """Who sums, and how many items share a sum."""
    target = load(OPENCL)
    assert isinstance(target, GridTarget)
    plan = sums_of(spec, target)
    return plan.by, plan.walkers


def gradient_of(spec: GatherSpec, index: Array, d_y: Array) -> Array:
    """The sums in float64."""
    total = np.zeros((spec.outer, spec.rows, spec.inner))
    for position, row in enumerate(index):
        total[:, row] += d_y.astype(np.float64).reshape(spec.outer, spec.count, spec.inner)[:, position]
    return total


def drawn(spec: GatherSpec, seed: int = 0) -> Array:
    shape = (spec.outer, spec.count, spec.inner)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 300, 70, 64), (3, 7, 1, 40), (2, 5, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", sample(["f32", "i64", "bool"], {"f32"}))
def test_gather(shape: tuple[int, int, int, int], dtype: str) -> None:
    spec = spec_of("gather", shape, index_dtype="i32" if dtype == "i64" else "i64", dtype=dtype)
    table = np.random.default_rng(1).normal(0, 100, (spec.outer, spec.rows, spec.inner))
    held = table > 0 if dtype == "bool" else table.astype("f4" if dtype == "f32" else "i8")
    index = indices(spec)
    np.testing.assert_array_equal(run_kernel(spec, [held, index], target=OPENCL)[0], held[:, index])


@pytest.mark.parametrize(("shape", "by", "walkers"), thinned((pytest.param(*case, id=str(case)) for case in SUMS), 4))
@pytest.mark.parametrize("index_dtype", sample(["i64", "i32"], {"i64"}))
def test_scatter_add(shape: tuple[int, int, int, int], by: str, walkers: int, index_dtype: str) -> None:
    spec = spec_of("scatter_add", shape, index_dtype=index_dtype)
    assert way_of(spec) == (by, walkers)
    index, d_y = indices(spec), drawn(spec)
    (got,) = run_kernel(spec, [index, d_y], target=OPENCL)
    np.testing.assert_allclose(got, gradient_of(spec, index, d_y), rtol=1e-5, atol=2e-5)


def test_whole_numbers_add_up_exactly() -> None:
    spec = spec_of("scatter_add", (2, 5, 3, 40), dtype="i64")
    index = indices(spec)
    d_y = np.random.default_rng(1).integers(-(2**57), 2**57, (2, 40, 3))
    want = np.zeros((2, 5, 3), np.int64)
    for position, row in enumerate(index):
        want[:, row] += d_y[:, position]
    np.testing.assert_array_equal(run_kernel(spec, [index, d_y], target=OPENCL)[0], want)


@pytest.mark.parametrize("rows", sample([1000, 5], {"5"}))
def test_a_row_that_most_positions_name_loses_few_bits(rows: int) -> None:
    """As padding does: an item that adds term by term is off by three times as much."""
    spec = spec_of("scatter_add", (1, rows, 3, 8192))
    index = np.where(np.arange(8192) % 8 == 5, 3, 0)
    d_y = (0.1 + drawn(spec) / 1000).astype(np.float32)
    (got,) = run_kernel(spec, [index, d_y], target=OPENCL)
    np.testing.assert_allclose(got, gradient_of(spec, index, d_y), rtol=1e-6)


def test_sums_have_the_same_bits_every_time() -> None:
    spec = spec_of("scatter_add", (1, 20, 96, 3000))
    index, d_y = indices(spec), drawn(spec)
    assert len({run_kernel(spec, [index, d_y], target=OPENCL)[0].tobytes() for _ in range(3)}) == 1


def test_indices_outside_touch_no_foreign_memory() -> None:
    """The runtime refuses such data; the kernel reads and writes the nearest row."""
    index = np.tile(np.array([-1000, 2**40, 5, -(2**62), 2**63 - 1]), 4)
    table = np.arange(30, dtype=np.float32).reshape(1, 6, 5)
    (picked,) = run_kernel(spec_of("gather", (1, 6, 5, 20)), [table, index], target=OPENCL)
    np.testing.assert_array_equal(picked[0, :5], table[0][[0, 5, 5, 0, 5]])
    for count in (5, 20):
        given = [index[:count], picked[:, :count]]
        (got,) = run_kernel(spec_of("scatter_add", (1, 6, 5, count)), given, target=OPENCL)
        np.testing.assert_array_equal(got[0, 1:5], np.zeros((4, 5)))


@pytest.mark.parametrize(("count", "by", "walkers"), [(9, "looking", 1), (200, "rows", 1), (5000, "rows", 2)])
def test_update_with_momentum_moves_every_row(count: int, by: str, walkers: int) -> None:
    generator = np.random.default_rng(5)
    spec = replace(TABLE, count=count, epilogue=MOVED, epilogue_inputs=(WHOLE, WHOLE, RATE), extra_outputs=(MOMENTUM,))
    assert way_of(spec) == (by, walkers)
    index, d_y = generator.integers(-50, 20, count), drawn(spec)
    weight, moment = generator.normal(size=(2, 50, 37)).astype(np.float32)
    got = run_in_place(spec, [index, d_y, weight, moment, LEARNING_RATE], (2, 3))
    moved = 0.75 * moment + gradient_of(spec, index, d_y)[0]
    np.testing.assert_allclose(got[1][0], moved, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(got[0][0], weight - 0.25 * moved, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("count", "by"), [(9, "looking"), (40, "positions"), (200, "rows")])
@pytest.mark.parametrize("rows", [1, 20])
def test_update_that_skips_rows_leaves_their_bytes(count: int, by: str, rows: int) -> None:
    """A value that arithmetic would change (a NaN's payload) shows that a row was not written."""
    spec = replace(TABLE, count=count, epilogue=DESCENT, epilogue_inputs=(WHOLE, RATE), skips=True)
    assert way_of(spec)[0] == by
    generator = np.random.default_rng(6)
    index, d_y = generator.permutation(np.arange(count) % rows), drawn(spec)
    weight = generator.normal(size=(50, 37)).astype(np.float32)
    named = min(rows, count)
    weight[named:].view(np.uint32)[...] = 0xFFA5A5A5
    (got,) = run_in_place(spec, [index, d_y, weight, LEARNING_RATE], (2,))
    want = weight[:named] - 0.25 * gradient_of(spec, index, d_y)[0, :named]
    np.testing.assert_allclose(got[0, :named], want, rtol=1e-5, atol=2e-5)
    assert got[0, named:].tobytes() == weight[named:].tobytes()


def test_rows_that_are_skipped_keep_what_the_output_held() -> None:
    spec = GatherSpec("scatter_add", 1, 500, 2, 499, dtype="f32", skips=True)
    assert way_of(spec)[0] == "positions"
    index, d_y = np.arange(499) % 250 * 2, drawn(spec)
    start = np.full((1, 500, 2), 7, np.float32)
    (got,) = run_kernel(spec, [index, d_y], target=OPENCL, initial=[start])
    want = gradient_of(spec, index, d_y)
    want[:, 1::2] = 7
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_which_tables_are_updated_by_their_gradients_kernel() -> None:
    target = load(OPENCL)
    assert can_update(TABLE, target)
    assert not can_update(replace(TABLE, kind="gather"), target)
    assert not can_update(replace(TABLE, outer=2), target)
    assert not can_update(replace(TABLE, dtype="i64"), target)
    assert not can_update(replace(TABLE, epilogue_inputs=(WHOLE,)), target)
    assert not can_update(replace(TABLE, count=MOST_POSITIONS + 1), target)

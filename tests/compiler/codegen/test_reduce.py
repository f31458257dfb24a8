"""Reductions against NumPy float64: any axes, both vector directions, splits over threads, accuracy of long sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.reduce.plan import plan
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Unary
from compiler.kernels.spec import ReduceSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.reference import identity, picked, run_reduce
from tests.kernel_harness.launch import build_object, run_kernel
from tests.kernel_harness.machine import native_target


def kept_access(extents: tuple[int, ...], reduced: tuple[int, ...], dtype: str = "f32") -> Access:
    """Output of a reduction without the reduced dimensions."""
    kept = [axis for axis in range(len(extents)) if axis not in reduced]
    return picked(tuple(extents[axis] for axis in kept), *kept, dtype=dtype)


def reduction(
    extents: tuple[int, ...], reduced: tuple[int, ...], combine: str = "sum", expr: Expr | None = None
) -> ReduceSpec:
    output = kept_access(extents, reduced)
    return ReduceSpec(extents, reduced, combine, (identity(*extents),), expr or Ref(0), output)  # type: ignore[arg-type]


def check(spec: ReduceSpec, inputs: list[Array], threads: int = 2, tolerance: float = 1e-6) -> None:
    (got,) = run_kernel(spec, inputs, threads=threads)
    want = run_reduce(spec, inputs)
    if spec.combine == "max":
        np.testing.assert_array_equal(got, want.astype(got.dtype))
        return
    sizes = run_reduce(
        ReduceSpec(spec.extents, spec.reduced, "sum", spec.inputs, Unary("abs", spec.expr), spec.output),
        inputs[: len(spec.inputs)],
    )
    assert np.max(np.abs(got - want) / (np.maximum(sizes, np.abs(want)) + 1e-30)) <= tolerance


CASES = [
    ((1000,), (0,)),
    ((100_003,), (0,)),
    ((7,), (0,)),
    ((1, 1), (0,)),
    ((1, 1), (0, 1)),
    ((5, 1, 3), (1,)),
    ((392, 1280), (0,)),
    ((12_544, 32), (0,)),
    ((3000, 10), (0,)),
    ((3000, 3), (0,)),
    ((64, 1000), (1,)),
    ((300, 77), (1,)),
    ((5, 7), (1,)),
    ((8, 49, 96), (1,)),
    ((8, 14, 14, 24), (0, 1, 2)),
    ((8, 14, 14, 24), (1, 2)),
    ((8, 14, 14, 24), (0, 1, 2, 3)),
    ((4, 33, 65), (0, 2)),
    ((6, 5, 4, 3), (0, 2)),
    ((2, 3, 40, 50), (1, 3)),
    ((2, 40_000), (1,)),
    ((40_000, 2), (1,)),
]


@pytest.mark.parametrize(("extents", "reduced"), CASES, ids=str)
def test_sums(extents: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=extents).astype(np.float32)
    check(reduction(extents, reduced), [x])


@pytest.mark.parametrize(("extents", "reduced"), CASES[::3], ids=str)
def test_maxima(extents: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(-5, 1, size=extents).astype(np.float32)
    check(reduction(extents, reduced, "max"), [x])


@settings(max_examples=40)
@given(st.data())
def test_any_shape_any_axes(data: st.DataObject) -> None:
    extents = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    axes = st.sets(st.integers(0, len(extents) - 1), min_size=1)
    reduced = tuple(sorted(data.draw(axes)))
    x = np.random.default_rng(1).normal(size=extents).astype(np.float32)
    check(reduction(extents, reduced, data.draw(st.sampled_from(["sum", "max"]))), [x], data.draw(st.integers(1, 3)))


@pytest.mark.parametrize("shape", [(100_352, 16), (1_000_000, 1), (100_352, 1)], ids=str)
def test_long_sums_of_one_sign_stay_accurate(shape: tuple[int, int]) -> None:
    """A naive f32 sum of these is off by 1e-4 and more; pairwise summation by about 2e-7."""
    x = np.random.default_rng(2).uniform(0.5, 1.5, size=shape).astype(np.float32)
    for threads in (1, 2):
        check(reduction(shape, (0,)), [x], threads, tolerance=1.5e-6)


def test_products_with_broadcast_operands_and_an_epilogue() -> None:
    """The bias and scale gradients of a normalisation: sum over rows of d_y * x_hat, then added to a scaled vector."""
    rows, columns = 700, 72
    matrix, per_row = identity(rows, columns), picked((rows,), 0)
    term = Binary("mul", Ref(0), Binary("mul", Ref(1), Ref(2)))
    epilogue = Binary("add", Binary("mul", Ref(0), Const(0.25)), Ref(1))
    output = picked((columns,), 1)
    spec = ReduceSpec((rows, columns), (0,), "sum", (matrix, matrix, per_row), term, output, epilogue, (output,))
    generator = np.random.default_rng(3)
    shapes = [(rows, columns), (rows, columns), (rows,), (columns,)]
    inputs: list[Array] = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    (got,) = run_kernel(spec, inputs)
    np.testing.assert_allclose(got, run_reduce(spec, inputs), atol=2e-4)


def test_kept_unit_dimensions_and_a_mean() -> None:
    extents = (4, 7, 7, 40)
    output = Access(TensorType("f32", (4, 1, 1, 40)), (Affine(((0, 1),)), Affine(), Affine(), Affine(((3, 1),))))
    spec = ReduceSpec(
        extents, (1, 2), "sum", (identity(*extents),), Ref(0), output, Binary("mul", Ref(0), Const(1 / 49))
    )
    x = np.random.default_rng(4).normal(size=extents).astype(np.float32)
    check(spec, [x])


def test_positions_can_be_read() -> None:
    """The sum of x over the last 5 positions of each row, by Index."""
    below = Binary("lt", Index(1), Const(95))
    spec = reduction((20, 100), (1,), expr=Select(below, Const(0.0), Ref(0)))
    x = np.random.default_rng(5).normal(size=(20, 100)).astype(np.float32)
    (got,) = run_kernel(spec, [x])
    np.testing.assert_allclose(got, x[:, 95:].sum(1), rtol=1e-5)


def test_integer_sums_are_exact() -> None:
    access = identity(300, 40, dtype="i64")
    spec = ReduceSpec((300, 40), (0,), "sum", (access,), Ref(0), picked((40,), 1, dtype="i64"))
    x = np.random.default_rng(6).integers(-(2**40), 2**40, (300, 40))
    np.testing.assert_array_equal(run_kernel(spec, [x])[0], x.sum(0))


def test_counting_true_values() -> None:
    access = identity(500, 33, dtype="bool")
    spec = ReduceSpec((500, 33), (1,), "sum", (access,), Unary("to_f32", Ref(0)), picked((500,), 0))
    x = np.random.default_rng(7).random((500, 33)) < 0.3
    np.testing.assert_array_equal(run_kernel(spec, [x])[0], x.sum(1))


def test_max_passes_nan_on() -> None:
    x = np.zeros((50, 100), np.float32)
    x[7, 3], x[9, 99] = np.nan, np.nan
    (got,) = run_kernel(reduction((50, 100), (1,), "max"), [x])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x).any(1))


def test_thread_count_at_run_time_does_not_change_a_bit() -> None:
    """Parts are planned when the kernel is built, so fewer threads than planned give the same sums."""
    from tests.kernel_harness.launch import Kernel

    spec = reduction((50_000, 24), (0,))
    kernel = Kernel(spec, load_cpu(native_target()), 4)
    x = np.random.default_rng(8).normal(size=(50_000, 24)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 4):
        kernel.threads = threads
        results.append(kernel.run(x)[0].tobytes())
    assert len(set(results)) == 1


def test_tall_column_sums_are_split_and_wide_ones_are_not() -> None:
    target = load_cpu("x86-64-v4")
    assert plan(reduction((100_352, 32), (0,)), target, 2).parts > 1
    assert plan(reduction((392, 1280), (0,)), target, 2).parts == 1
    assert plan(reduction((1_000_000,), (0,)), target, 2).parts > 1


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
def test_other_targets_build(target: str) -> None:
    for extents, reduced in CASES[5:12]:
        assert build_object(reduction(extents, reduced), load_cpu(target)).object_bytes

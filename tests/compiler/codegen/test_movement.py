"""Kernels that pick, put, resample, scan and select along an axis, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Array
from compiler.kernels.movement import ElementsSpec, MovementSpec, ResampleSpec, ScanSpec, SelectSpec
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.compiler.codegen.movement_reference import run_movement
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import sample

# outer, rows, inner, count
SHAPES = [(1, 300, 70, 64), (3, 7, 1, 40), (2, 5, 3, 4)]


def drawn(spec: MovementSpec, rows: int, seed: int = 0) -> list[Array]:
    """Small whole numbers for reals, so that every order of summation gives one result; positions below `rows`."""
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for tensor in operand_types(spec).inputs:
        if tensor.dtype in ("i64", "i32"):
            low = 0 if isinstance(spec, ResampleSpec) else -rows
            arrays.append(generator.integers(low, rows, tensor.shape).astype(tensor.element.numpy))
        else:
            arrays.append(generator.integers(-4, 5, tensor.shape).astype(np.float32))
    return arrays


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["gather", "add", "max"])
@pytest.mark.parametrize("per", sample([(True, True), (True, False), (False, True)], {"(False, True)"}))
def test_elements(shape: tuple[int, int, int, int], kind: str, per: tuple[bool, bool]) -> None:
    spec = ElementsSpec(kind, *shape, dtype="f32", per_outer=per[0], per_inner=per[1])  # type: ignore[arg-type]
    inputs = drawn(spec, spec.rows)
    (want,) = run_movement(spec, inputs)
    for threads in (1, 2) if kind == "add" else (2,):
        np.testing.assert_array_equal(run_kernel(spec, inputs, threads=threads)[0], want)


@pytest.mark.parametrize("kind", ["mul", "last"])
def test_products_and_last_positions_go_to_their_place(kind: str) -> None:
    spec = ElementsSpec(kind, 2, 6, 5, 9, dtype="f32", index_dtype="i32")  # type: ignore[arg-type]
    inputs = drawn(spec, spec.rows)
    np.testing.assert_array_equal(run_kernel(spec, inputs)[0], run_movement(spec, inputs)[0])


def test_positions_outside_touch_no_foreign_memory() -> None:
    index = np.array([-1000, 2**40, 5, -(2**62), 2**63 - 1]).reshape(1, 5, 1)
    x = np.arange(30, dtype=np.float32).reshape(1, 6, 5)
    (picked,) = run_kernel(ElementsSpec("gather", 1, 6, 5, 5, dtype="f32", per_inner=False), [x, index])
    np.testing.assert_array_equal(picked[0], x[0][[0, 5, 5, 0, 5]])
    run_kernel(ElementsSpec("add", 1, 6, 5, 5, dtype="f32", per_inner=False), [index, picked])


@pytest.mark.parametrize("taps", [2, 11])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["forward", "gradient"])
def test_resample(kind: str, shape: tuple[int, int, int, int], taps: int) -> None:
    spec = ResampleSpec(kind, *shape, taps, dtype="f32")  # type: ignore[arg-type]
    inputs = drawn(spec, spec.rows)
    np.testing.assert_array_equal(run_kernel(spec, inputs, threads=2)[0], run_movement(spec, inputs)[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
def test_running_sum(shape: tuple[int, int, int, int], exclusive: bool, reverse: bool) -> None:
    spec = ScanSpec("sum", *shape[:3], dtype="f32", exclusive=exclusive, reverse=reverse)
    inputs = drawn(spec, 1)
    np.testing.assert_array_equal(run_kernel(spec, inputs, threads=2)[0], run_movement(spec, inputs)[0])


@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrence(reverse: bool) -> None:
    spec = ScanSpec("linear", 3, 9, 13, dtype="f32", reverse=reverse)
    inputs = [np.sign(array) for array in drawn(spec, 1)]
    np.testing.assert_array_equal(run_kernel(spec, inputs, threads=2)[0], run_movement(spec, inputs)[0])


def test_whole_numbers_add_up_exactly() -> None:
    spec = ScanSpec("sum", 2, 5, 3, dtype="i64")
    x = np.random.default_rng(1).integers(-(2**60), 2**60, (2, 5, 3))
    np.testing.assert_array_equal(run_kernel(spec, [x])[0], np.cumsum(x, axis=1))


@pytest.mark.parametrize(("count", "inner"), [(1, 1), (2, 3), (5, 1), (40, 1)])
@pytest.mark.parametrize("largest", [True, False])
def test_select(count: int, inner: int, largest: bool) -> None:
    """Many equal elements; the last line has NaN."""
    spec = SelectSpec(200, 40, inner, count, dtype="f32", largest=largest)
    x = np.random.default_rng(count).integers(-9, 10, (200, 40, inner)).astype(np.float32)
    x[-1, 3:6] = np.nan
    np.testing.assert_array_equal(run_kernel(spec, [x], threads=2)[0], run_movement(spec, [x])[0])


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
@pytest.mark.parametrize(
    "spec",
    [
        ElementsSpec("gather", 4, 50, 33, 20, dtype="f32"),
        ElementsSpec("add", 4, 50, 33, 20, dtype="f32", per_inner=False),
        ResampleSpec("forward", 2, 7, 64, 14, 2, dtype="f32"),
        ResampleSpec("gradient", 2, 7, 64, 14, 2, dtype="f32"),
        ScanSpec("sum", 2, 7, 9, dtype="f32"),
        SelectSpec(3, 40, 1, 5, dtype="f32"),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_other_targets_build(spec: MovementSpec, target: str) -> None:
    assert build_object(spec, load(target)).object_bytes

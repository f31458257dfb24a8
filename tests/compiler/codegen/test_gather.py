"""Gather and scatter-add against NumPy: every index type, wrapping, duplicates, large tables, many rows and few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import GatherSpec
from compiler.targets import load
from tests.kernel_harness.launch import Kernel, build_object, run_kernel
from tests.kernel_harness.machine import native_target
from tests.sample import crossed, sample

# outer, rows, inner, count
SHAPES = [
    (1, 30_522, 128, 64),
    (1, 1000, 768, 197),
    (4, 50, 33, 20),
    (1, 10, 1, 100),
    (3, 7, 1, 40),
    (1, 5, 3, 4),
    (1, 1, 16, 1),
    (8, 197, 768, 1),
]


def spec_of(kind: str, shape: tuple[int, int, int, int], **types: str) -> GatherSpec:
    return GatherSpec(kind, *shape, **{"dtype": "f32", **types})  # type: ignore[arg-type]


def indices(spec: GatherSpec, seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).integers(-spec.rows, spec.rows, spec.count)
    return drawn.astype(np.int64 if spec.index_dtype == "i64" else np.int32)


TYPES = sample(crossed(["i64", "i32"], ["f32", "i64", "bool"]), {"i64-f32", "i32-bool"})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("index_dtype", "dtype"), TYPES)
def test_gather(shape: tuple[int, int, int, int], index_dtype: str, dtype: str) -> None:
    spec = spec_of("gather", shape, index_dtype=index_dtype, dtype=dtype)
    generator = np.random.default_rng(1)
    drawn = generator.normal(0, 100, (spec.outer, spec.rows, spec.inner))
    table = drawn > 0 if dtype == "bool" else drawn.astype("f4" if dtype == "f32" else "i8")
    index = indices(spec)
    np.testing.assert_array_equal(run_kernel(spec, [table, index])[0], table[:, index])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_scatter_add(shape: tuple[int, int, int, int], threads: int) -> None:
    spec = spec_of("scatter_add", shape)
    index = indices(spec)
    d_y = np.random.default_rng(2).normal(size=(spec.outer, spec.count, spec.inner)).astype(np.float32)
    want = np.zeros((spec.outer, spec.rows, spec.inner))
    at = (slice(None), index)
    np.add.at(want, at, d_y.astype(np.float64))  # type: ignore[arg-type]  # NumPy takes tuples too
    np.testing.assert_allclose(run_kernel(spec, [index, d_y], threads=threads)[0], want, atol=1e-5)


def test_many_duplicates_add_up_alike_on_any_number_of_threads() -> None:
    spec = spec_of("scatter_add", (1, 20, 96, 3000))
    index = np.random.default_rng(3).integers(0, 3, 3000)
    d_y = np.random.default_rng(4).normal(size=(1, 3000, 96)).astype(np.float32)
    results = {run_kernel(spec, [index, d_y], threads=threads)[0].tobytes() for threads in (1, 2, 3)}
    assert len(results) == 1


def test_indices_outside_touch_no_foreign_memory() -> None:
    """The runtime refuses such data; the kernel reads and writes the nearest row."""
    index = np.array([-1000, 2**40, 5, -(2**62), 2**63 - 1])
    table = np.arange(30, dtype=np.float32).reshape(1, 6, 5)
    (picked,) = run_kernel(spec_of("gather", (1, 6, 5, 5)), [table, index])
    np.testing.assert_array_equal(picked[0], table[0][[0, 5, 5, 0, 5]])
    run_kernel(spec_of("scatter_add", (1, 6, 5, 5)), [index, picked])


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
@pytest.mark.parametrize("kind", ["gather", "scatter_add"])
def test_other_targets_build(kind: str, target: str) -> None:
    for shape in SHAPES[:4]:
        assert build_object(spec_of(kind, shape), load(target)).object_bytes


TABLE = GatherSpec("scatter_add", 1, 50, 37, 200, dtype="f32")
WHOLE = Access(TensorType("f32", (50, 37)), (Affine(((0, 1),)), Affine(((1, 1),))))
RATE = Access(TensorType("f32", ()), ())


def in_place(spec: GatherSpec, index: Array, d_y: Array, state: list[Array], rate: float, threads: int) -> list[Array]:
    """The state after an update that shares its storage, as in a training step."""
    kernel = Kernel(spec, load(native_target()), threads)
    storages = kernel.storages()
    given = [index, d_y, *state, np.asarray(rate, np.float32)]
    for storage, tensor, array in zip(storages, kernel.types.inputs, given, strict=False):
        storage.view(tensor)[...] = np.reshape(array, tensor.shape)
    for number in range(len(state)):
        storages[len(given) + number] = storages[2 + number]
    kernel.call(storages)
    for number, storage in enumerate(storages):
        storage.check(f"operand {number}")
    return [storages[2 + number].view(TensorType("f32", (50, 37))) for number in range(len(state))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_update_with_momentum_moves_every_row(threads: int, decay: float) -> None:
    generator = np.random.default_rng(5)
    index = generator.integers(-50, 20, 200)
    d_y = generator.normal(size=(200, 37)).astype(np.float32)
    weight, moment = generator.normal(size=(2, 50, 37)).astype(np.float32)
    step = Binary("add", Ref(0), Binary("mul", Const(decay), Ref(1)))
    after = Binary("add", Binary("mul", Const(0.75), Ref(2)), step)
    updated = Binary("sub", Ref(1), Binary("mul", Ref(3), after))
    spec = replace(TABLE, epilogue=updated, epilogue_inputs=(WHOLE, WHOLE, RATE), extra_outputs=(after,))
    got = in_place(spec, index, d_y, [weight, moment], 0.25, threads)
    gradient = np.zeros((50, 37))
    np.add.at(gradient, index, d_y)
    moved = 0.75 * moment + gradient + decay * weight
    np.testing.assert_allclose(got[1], moved, atol=1e-5)
    np.testing.assert_allclose(got[0], weight - 0.25 * moved, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 20])
def test_update_that_skips_rows_leaves_their_bytes(rows: int) -> None:
    """A value that arithmetic would change (a NaN's payload) shows that a row was not written."""
    generator = np.random.default_rng(6)
    index, d_y = generator.integers(0, rows, 200), generator.normal(size=(200, 37)).astype(np.float32)
    weight = generator.normal(size=(50, 37)).astype(np.float32)
    weight[rows:].view(np.uint32)[...] = 0xFFA5A5A5
    updated = Binary("sub", Ref(1), Binary("mul", Ref(2), Ref(0)))
    spec = replace(TABLE, epilogue=updated, epilogue_inputs=(WHOLE, RATE), skips=True)
    (got,) = in_place(spec, index, d_y, [weight], 0.25, 2)
    gradient = np.zeros((50, 37))
    np.add.at(gradient, index, d_y)
    np.testing.assert_allclose(got[:rows], weight[:rows] - 0.25 * gradient[:rows], atol=1e-4)
    assert got[rows:].tobytes() == weight[rows:].tobytes()

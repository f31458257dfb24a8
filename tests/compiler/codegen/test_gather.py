"""Gather and scatter-add against NumPy: every index type, wrapping, duplicates, large tables, many rows and few."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.testing import build_object, run_kernel
from compiler.graph import Array
from compiler.kernel_spec import GatherSpec
from compiler.targets import load

# outer, rows, inner, count
SHAPES = [(1, 30_522, 128, 64), (1, 1000, 768, 197), (4, 50, 33, 20), (1, 10, 1, 100), (3, 7, 1, 40), (1, 5, 3, 4),
          (1, 1, 16, 1), (8, 197, 768, 1)]  # fmt: skip


def spec_of(kind: str, shape: tuple[int, int, int, int], **types: str) -> GatherSpec:
    return GatherSpec(kind, *shape, **types)  # type: ignore[arg-type]


def indices(spec: GatherSpec, seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).integers(-spec.rows, spec.rows, spec.count)
    return drawn.astype(np.int64 if spec.index_dtype == "i64" else np.int32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("index_dtype", ["i64", "i32"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_gather(shape: tuple[int, int, int, int], index_dtype: str, dtype: str) -> None:
    spec = spec_of("gather", shape, index_dtype=index_dtype, dtype=dtype)
    generator = np.random.default_rng(1)
    table = generator.normal(0, 100, (spec.outer, spec.rows, spec.inner)).astype("f4" if dtype == "f32" else "i8")
    index = indices(spec)
    np.testing.assert_array_equal(run_kernel(spec, [table, index])[0], table[:, index])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_scatter_add(shape: tuple[int, int, int, int], threads: int) -> None:
    spec = spec_of("scatter_add", shape)
    index = indices(spec)
    d_y = np.random.default_rng(2).normal(size=(spec.outer, spec.count, spec.inner)).astype(np.float32)
    want = np.zeros((spec.outer, spec.rows, spec.inner))
    np.add.at(want, (slice(None), index), d_y.astype(np.float64))
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

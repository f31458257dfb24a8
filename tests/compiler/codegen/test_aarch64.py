"""The same kernels compiled for AArch64, run under emulation, against the same references."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.kernels.expressions import Ref, Unary
from compiler.kernels.spec import GatherSpec, MapSpec, PoolSpec
from tests.compiler.codegen.emulation import run_emulated
from tests.compiler.codegen.reference import identity, picked, run_map, run_reduce, run_row
from tests.compiler.codegen.test_reduce import reduction
from tests.compiler.codegen.test_row import cross_entropy, inputs_of, layer_norm
from tests.compiler.codegen.test_scalar_math import SPECIAL, spread, ulps

FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "is_nan")


def test_functions() -> None:
    x = np.concatenate([SPECIAL, spread(-60, 6.4, 8001)])
    outputs = tuple(identity(x.size, dtype="bool" if op == "is_nan" else "f32") for op in FUNCTIONS)
    spec = MapSpec((x.size,), (identity(x.size),), outputs, tuple(Unary(op, Ref(0)) for op in FUNCTIONS))
    with np.errstate(all="ignore"):
        wanted = run_map(spec, [x])
    for op, got, want in zip(FUNCTIONS, run_emulated(spec, [x]), wanted, strict=True):
        if op == "is_nan":
            np.testing.assert_array_equal(got, want)
            continue
        nan = np.isnan(want)
        fit = ~nan if op not in ("sin", "cos") else ~nan & (np.abs(x) < 1e9)
        np.testing.assert_array_equal(np.isnan(got), nan, err_msg=op)
        assert ulps(got[fit], want[fit]) <= 2.5, op


def test_transpose_with_broadcast() -> None:
    spec = MapSpec((3, 40, 50), (picked((3, 50, 40), 0, 2, 1), picked((50,), 2)), (identity(3, 40, 50),), (Ref(0),))
    inputs = [np.random.default_rng(0).normal(size=access.type.shape).astype(np.float32) for access in spec.inputs]
    np.testing.assert_array_equal(run_emulated(spec, inputs)[0], run_map(spec, inputs)[0])


@pytest.mark.parametrize(("extents", "reduced"), [((3000, 13), (0,)), ((64, 333), (1,)), ((50_000,), (0,))], ids=str)
def test_sums_with_parts(extents: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    spec = reduction(extents, reduced)
    x = np.random.default_rng(0).uniform(0.5, 1.5, extents).astype(np.float32)
    np.testing.assert_allclose(run_emulated(spec, [x])[0], run_reduce(spec, [x]), rtol=1e-6)


@pytest.mark.parametrize("make", [cross_entropy, layer_norm])
def test_rows(make: object) -> None:
    spec = make(33, 197)  # type: ignore[operator]
    inputs = inputs_of(spec)
    for got, want in zip(run_emulated(spec, inputs), run_row(spec, inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_pool_and_scatter() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 8, 8, 11)).astype(np.float32)
    pool = PoolSpec("max", 2, 8, 8, 11, 4, 4, (2, 2), (2, 2), (0, 0, 0, 0), dtype="f32")
    want = x.reshape(2, 4, 2, 4, 2, 11).max(axis=(2, 4))
    np.testing.assert_array_equal(run_emulated(pool, [x])[0], want)
    index, d_y = generator.integers(0, 9, 30), generator.normal(size=(1, 30, 21)).astype(np.float32)
    table = np.zeros((1, 9, 21))
    np.add.at(table, (slice(None), index), d_y)  # type: ignore[arg-type]  # NumPy takes tuples too
    scatter = GatherSpec("scatter_add", 1, 9, 21, 30, dtype="f32")
    np.testing.assert_allclose(run_emulated(scatter, [index, d_y])[0], table, atol=1e-5)

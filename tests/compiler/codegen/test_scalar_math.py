"""The polynomial functions against NumPy float64, over wide ranges and at the special values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.graph import Array
from compiler.kernels.expressions import Binary, Const, Expr, Ref, Unary
from compiler.kernels.spec import MapSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.reference import identity, value
from tests.kernel_harness.assembly import assembly
from tests.kernel_harness.launch import run_kernel
from tests.kernel_harness.machine import native_target

Floats = NDArray[np.float32]


def apply(expr: Expr, *inputs: Floats) -> Floats:
    """The expression over flat f32 arrays, by a compiled kernel."""
    size = inputs[0].size
    spec = MapSpec((size,), tuple(identity(size) for _ in inputs), (identity(size),), (expr,))
    (result,) = run_kernel(spec, inputs)
    return result.astype(np.float32)


def ulps(got: Floats, want: Array) -> float:
    """The largest error in units in the last place of the exact value (subnormals included)."""
    exact = np.asarray(want, np.float64)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.float32(2.0**-126))).astype(np.float64)
    return float(np.max(np.abs(got[finite] - exact[finite]) / unit))


def spread(low_exponent: float, high_exponent: float, count: int = 200_001) -> Floats:
    """Both signs, evenly over the exponents, and evenly over the numbers in between."""
    steps = np.linspace(low_exponent, high_exponent, count // 4)
    sizes = np.concatenate([2.0**steps, np.linspace(0, 2.0 ** min(high_exponent, 7), count // 4)])
    return np.concatenate([sizes, -sizes]).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "limit"),
    [
        ("exp", spread(-30, 6.8), 1.0),
        ("log", np.abs(spread(-148, 127.9)), 1.0),
        ("tanh", spread(-60, 8), 2.0),
        ("sigmoid", spread(-60, 6.5), 2.5),
        ("erf", spread(-60, 8), 1.5),
        ("sin", spread(-30, 29.9), 1.5),
        ("cos", spread(-30, 29.9), 1.5),
        ("atan", spread(-60, 127), 2.0),
        ("sqrt", np.abs(spread(-140, 127)), 0.5001),
        ("rsqrt", np.abs(spread(-120, 127)), 1.5),
        ("reciprocal", spread(-120, 120), 0.5001),
    ],
)
def test_error_stays_within_the_stated_ulps(op: str, inputs: Floats, limit: float) -> None:
    with np.errstate(all="ignore"):
        want = value(Unary(op, Ref(0)), [inputs.astype(np.float64)])
    got = apply(Unary(op, Ref(0)), inputs)
    assert ulps(got, np.where((got == 0) & _may_be_zero(op, want), 0, want)) <= limit


def _may_be_zero(op: str, want: Array) -> NDArray[np.bool_]:
    """Where a power of e is so small that it is given as 0."""
    return np.asarray((want < 2.0**-125) & (op in ("exp", "sigmoid")))


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3.4e38, -3.4e38, 88.8, -103.9, -104.5, 200],
    np.float32,
)


@pytest.mark.parametrize("op", ["exp", "log", "tanh", "sigmoid", "erf", "atan", "sqrt", "sign", "abs", "floor", "neg"])
def test_special_values_are_those_of_numpy(op: str) -> None:
    with np.errstate(all="ignore"):
        want = value(Unary(op, Ref(0)), [SPECIAL.astype(np.float64)])
    got = apply(Unary(op, Ref(0)), SPECIAL)
    want = np.where((got == 0) & _may_be_zero(op, want), 0, want)
    assert ulps(got[~np.isnan(want)], want[~np.isnan(want)]) <= 2.5
    assert np.isnan(got[np.isnan(want)]).all()


def test_exp_reaches_the_ends_of_the_range() -> None:
    inputs = np.array([-86.9, 88.4, 88.72, 88.722, 88.723, 88.73, 89.0, 89.5, 1e30], np.float32)
    with np.errstate(over="ignore"):
        want = np.exp(inputs.astype(np.float64))
    assert ulps(apply(Unary("exp", Ref(0)), inputs), want) <= 1.0


@pytest.mark.parametrize("constant", [1.4142135, 3.0, -8.0, 1e-3])
def test_division_by_a_constant(constant: float) -> None:
    inputs = spread(-100, 100)
    want = inputs.astype(np.float64) / np.float32(constant)
    assert ulps(apply(Binary("div", Ref(0), Const(constant)), inputs), want) <= (0.5001 if constant == -8 else 1.5)


def test_attention_masks_vanish() -> None:
    got = apply(Unary("exp", Ref(0)), np.array([-np.inf, -1e30, -3.4e38, -1e4], np.float32))
    np.testing.assert_array_equal(got, np.zeros(4, np.float32))


def test_is_nan_and_conversions_to_bool() -> None:
    spec = MapSpec(
        (15,), (identity(15),), (identity(15, dtype="bool"),) * 2, (Unary("is_nan", Ref(0)), Unary("to_bool", Ref(0)))
    )
    nans, truths = run_kernel(spec, [SPECIAL])
    np.testing.assert_array_equal(nans, np.isnan(SPECIAL))
    np.testing.assert_array_equal(truths, SPECIAL.astype(bool))


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_waves_of_infinities_and_nan_are_nan_and_of_huge_numbers_bounded(op: str) -> None:
    got = apply(Unary(op, Ref(0)), np.array([np.inf, -np.inf, np.nan, 1e20, -3e38], np.float32))
    assert np.isnan(got[:3]).all()
    assert (np.abs(got[3:]) <= 1).all()


def test_power_is_exact_to_an_ulp_over_its_range() -> None:
    generator = np.random.default_rng(3)
    x = np.exp(generator.uniform(-20, 20, 50_000)).astype(np.float32)
    y = generator.uniform(-8, 8, 50_000).astype(np.float32)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(apply(Binary("pow", Ref(0), Ref(1)), x, y), want) <= 1.0


def test_power_at_special_values_is_that_of_c() -> None:
    bases = np.array([0.0, 1.0, -1.0, 2.0, -2.0, -0.5, np.inf, -np.inf, np.nan, 1e-40, 3e38], np.float32)
    exponents = np.array([0.0, 1.0, -1.0, 2.0, 3.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 200.0], np.float32)
    x, y = (grid.ravel() for grid in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    got = apply(Binary("pow", Ref(0), Ref(1)), x, y)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert ulps(got[~np.isnan(want)], want[~np.isnan(want)]) <= 1.0


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0, -2.0, 1.5, -3.0])
def test_constant_exponents(exponent: float) -> None:
    x = np.linspace(0.1, 30, 999, dtype=np.float32)
    got = apply(Binary("pow", Ref(0), Const(exponent)), x)
    assert ulps(got, x.astype(np.float64) ** exponent) <= 2.0


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_pass_nan_on_from_either_side(op: str) -> None:
    x = np.array([np.nan, 1.0, np.nan, 2.0, -np.inf], np.float32)
    y = np.array([1.0, np.nan, np.nan, 3.0, np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        want = np.maximum(x, y) if op == "max" else np.minimum(x, y)
    np.testing.assert_array_equal(apply(Binary(op, Ref(0), Ref(1)), x, y), want)


@pytest.mark.parametrize("target", [native_target(), "raspberry-pi-4"])
def test_functions_stay_vectorised(target: str) -> None:
    for op in ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos"):
        spec = MapSpec((4096,), (identity(4096),), (identity(4096),), (Unary(op, Ref(0)),))
        text = assembly(spec, load_cpu(target))
        for name in ("expf", "logf", "tanhf", "erff", "sinf", "cosf", "powf", "floorf", "fmaf"):
            assert name not in text, f"{op} calls {name}"


def test_the_reference_itself_knows_erf() -> None:
    assert value(Unary("erf", Ref(0)), [np.array([0.5])])[0] == math.erf(0.5)

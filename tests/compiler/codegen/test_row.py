"""Row-wise kernels against NumPy float64: softmax, layer norm, cross-entropy and gradients, at real and odd widths."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Select, Stat, Unary
from compiler.kernels.spec import RowSpec
from compiler.targets import load
from tests.compiler.codegen.reference import identity, picked, run_row
from tests.kernel_harness.launch import build_object, run_kernel
from tests.sample import thinned

SHAPES = [(3, 1), (5, 7), (8, 10), (64, 128), (33, 197), (8, 1000), (256, 768), (2, 5000), (1, 70_001)]


def _plus(x: Expr, y: Expr) -> Expr:
    return Binary("add", x, y)


def _minus(x: Expr, y: Expr) -> Expr:
    return Binary("sub", x, y)


def _times(x: Expr, y: Expr) -> Expr:
    return Binary("mul", x, y)


def softmax(rows: int, width: int) -> RowSpec:
    shape = identity(rows, width)
    numerator = Unary("exp", _minus(Ref(0), Stat(0)))
    stages: tuple[tuple[str, Expr], ...] = (("max", Ref(0)), ("sum", numerator))
    return RowSpec(rows, width, (shape,), stages, (shape,), (Binary("div", numerator, Stat(1)),))  # type: ignore[arg-type]


def layer_norm(rows: int, width: int) -> RowSpec:
    """Outputs y, and per row the mean and the reciprocal deviation."""
    shape, scale = identity(rows, width), picked((width,), 1)
    once = picked((rows,), 0)
    mean = _times(Stat(0), Const(1 / width))
    centred = _minus(Ref(0), mean)
    inverse = Unary("rsqrt", _plus(_times(Stat(1), Const(1 / width)), Const(1e-5)))
    y = _plus(_times(_times(centred, inverse), Ref(1)), Ref(2))
    stages = (("sum", Ref(0)), ("sum", _times(centred, centred)))
    return RowSpec(rows, width, (shape, scale, scale), stages, (shape, once, once), (y, mean, inverse))  # type: ignore[arg-type]


def cross_entropy(rows: int, width: int) -> RowSpec:
    """Per-row loss and the gradient of the logits, from i64 labels."""
    shape = identity(rows, width)
    labels, once = picked((rows,), 0, dtype="i64"), picked((rows,), 0)
    is_label = Binary("eq", Index(1), Ref(1))
    numerator = Unary("exp", _minus(Ref(0), Stat(0)))
    chosen = Select(is_label, _minus(Ref(0), Stat(0)), Const(0.0))
    loss = _minus(Unary("log", Stat(1)), Stat(2))
    gradient = _minus(Binary("div", numerator, Stat(1)), Unary("to_f32", is_label))
    stages = (("max", Ref(0)), ("sum", numerator), ("sum", chosen))
    return RowSpec(rows, width, (shape, labels), stages, (once, shape), (loss, gradient))  # type: ignore[arg-type]


def softmax_gradient(rows: int, width: int) -> RowSpec:
    shape = identity(rows, width)
    stages = (("sum", _times(Ref(0), Ref(1))),)
    return RowSpec(rows, width, (shape, shape), stages, (shape,), (_times(Ref(0), _minus(Ref(1), Stat(0))),))  # type: ignore[arg-type]


def inputs_of(spec: RowSpec, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    arrays: list[Array] = []
    for access in spec.inputs:
        if access.type.dtype == "i64":
            arrays.append(generator.integers(0, spec.width, access.type.shape))
        else:
            arrays.append(generator.normal(1, 3, access.type.shape).astype(np.float32))
    return arrays


@pytest.mark.parametrize("shape", thinned(SHAPES, 4))
@pytest.mark.parametrize("make", [softmax, layer_norm, cross_entropy, softmax_gradient])
def test_rows_agree_with_float64(make: object, shape: tuple[int, int]) -> None:
    spec: RowSpec = make(*shape)  # type: ignore[operator]
    inputs = inputs_of(spec)
    for got, want in zip(run_kernel(spec, inputs), run_row(spec, inputs), strict=True):
        scale = np.max(np.abs(want)) + 1e-6
        assert np.max(np.abs(got - want)) <= 3e-6 * scale


def test_masked_positions_get_no_weight_and_no_nan() -> None:
    spec = softmax(4, 50)
    x = np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32)
    x[:, 30:] = -np.inf
    (got,) = run_kernel(spec, [x])
    np.testing.assert_array_equal(got[:, 30:], 0)
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-6)


def test_a_row_that_holds_nan_gives_nan_and_leaves_others_alone() -> None:
    x = np.ones((4, 37), np.float32)
    x[2, 35] = np.nan
    (got,) = run_kernel(softmax(4, 37), [x])
    assert np.isnan(got[2]).all()
    np.testing.assert_allclose(got[[0, 1, 3]], 1 / 37, rtol=1e-6)


def test_rows_need_not_be_contiguous() -> None:
    rows, width = 40, 90
    column = Access(TensorType("f32", (width, rows)), (Affine(((1, 1),)), Affine(((0, 1),))))
    spec = RowSpec(rows, width, (column,), (("sum", Ref(0)),), (column,), (Binary("sub", Ref(0), Stat(0)),))
    inputs = [np.random.default_rng(2).normal(size=(width, rows)).astype(np.float32)]
    np.testing.assert_allclose(run_kernel(spec, inputs)[0], run_row(spec, inputs)[0], atol=1e-5)


def test_threads_do_not_change_a_bit() -> None:
    spec = layer_norm(300, 97)
    inputs = inputs_of(spec)
    alone, together = (run_kernel(spec, inputs, threads=threads) for threads in (1, 3))
    for x, y in zip(alone, together, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4"])
@pytest.mark.parametrize("make", [softmax, layer_norm, cross_entropy])
def test_other_targets_build(make: object, target: str) -> None:
    assert build_object(make(64, 197), load(target)).object_bytes  # type: ignore[operator]

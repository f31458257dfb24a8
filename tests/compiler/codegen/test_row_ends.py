"""Row kernels where nothing is seen and where maxima tie, natively and on AArch64, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from compiler.graph import Array, TensorType
from compiler.kernels.spec import PoolSpec, RowSpec
from compiler.ops import OPERATORS
from tests.compiler.codegen.emulation import run_emulated
from tests.kernel_harness.launch import run_kernel

ROWS, WIDTH = 9, 37
WIDE = TensorType("f32", (ROWS, WIDTH))
COLUMN = TensorType("f32", (ROWS,))
TARGETS = ("native", "raspberry-pi-4")


def run_on(target: str, spec: RowSpec | PoolSpec, inputs: list[Array]) -> Array:
    return run_kernel(spec, inputs)[0] if target == "native" else run_emulated(spec, inputs)[0]


def row_kernel(op: str, *inputs: TensorType) -> RowSpec:
    record = OPERATORS[op]
    spec = record.lower(inputs, record.infer(inputs, {}), {})
    assert isinstance(spec, RowSpec)
    return spec


def hidden_rows() -> Array:
    """Row 1 is -inf, row 2 the lowest number, row 3 both, row 4 half -inf."""
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    x[1], x[2], x[3], x[4, ::2] = -np.inf, np.finfo(np.float32).min, -np.inf, -np.inf
    x[3, 5:9] = np.finfo(np.float32).min
    return x


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "safe_softmax": lambda x: torch._safe_softmax(x, -1),
    "log_sum_exp": lambda x: torch.logsumexp(x, -1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_rows_that_see_nothing(op: str, target: str) -> None:
    x = hidden_rows()
    want = FUNCTIONS[op](torch.from_numpy(x).double()).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(run_on(target, row_kernel(op, WIDE), [x]), want, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_of_nan_behind_a_guard_passes_nothing_on(target: str) -> None:
    """Row 1 is NaN and guarded; row 2 is NaN and is not."""
    rng = np.random.default_rng(3)
    y = torch.softmax(torch.from_numpy(rng.normal(size=(ROWS, WIDTH))), -1).numpy().astype(np.float32)
    d_y = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    want = y * (d_y - (y * d_y).sum(-1, keepdims=True))
    y[1:3], d_y[1], want[1] = np.nan, 0.0, 0.0
    found = run_on(target, row_kernel("softmax_grad", WIDE, WIDE), [y, d_y])
    assert np.isnan(found[2]).all()
    np.testing.assert_allclose(np.delete(found, 2, 0), np.delete(want, 2, 0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_equal_maxima_share(target: str) -> None:
    x = np.random.default_rng(1).integers(0, 4, (ROWS, WIDTH)).astype(np.float32)
    x[2] = -np.inf
    d_y = np.random.default_rng(2).normal(size=ROWS).astype(np.float32)
    leaf = torch.from_numpy(x).double().requires_grad_()
    leaf.amax(-1).backward(torch.from_numpy(d_y).double())
    assert leaf.grad is not None
    found = run_on(target, row_kernel("reduce_max_grad", WIDE, COLUMN), [x, d_y])
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_with_nan_says_so(target: str) -> None:
    x = np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32)
    x[3, 8] = np.nan
    found = run_on(target, row_kernel("reduce_max_grad", WIDE, COLUMN), [x, np.ones(ROWS, np.float32)])
    assert np.isnan(found[3]).any()
    assert np.isfinite(np.delete(found, 3, 0)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_maximum_of_a_window_takes_its_gradient(target: str) -> None:
    """Windows of padding and -inf too."""
    x = np.random.default_rng(0).integers(0, 3, (2, 7, 6, 11)).astype(np.float32)
    x[0, :3, :3] = -np.inf
    d_y = np.random.default_rng(2).normal(size=(2, 4, 3, 11)).astype(np.float32)
    leaf = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).double().requires_grad_()
    y = torch.nn.functional.max_pool2d(leaf, 3, 2, 1)
    y.backward(torch.from_numpy(d_y.transpose(0, 3, 1, 2).copy()).double())
    assert leaf.grad is not None
    spec = PoolSpec("max_grad", 2, 7, 6, 11, 4, 3, (3, 3), (2, 2), (1, 1, 1, 1), dtype="f32")
    want = leaf.grad.numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(run_on(target, spec, [x, d_y]), want, atol=1e-6)
    keeping = replace(spec, kind="max_places")
    maxima, words = run_kernel(keeping, [x]) if target == "native" else run_emulated(keeping, [x])
    np.testing.assert_array_equal(maxima, y.detach().numpy().transpose(0, 2, 3, 1))
    np.testing.assert_allclose(run_on(target, replace(spec, kind="places_grad"), [words, d_y]), want, atol=1e-6)

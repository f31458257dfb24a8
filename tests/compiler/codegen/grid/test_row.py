"""Row-wise kernels on a grid against NumPy float64: items along rows or across them, several rows a group, in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.grid.row import passes
from compiler.graph import Array, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Const, Expr, Index, Ref, Stat, Unary
from compiler.kernels.spec import RowSpec
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity, picked, run_row
from tests.compiler.codegen.test_row import cross_entropy, inputs_of, layer_norm, softmax, softmax_gradient
from tests.kernel_harness.launch import run_kernel
from tests.sample import thinned

Make = Callable[[int, int], RowSpec]
SHAPES = [(3, 1), (5, 7), (129, 10), (33, 197), (4, 1000), (1, 40_001)]


def agree(got: Array, want: Array) -> None:
    assert np.max(np.abs(got - want)) <= 3e-6 * (np.max(np.abs(want)) + 1e-6)


@pytest.mark.parametrize("shape", thinned(SHAPES, 2))
@pytest.mark.parametrize("make", [softmax, layer_norm, cross_entropy, softmax_gradient])
def test_rows_agree_with_float64(make: Make, shape: tuple[int, int]) -> None:
    spec = make(*shape)
    inputs = inputs_of(spec)
    for got, want in zip(run_kernel(spec, inputs, target=OPENCL), run_row(spec, inputs), strict=True):
        agree(got, want)


def test_statistics_that_need_no_other_share_a_walk() -> None:
    assert passes(softmax(4, 5)) == [[0], [1]]
    assert passes(layer_norm(4, 5)) == [[0], [1]]
    assert passes(cross_entropy(4, 5)) == [[0], [1, 2]]


@pytest.mark.parametrize("shape", [(40, 90), (300, 11), (3, 5000)], ids=str)
@pytest.mark.parametrize("make", [softmax, layer_norm])
def test_rows_across_memory(make: Make, shape: tuple[int, int]) -> None:
    """What lies [width, rows] is walked with neighbouring items in neighbouring rows."""
    rows, width = shape
    across = Access(TensorType("f32", (width, rows)), (Affine(((1, 1),)), Affine(((0, 1),))))
    straight = make(rows, width)
    spec = replace(straight, inputs=(across, *straight.inputs[1:]), outputs=(across, *straight.outputs[1:]))
    inputs = inputs_of(spec)
    for got, want in zip(run_kernel(spec, inputs, target=OPENCL), run_row(spec, inputs), strict=True):
        agree(got, want)


@pytest.mark.parametrize("shape", [(5, 7), (70, 200), (2, 3000)], ids=str)
def test_outputs_take_the_place_of_inputs(shape: tuple[int, int]) -> None:
    """A softmax over its own logits, and one plus a residual over the residual."""
    spec = softmax(*shape)
    (x,) = inputs_of(spec)
    agree(run_in_place(spec, [x], [0])[0], run_row(spec, [x])[0])
    ended = replace(spec, inputs=(*spec.inputs, identity(*shape)), exprs=(Binary("add", spec.exprs[0], Ref(1)),))
    inputs = inputs_of(ended)
    agree(run_in_place(ended, inputs, [1])[0], run_row(ended, inputs)[0])


def test_several_outputs_over_each_others_inputs() -> None:
    """Both are worked out before either is written; a value per row takes the place of one that was read."""
    matrix, once = identity(20, 70), picked((20,), 0)
    exprs: tuple[Expr, ...] = (
        Binary("add", Ref(0), Binary("mul", Ref(1), Stat(0))),
        Binary("sub", Ref(0), Ref(1)),
        Binary("add", Ref(2), Stat(0)),
    )
    spec = RowSpec(20, 70, (matrix, matrix, once), (("sum", Ref(1)),), (matrix, matrix, once), exprs)
    inputs = inputs_of(spec)
    for got, want in zip(run_in_place(spec, inputs, [0, 1, 2]), run_row(spec, inputs), strict=True):
        agree(got, want)


def test_nothing_seen_and_nan() -> None:
    x = np.random.default_rng(1).normal(size=(6, 50)).astype(np.float32)
    x[0, 30:], x[2, 35] = -np.inf, np.nan
    (got,) = run_kernel(softmax(6, 50), [x], target=OPENCL)
    np.testing.assert_array_equal(got[0, 30:], 0)
    assert np.isnan(got[2]).all()
    np.testing.assert_allclose(np.delete(got, 2, 0).sum(1), 1, rtol=1e-6)


def test_guarded_reads_and_positions() -> None:
    """The row above (0 above the first) and the column's number; the maximum is of whole numbers."""
    rows, width = 9, 21
    above = Access(TensorType("f32", (rows, width)), (Affine(((0, 1),), -1), Affine(((1, 1),))), 0.0)
    whole = identity(rows, width, dtype="i64")
    last = Binary("sub", Stat(1), Index(1))
    spec = RowSpec(
        rows,
        width,
        (above, whole),
        (("sum", Ref(0)), ("max", Binary("mul", Ref(1), Const(-1)))),
        (identity(rows, width), identity(rows, width, dtype="i64")),
        (Binary("mul", Ref(0), Stat(0)), last),
    )
    inputs = inputs_of(spec)
    got = run_kernel(spec, inputs, target=OPENCL)
    want = run_row(spec, inputs)
    agree(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def test_rows_without_statistics() -> None:
    matrix = identity(70, 33)
    spec = RowSpec(70, 33, (matrix,), (), (matrix,), (Unary("exp", Ref(0)),))
    x = np.random.default_rng(0).normal(size=(70, 33)).astype(np.float32)
    agree(run_kernel(spec, [x], target=OPENCL)[0], run_row(spec, [x])[0])

"""The norm gradient's kernel for a grid over odd shapes, against the operator's float64 meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from compiler.codegen.grid.norm_grad_plan import plan, workspace_bytes
from compiler.graph import AttrValue
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import NormGradSpec
from compiler.ops import OPERATORS
from compiler.targets import GridTarget, load
from tests.compiler.codegen import test_normalization
from tests.compiler.codegen.grid.in_place import OPENCL, run_in_place
from tests.compiler.codegen.reference import identity
from tests.compiler.codegen.test_normalization import ALL
from tests.kernel_harness.launch import run_kernel
from tests.sample import sample

TARGET = cast(GridTarget, load(OPENCL))


@pytest.mark.parametrize("centred", sample([True, False], {"True"}))
@pytest.mark.parametrize(
    ("rows", "width", "wanted"),
    [
        (7, 37, ALL),
        (3, 5, ALL),
        (1, 1000, ALL),
        (500, 48, ALL),
        (41, 768, ALL),
        (30, 20, (True, False, False)),
        (300, 20, (False, False, True)),
        (300, 20, (False, True, False)),
        (130, 70, (True, False, True)),
        (33, 70, (True, True, False)),
    ],
)
def test_the_gradient(rows: int, width: int, wanted: tuple[bool, bool, bool], centred: bool) -> None:
    """With a residual added to d_x; some shapes share columns between groups, some do not."""
    test_normalization.test_the_gradient(rows, width, wanted, centred, OPENCL)


def test_many_rows_are_summed_in_parts() -> None:
    few, many = (NormGradSpec(rows, 48, 1e-5, True, dtype="f32") for rows in (7, 500))
    assert plan(few, TARGET).columns.parts == 1
    assert plan(many, TARGET).columns.parts > 1
    assert workspace_bytes(few, TARGET, 1) == 2 * 7 * 4
    of_x = NormGradSpec(500, 48, 1e-5, True, (True, False, False), dtype="f32")
    assert workspace_bytes(of_x, TARGET, 1) == 0


@pytest.mark.parametrize("centred", [True, False])
def test_d_x_takes_the_place_of_a_residual(centred: bool) -> None:
    rng, shape = np.random.default_rng(0), (150, 35)
    x, weight, d_y, residual = (rng.normal(size=s).astype(np.float32) for s in (shape, shape[1:], shape, shape))
    spec = NormGradSpec(*shape, 1e-5, centred, dtype="f32")
    spec = replace(spec, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(identity(*shape),))
    attrs: dict[str, AttrValue] = {"epsilon": 1e-5, "centred": centred, "wanted": ALL}
    want = list(OPERATORS["layer_norm_grad"].evaluate([a.astype(np.float64) for a in (x, weight, d_y)], attrs))
    want[0] = want[0] + residual
    for got, expected in zip(run_in_place(spec, [x, weight, d_y, residual], [3]), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5)


def test_a_large_mean_leaves_the_variance() -> None:
    """x = 1000 + noise: a variance from sums of squares would have no correct digit."""
    rng = np.random.default_rng(1)
    x = (1000 + rng.normal(size=(20, 300))).astype(np.float32)
    weight, d_y = rng.normal(size=300).astype(np.float32), rng.normal(size=(20, 300)).astype(np.float32)
    attrs: dict[str, AttrValue] = {"epsilon": 1e-5, "centred": True, "wanted": ALL}
    want = OPERATORS["layer_norm_grad"].evaluate([a.astype(np.float64) for a in (x, weight, d_y)], attrs)
    got = run_kernel(NormGradSpec(20, 300, 1e-5, True, dtype="f32"), [x, weight, d_y], target=OPENCL)
    for one, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(one, expected, atol=2e-3)

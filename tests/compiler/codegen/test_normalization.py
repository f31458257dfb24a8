"""The norm gradient's kernel over odd shapes, against the operator's float64 meaning."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.graph import AttrValue, TensorType
from compiler.kernels.access import Access, Affine
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import NormGradSpec
from compiler.ops import OPERATORS
from tests.kernel_harness.launch import run_kernel
from tests.sample import sample

ALL = (True, True, True)


@pytest.mark.parametrize("target", sample([None, "x86-64-v3"], {"x86-64-v3"}))
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("rows", "width", "wanted"),
    [
        (300, 48, ALL),
        (7, 37, ALL),
        (3, 5, ALL),
        (41, 768, ALL),
        (30, 20, (True, False, False)),
        (30, 20, (False, False, True)),
        (30, 20, (False, True, False)),
    ],
)
def test_the_gradient(
    rows: int, width: int, wanted: tuple[bool, bool, bool], centred: bool, target: str | None
) -> None:
    rng = np.random.default_rng(rows)
    x, weight, d_y, residual = (rng.normal(size=s) for s in ((rows, width), (width,), (rows, width), (rows, width)))
    attrs: dict[str, AttrValue] = {"epsilon": 1e-5, "centred": centred, "wanted": wanted}
    want = list(OPERATORS["layer_norm_grad"].evaluate([x + 1.5, weight, d_y], attrs))
    spec = NormGradSpec(rows, width, 1e-5, centred, wanted, dtype="f32")
    inputs = [x + 1.5, weight, d_y]
    if wanted[0]:
        access = Access(TensorType("f32", (rows, width)), (Affine(((0, 1),)), Affine(((1, 1),))))
        spec = NormGradSpec(rows, width, 1e-5, centred, wanted, Binary("add", Ref(0), Ref(1)), (access,), dtype="f32")
        want[0] = want[0] + residual
        inputs.append(residual)
    for got, expected in zip(
        run_kernel(spec, [a.astype(np.float32) for a in inputs], target=target), want, strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5)

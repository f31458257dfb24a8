"""Matrix products whose B is stored in panels, against NumPy float64, and which panels are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.matmul.plan import panel_width, workspace_bytes
from compiler.kernels.expressions import Binary, Const, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import load_cpu
from tests.kernel_harness.launch import run_kernel
from tests.kernel_harness.machine import native_target


def product(m: int, n: int, k: int, *, transposed: bool = False, panel: int = 0) -> MatmulSpec:
    return MatmulSpec(1, m, n, k, b_transposed=transposed, a_batched=False, b_batched=False, b_panel=panel, dtype="f32")


LANES = load_cpu(native_target()).vector_bits // 32
"""Panels are whole vectors of this machine, up to four of them (`panel_widths`)."""
PRODUCTS = {
    "rows": product(200, 96, 90, panel=3 * LANES),
    "columns": product(70, 192, 800, panel=4 * LANES),
    "one row tile": product(3, 128, 1100, panel=2 * LANES),
    "narrow": product(130, 16, 33, panel=LANES),
    "batch": MatmulSpec(4, 30, 64, 40, b_batched=False, b_panel=2 * LANES, dtype="f32"),
    "epilogue": replace(product(65, 64, 1000, panel=4 * LANES), epilogue=Binary("max", Ref(0), Const(0.0))),
}


@pytest.mark.parametrize("name", list(PRODUCTS))
@pytest.mark.parametrize("threads", [1, 2])
def test_the_product_is_that_of_the_matrix_in_the_panels(name: str, threads: int) -> None:
    spec = PRODUCTS[name]
    rng = np.random.default_rng(3)
    a = rng.standard_normal((spec.batch * spec.m, spec.k), dtype=np.float32)
    b = rng.standard_normal((spec.k, spec.n), dtype=np.float32)
    panels = np.stack(np.split(b, spec.n // spec.b_panel, axis=1))
    a_shape = (spec.batch, spec.m, spec.k) if spec.a_batched else (spec.m, spec.k)
    (found,) = run_kernel(spec, [a.reshape(a_shape), panels], threads=threads)
    exact = (a.astype(np.float64) @ b).reshape(found.shape)
    exact = np.maximum(exact, 0.0) if name == "epilogue" else exact
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=2e-6 * np.sqrt(spec.k) * np.abs(exact).max())


def test_panels_divide_the_columns_and_save_the_packing() -> None:
    target = load_cpu(native_target())
    for m, n, k in ((392, 1280, 320), (196, 512, 2048), (64, 48, 640), (50, 24, 64), (50, 40, 64)):
        spec = product(m, n, k, transposed=True)
        width = panel_width(spec, target, 2)
        assert width == 0 or (n % width == 0 and width % (target.vector_bits // 32) == 0)
        if width:
            stored = replace(spec, b_transposed=False, b_panel=width)
            assert workspace_bytes(stored, target, 2) < workspace_bytes(spec, target, 2)
    assert panel_width(product(49, 512, 2048, transposed=True), target, 2)
    assert not panel_width(product(49, 510, 2048, transposed=True), target, 2)
    assert not panel_width(MatmulSpec(8, 64, 64, 64, dtype="f32"), target, 2)

"""What the table of kernel families answers beside building: what a kernel may hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.codegen.family import can_hold, can_update
from compiler.kernels.expressions import Binary, Expr, Ref, Unary
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, GatherSpec, KernelSpec, MatmulSpec, PoolSpec
from compiler.targets import load

TARGET = load("x86-64-v3")
PRODUCT = MatmulSpec(1, 64, 64, 512, a_transposed=True, dtype="f32")
CONV = ConvSpec("forward", 1, 8, 8, 16, 16, 8, 8, (3, 3), (1, 1), (1, 1, 1, 1), dtype="f32")
DEPTHWISE = DepthwiseSpec("forward", 1, 8, 8, 16, 8, 8, (3, 3), (1, 1), (1, 1, 1, 1), dtype="f32")
POOL = PoolSpec("max", 1, 8, 8, 16, 4, 4, (2, 2), (2, 2), (0, 0, 0, 0), dtype="f32")
TABLE = GatherSpec("scatter_add", 1, 100, 16, 32, dtype="f32")
RELU: Expr = Binary("max", Ref(0), Ref(1))
GELU: Expr = Binary("mul", Ref(0), Unary("erf", Ref(0)))


@pytest.mark.parametrize("spec", [PRODUCT, CONV, DEPTHWISE])
def test_a_register_tile_holds_no_transcendental_function(spec: KernelSpec) -> None:
    assert can_hold(spec, RELU, TARGET)
    assert not can_hold(spec, GELU, TARGET)


def test_a_kernel_that_is_not_unrolled_holds_anything() -> None:
    assert can_hold(POOL, GELU, TARGET)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PRODUCT, True),
        (replace(PRODUCT, k=513), False),
        (replace(PRODUCT, a_transposed=False), False),
        (replace(PRODUCT, batch=2), False),
        (replace(PRODUCT, extra_outputs=(Ref(0),)), False),
        (TABLE, True),
        (replace(TABLE, count=(1 << 24) + 1), False),
        (replace(TABLE, outer=2), False),
        (CONV, False),
        (POOL, False),
    ],
)
def test_which_gradients_may_become_updates(spec: KernelSpec, expected: bool) -> None:
    assert can_update(spec, TARGET) is expected

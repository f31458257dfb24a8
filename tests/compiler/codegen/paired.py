"""Products of bfloat16: specs, operands, and what is right: both operands rounded by somebody else (ml_dtypes),
multiplied and summed in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np

from compiler.graph import Array, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.program.halves import Held
from compiler.program.operands import operand_types
from tests.compiler.codegen.halves import multiplied

HALF: Held = ("bf16", None, "bf16")
BOTH: Held = ("bf16", "bf16", None)


paired = partial(multiplied, "bf16")
RESIDUAL = identity(TensorType("f32", (1, 45, 67)))
PLAIN = MatmulSpec(1, 45, 67, 130, dtype="f32")
SPECS = {
    "forward": paired(PLAIN, HALF),
    "forward, weights as columns": paired(replace(PLAIN, b_transposed=True), HALF),
    "weight gradient": paired(replace(PLAIN, a_transposed=True), BOTH),
    "weight gradient of columns": paired(replace(PLAIN, a_transposed=True, b_transposed=True), BOTH),
    "f32 beside halves": paired(PLAIN, (None, "bf16", "bf16")),
    "long": paired(MatmulSpec(1, 70, 260, 3000, dtype="f32"), HALF),
    "long, with sums": paired(MatmulSpec(1, 45, 67, 2200, dtype="f32", a_transposed=True, sums=True), (*BOTH, None)),
    "few rows": paired(MatmulSpec(1, 2, 500, 600, dtype="f32"), HALF),
    "batch over one B": paired(MatmulSpec(4, 30, 64, 128, dtype="f32", b_batched=False), HALF),
    "a residual": paired(
        replace(PLAIN, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(RESIDUAL,)),
        ("bf16", None, "bf16", "bf16"),
    ),
}


def drawn(spec: MatmulSpec) -> tuple[list[Array], list[Array]]:
    """Inputs as the kernel takes them, and as it may count with them."""
    rng, given, meant = np.random.default_rng(3), [], []
    for tensor in operand_types(spec).inputs:
        plain = rng.standard_normal(tensor.shape, np.float32)
        half = plain.astype(ml_dtypes.bfloat16)
        given.append(half.view("V2") if tensor.dtype == "bf16" else plain)
        meant.append(half.astype(np.float64))
    return given, meant


def check(spec: MatmulSpec, outputs: Sequence[Array], meant: list[Array]) -> None:
    a, b = meant[:2]
    a = np.swapaxes(a, -1, -2) if spec.a_transposed else a
    wanted = [np.broadcast_to(a @ (np.swapaxes(b, -1, -2) if spec.b_transposed else b), (spec.batch, spec.m, spec.n))]
    wanted[0] = wanted[0] + sum(meant[2:])
    wanted += [b.reshape(-1, spec.n).sum(axis=0)] if spec.sums else []
    for found, want, tensor in zip(outputs, wanted, operand_types(spec).outputs, strict=True):
        half = tensor.dtype == "bf16"
        values = found.view(ml_dtypes.bfloat16).astype(np.float64) if half else found
        np.testing.assert_allclose(values, want, rtol=2.0**-8 if half else 0, atol=2e-6 * np.abs(want).max())

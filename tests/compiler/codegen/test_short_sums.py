"""Products of float16 in short sums: within the bound that is stated, beside float64. Emulated."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from compiler.codegen.family import choices_of
from compiler.codegen.tile.short_sums import SHORT
from compiler.graph import Array, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.program.halves import Held
from compiler.program.operands import operand_types
from compiler.targets import load_cpu, names
from tests.compiler.codegen.emulation import run_emulated
from tests.compiler.codegen.halves import multiplied
from tests.kernel_harness.assembly import assembly

TARGET = "raspberry-pi-5"
U = 2.0**-11
"""Half the distance of float16's neighbours of 1."""
WEIGHTS: Held = ("f16", None, "f16")
GRADIENT: Held = ("f16", "f16", None)


short = partial(multiplied, "f16")


PLAIN = MatmulSpec(1, 45, 67, 130, dtype="f32")
RESIDUAL = identity(TensorType("f32", (1, 45, 67)))
SPECS = {
    "forward": short(PLAIN, WEIGHTS),
    "forward, weights as columns": short(replace(PLAIN, k=191, b_transposed=True), WEIGHTS),
    "weight gradient": short(replace(PLAIN, k=1027, a_transposed=True), GRADIENT),
    "weight gradient, with sums": short(replace(PLAIN, k=64, a_transposed=True, sums=True), (*GRADIENT, None)),
    "few steps": short(replace(PLAIN, k=33), WEIGHTS),
    "batch over one B": short(MatmulSpec(4, 30, 64, 128, dtype="f32", b_batched=False), WEIGHTS),
    "a residual": short(
        replace(PLAIN, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(RESIDUAL,)),
        ("f16", None, "f16", "f16"),
    ),
}


def drawn(spec: MatmulSpec, scale: float = 1.0) -> tuple[list[Array], list[Array]]:
    """Inputs as the kernel takes them, and as it may count with them: rounded to float16."""
    rng, given, meant = np.random.default_rng(3), [], []
    for tensor in operand_types(spec).inputs:
        plain = scale * rng.standard_normal(tensor.shape, np.float32)
        given.append(plain.astype(np.float16) if tensor.dtype == "f16" else plain)
        meant.append(plain.astype(np.float16).astype(np.float64))
    return given, meant


def check(spec: MatmulSpec, outputs: list[Array], meant: list[Array]) -> None:
    a, b = meant[:2]
    a = np.swapaxes(a, -1, -2) if spec.a_transposed else a
    b = np.swapaxes(b, -1, -2) if spec.b_transposed else b
    exact = a @ b + sum(meant[2:])
    bound = (SHORT / 2 + 2) * U * (np.abs(a) @ np.abs(b)) + spec.k * 2.0**-25
    held = outputs[0].astype(np.float64)
    rounding = U * np.abs(exact) if outputs[0].dtype == np.float16 else 2.0**-20 * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(held - exact) <= bound + rounding)
    assert np.abs(held - exact).max() > 1e-4 * np.abs(exact).max(), "nothing was summed in float16"
    relative = np.linalg.norm(held - exact) / np.linalg.norm(exact)
    assert relative < 3 * U, "as a rule errors cancel"
    if spec.sums:
        np.testing.assert_allclose(outputs[1], b.reshape(-1, spec.n).sum(axis=0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_short_sums_are_within_their_bound(name: str) -> None:
    spec = SPECS[name]
    given, meant = drawn(spec)
    check(spec, run_emulated(spec, given, target=TARGET, threads=2), meant)


def test_every_schedule_is_within_the_bound() -> None:
    spec = SPECS["forward"]
    given, meant = drawn(spec)
    for choice in choices_of(spec, load_cpu(TARGET), 2):
        check(spec, run_emulated(spec, given, target=TARGET, threads=2, choice=choice), meant)


def test_sums_that_float16_cannot_hold_are_made_in_f32() -> None:
    """Products of up to 2.5e5, whose sums are written as f32; what is infinite itself stays so."""
    spec = short(replace(PLAIN, k=192, a_transposed=True), GRADIENT)
    given, meant = drawn(spec, 100.0)
    given[0][0, 5, 7] = meant[0][0, 5, 7] = np.inf
    (found,) = run_emulated(spec, given, target=TARGET, threads=2)
    exact = np.swapaxes(meant[0], -1, -2) @ meant[1]
    assert not np.isfinite(found[0, 7]).any()
    others = np.delete(np.arange(45), 7)
    scale = np.abs(np.delete(given[0][0], 7, axis=1).astype(np.float64)).T @ np.abs(meant[1][0])
    np.testing.assert_array_less(np.abs(found[0, others] - exact[0, others]), 2.0**-20 * scale)


@pytest.mark.parametrize("target", [name for name in names("cpu") if load_cpu(name).multiplies("f16")])
def test_eight_products_are_one_instruction(target: str) -> None:
    text = assembly(SPECS["forward"], load_cpu(target))
    assert text.count(".8h, v") > 100

"""Products of bfloat16: both operands rounded by somebody else (ml_dtypes), multiplied and summed in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import choices_of, emit_kernel, frugal_choice
from compiler.codegen.testing import Kernel, runs
from compiler.codegen.tir.compile import assembly
from compiler.graph import Array, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import AttentionSpec, MatmulSpec
from compiler.program.halves import Held, holding, may_be_half
from compiler.program.operands import operand_types
from compiler.targets import load
from tests.compiler.codegen.emulation import run_emulated
from tests.compiler.codegen.halves import multiplied

Direction = Literal["forward", "backward"]
X86, ARM = "x86-64-v4-bf16", "snapdragon-8-gen-2"
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
}  # fmt: skip


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


@pytest.mark.parametrize("name", SPECS if runs(load(X86)) else ())
def test_products_of_pairs(name: str) -> None:
    """Where this machine has the instructions; the phone below has its own everywhere."""
    spec, target = SPECS[name], load(X86)
    given, meant = drawn(spec)
    every = choices_of(spec, target, 2) if name.startswith("long") else ()
    for choice in dict.fromkeys((DEFAULT, *every, frugal_choice(spec, target, 2))):
        check(spec, Kernel(spec, target, 2, choice).run(*given), meant)


@pytest.mark.parametrize("name", ["forward", "forward, weights as columns", "weight gradient", "long, with sums"])
def test_products_of_pairs_on_a_phone(name: str) -> None:
    """Emulated."""
    spec = SPECS[name]
    given, meant = drawn(spec)
    check(spec, run_emulated(spec, given, target=ARM), meant)


@pytest.mark.parametrize(("target", "instruction"), [(X86, "vdpbf16ps"), (ARM, "bfdot")])
def test_pairs_are_multiplied_by_instructions(target: str, instruction: str) -> None:
    text = assembly(emit_kernel(SPECS["forward"], load(target), 1, DEFAULT), load(target))
    assert text.count(instruction) > 4
    assert "fmadd" not in text
    assert "fmla" not in text


ATTENTION = {
    f"{kind}{', causal' if causal else ''}": AttentionSpec(kind, 2, 4, 2, 37, 37, 16, 24, 0.25, causal, dtype="f32")
    for kind in get_args(Direction)
    for causal in (False, True)
}


def scores_in_halves(spec: AttentionSpec) -> AttentionSpec:
    changed = holding(spec, tuple("bf16" if may else None for may in may_be_half(spec)))
    assert isinstance(changed, AttentionSpec)
    return replace(changed, products="bf16")


@pytest.mark.parametrize("name", ATTENTION if runs(load(X86)) else ())
def test_scores_of_pairs(name: str) -> None:
    """Products of halves are exact in f32: beside the f32 kernel on the same numbers only the order of sums differs."""
    spec, target, rng = ATTENTION[name], load(X86), np.random.default_rng(5)
    half = scores_in_halves(spec)
    types = operand_types(half)
    plain = [rng.standard_normal(tensor.shape, np.float32) for tensor in types.inputs]
    plain = [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in plain]
    if spec.kind == "backward":
        y, plain[4] = Kernel(replace(spec, kind="forward"), target, 2).run(*plain[:3])
        plain[3] = y.astype(ml_dtypes.bfloat16).astype(np.float32)
    given = [
        array.astype(ml_dtypes.bfloat16).view("V2") if tensor.dtype == "bf16" else array
        for array, tensor in zip(plain, types.inputs, strict=True)
    ]
    wanted = Kernel(spec, target, 2).run(*plain)
    for want, found, tensor in zip(wanted, Kernel(half, target, 2).run(*given), types.outputs, strict=True):
        is_half = tensor.dtype == "bf16"
        values = found.view(ml_dtypes.bfloat16).astype(np.float32) if is_half else found
        np.testing.assert_allclose(values, want, rtol=2.0**-8 if is_half else 0, atol=2e-6 * np.abs(want).max())


def test_scores_are_multiplied_by_instructions() -> None:
    spec = scores_in_halves(ATTENTION["forward"])
    for name, instruction in ((X86, "vdpbf16ps"), (ARM, "bfdot")):
        assert instruction in assembly(emit_kernel(spec, load(name), 1, DEFAULT), load(name))

"""Products of bfloat16: both operands rounded by somebody else (ml_dtypes), multiplied and summed in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import choices_of, frugal_choice
from compiler.kernels.spec import AttentionSpec
from compiler.program.halves import holding, may_be_half
from compiler.program.operands import operand_types
from compiler.targets import load_cpu
from tests.compiler.codegen.emulation import run_emulated
from tests.compiler.codegen.paired import SPECS, check, drawn
from tests.kernel_harness.assembly import assembly
from tests.kernel_harness.launch import Kernel
from tests.skips import needs_instructions

Direction = Literal["forward", "backward"]
X86, ARM = "x86-64-v4-bf16", "snapdragon-8-gen-2"


@needs_instructions(X86)
@pytest.mark.parametrize("name", SPECS)
def test_products_of_pairs(name: str) -> None:
    """By instructions of this processor; the phone below is emulated."""
    spec, target = SPECS[name], load_cpu(X86)
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
    text = assembly(SPECS["forward"], load_cpu(target))
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


@needs_instructions(X86)
@pytest.mark.parametrize("name", ATTENTION)
def test_scores_of_pairs(name: str) -> None:
    """Products of halves are exact in f32: beside the f32 kernel on the same numbers only the order of sums differs."""
    spec, target, rng = ATTENTION[name], load_cpu(X86), np.random.default_rng(5)
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
        assert instruction in assembly(spec, load_cpu(name))

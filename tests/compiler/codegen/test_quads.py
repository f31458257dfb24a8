"""Products of bytes: rows rounded by NumPy, multiplied in int64, and a bound on what rounding does to any product."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import choices_of, frugal_choice
from compiler.graph import Array, TensorType
from compiler.kernels.access import identity
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.program.halves import Held
from compiler.program.multiply_bytes import MOST_STEPS
from compiler.program.operands import operand_types
from compiler.targets import load_cpu
from tests.compiler.codegen.emulation import run_emulated
from tests.compiler.codegen.halves import multiplied
from tests.kernel_harness.assembly import assembly
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import runs
from tests.skips import needs_instructions

X86, ARM = "x86-64-v4-vnni", "raspberry-pi-5"
WEIGHTS: Held = (None, "i8", None)
PLAIN = MatmulSpec(1, 45, 67, 132, dtype="f32", b_batched=False)
BACK = replace(PLAIN, b_transposed=True)
RESIDUAL = identity(TensorType("f32", (1, 45, 67)))
ADDED = replace(PLAIN, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(RESIDUAL,))


def in_bytes(spec: MatmulSpec, held: Held = WEIGHTS) -> MatmulSpec:
    return multiplied("i8", spec, held)


SPECS = {
    "forward": in_bytes(PLAIN),
    "backward": in_bytes(BACK),
    "long": in_bytes(MatmulSpec(1, 70, 260, 3000, dtype="f32", b_batched=False)),
    "long, backward": in_bytes(MatmulSpec(1, 70, 260, 2204, dtype="f32", b_batched=False, b_transposed=True)),
    "one word": in_bytes(MatmulSpec(1, 3, 5, 4, dtype="f32", b_batched=False)),
    "few rows": in_bytes(MatmulSpec(1, 2, 500, 600, dtype="f32", b_batched=False)),
    "batch over one B": in_bytes(MatmulSpec(4, 30, 64, 128, dtype="f32", b_batched=False)),
    "a residual": in_bytes(ADDED, (*WEIGHTS, None)),
    "long, with a residual": in_bytes(replace(ADDED, k=2200), (*WEIGHTS, None)),
    "halves beside": in_bytes(PLAIN, ("bf16", "i8", "bf16")),
}


def drawn(spec: MatmulSpec, seed: int = 3) -> list[Array]:
    """Rows of different sizes, every byte, and what is added."""
    rng = np.random.default_rng(seed)
    a, b, *beside = operand_types(spec).inputs
    rows = rng.standard_normal(a.shape, np.float32) * 10 ** rng.uniform(-6, 6, (*a.shape[:-1], 1)).astype(np.float32)
    given = [rows.astype(ml_dtypes.bfloat16).view("V2") if a.dtype == "bf16" else rows]
    given.append(rng.integers(-127, 128, b.shape).astype(np.int8))
    return given + [rng.standard_normal(tensor.shape, np.float32) for tensor in beside]


def widened(array: Array) -> Array:
    return array.view(ml_dtypes.bfloat16).astype(np.float32) if array.dtype.kind == "V" else array


def rounded(a: Array) -> tuple[Array, Array]:
    """Whole numbers of each row, and what they count."""
    largest = np.abs(a).max(-1, keepdims=True)
    return np.rint(a * (np.float32(127) / largest)).astype(np.int64), largest.astype(np.float64) / 127


def check(spec: MatmulSpec, given: list[Array], found: Array) -> None:
    a, b = widened(given[0]), given[1].astype(np.int64)
    b = b.T if spec.b_transposed else b
    whole, scale = rounded(a)
    half = found.dtype.kind == "V"
    beside = sum(given[2:], np.zeros(1)).astype(np.float64)
    wanted = (whole @ b) * scale + beside
    size = scale * (np.abs(whole) @ np.abs(b)) + np.abs(beside)
    answer = widened(found).astype(np.float64).reshape(wanted.shape)
    assert (np.abs(answer - wanted) <= (2.0**-8 if half else 1e-6) * size).all()
    exact = a.astype(np.float64) @ b + beside
    bound = 0.5001 * scale * np.abs(b).sum(0)
    assert (np.abs(answer - exact) <= bound + (2.0**-8 if half else 1e-6) * size).all()


@needs_instructions(X86)
@pytest.mark.parametrize("name", SPECS)
def test_products_of_bytes(name: str) -> None:
    """By instructions of this processor; the board below is emulated."""
    spec, target = SPECS[name], load_cpu(X86)
    given = drawn(spec)
    for choice in dict.fromkeys((DEFAULT, *choices_of(spec, target, 2), frugal_choice(spec, target, 2))):
        check(spec, given, Kernel(spec, target, 2, choice).run(*given)[0])


@pytest.mark.parametrize("name", ["forward", "backward", "long, backward", "one word", "halves beside"])
def test_products_of_bytes_on_a_board(name: str) -> None:
    """Emulated."""
    spec = SPECS[name]
    given = drawn(spec)
    check(spec, given, run_emulated(spec, given, target=ARM)[0])


def outcomes(spec: MatmulSpec, given: list[Array]) -> list[Array]:
    """Of a board under emulation, and of this machine if it can."""
    found = [run_emulated(spec, given, target=ARM)[0]]
    return found + ([Kernel(spec, load_cpu(X86), 2).run(*given)[0]] if runs(load_cpu(X86)) else [])


def test_the_longest_sums_of_the_largest_numbers_fit() -> None:
    spec = in_bytes(MatmulSpec(1, 2, 16, MOST_STEPS, dtype="f32", b_batched=False))
    a, b = np.full((1, 2, MOST_STEPS), 3.0, np.float32), np.full((MOST_STEPS, 16), 127, np.int8)
    a[0, 1] *= -1
    for found in outcomes(spec, [a, b]):
        np.testing.assert_allclose(found[0, 0], 3.0 * 127 * MOST_STEPS, rtol=1e-6)
        np.testing.assert_allclose(found[0, 1], -3.0 * 127 * MOST_STEPS, rtol=1e-6)


def test_rows_that_are_no_numbers_stay_so_and_change_no_other() -> None:
    spec = in_bytes(replace(PLAIN, m=6))
    given = drawn(spec)
    a = given[0][0]
    a[0], a[1] = 0, 1e-38
    a[2, 5], a[3, 7], a[4, 9] = np.nan, np.inf, -np.inf
    for found in outcomes(spec, given):
        assert (found[0, 0] == 0).all()
        assert (np.abs(found[0, 1]) <= 132 * 127 * 1e-38).all()
        assert not np.isfinite(found[0, 2:5]).any()
        check(replace(spec, m=1), [a[None, 5:], given[1]], found[:, 5:])


@pytest.mark.parametrize(("target", "instruction"), [(X86, "vpdpbusd"), ("x86-64-v4-bf16", "vpdpbusd"), (ARM, "sdot")])
def test_bytes_are_multiplied_by_instructions(target: str, instruction: str) -> None:
    text = assembly(SPECS["forward"], load_cpu(target))
    assert text.count(instruction) > 4

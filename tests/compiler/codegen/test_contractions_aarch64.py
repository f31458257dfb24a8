"""The contraction kernels' AArch64 code, run under emulation; and that its inner loops are vector code."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.choice import choose
from compiler.codegen.conv.plan import method_of
from compiler.kernels.spec import MatmulSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.contractions import Contraction, Kind, conv, depthwise, distance, expected, random_inputs
from tests.compiler.codegen.emulation import run_emulated
from tests.kernel_harness.assembly import assembly
from tests.sample import sample, thinned

PADS = (1, 1, 1, 1)
SPECS: dict[str, Contraction] = {
    "matmul": MatmulSpec(1, 61, 52, 70, dtype="f32"),
    "matmul, b transposed": MatmulSpec(1, 61, 53, 70, b_transposed=True, dtype="f32"),
    "matmul, split": MatmulSpec(1, 24, 37, 1100, a_transposed=True, dtype="f32"),
    "conv forward": conv("forward", (1, 13, 12, 10), 21, (3, 3), (2, 2), PADS),
    "conv input gradient": conv("input_grad", (1, 13, 12, 10), 21, (3, 3), (2, 2), PADS),
    "conv weight gradient": conv("weight_grad", (1, 13, 12, 10), 21, (3, 3), (2, 2), PADS),
    "grouped forward": conv("forward", (1, 9, 11, 24), 36, (3, 3), (2, 2), PADS, groups=3),
    "grouped input gradient": conv("input_grad", (1, 9, 11, 24), 36, (3, 3), (2, 2), PADS, groups=3),
    "grouped weight gradient": conv("weight_grad", (1, 9, 11, 24), 36, (3, 3), (2, 2), PADS, groups=3),
    "depthwise forward": depthwise("forward", (1, 13, 12, 22), (3, 3), (2, 2), PADS),
    "depthwise input gradient": depthwise("input_grad", (1, 13, 12, 22), (3, 3), (2, 2), PADS),
    "depthwise weight gradient": depthwise("weight_grad", (1, 13, 12, 22), (3, 3), (1, 1), PADS),
}
WINOGRAD: dict[str, Contraction] = {
    "winograd forward": conv("forward", (1, 16, 16, 48), 32, (3, 3), (1, 1), PADS),
    "winograd weight gradient": conv("weight_grad", (1, 16, 16, 48), 32, (3, 3), (1, 1), PADS),
}
KERNELS = SPECS | WINOGRAD


@pytest.mark.parametrize("name", thinned(SPECS, 6))
def test_emulated(name: str) -> None:
    spec = SPECS[name]
    inputs = random_inputs(spec)
    assert distance(run_emulated(spec, inputs)[0], expected(spec, inputs)) < 6e-7


@pytest.mark.parametrize("kind", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize("board", sample(["raspberry-pi-4", "raspberry-pi-5"], ["raspberry-pi-4"]))
def test_winograd_emulated(kind: Kind, board: str) -> None:
    """On Cortex-A72 and A76, by default."""
    spec = conv(kind, (2, 15, 13, 48), 80, (3, 3), (1, 1), PADS)
    assert method_of(spec, load_cpu(board), None) == 4
    inputs = random_inputs(spec)
    assert distance(run_emulated(spec, inputs, target=board)[0], expected(spec, inputs)) < 1.2e-6


@pytest.mark.parametrize("size", [2, 6])
def test_every_winograd_tile_emulated(size: int) -> None:
    spec = conv("forward", (1, 9, 10, 32), 48, (3, 3), (1, 1), PADS)
    inputs = random_inputs(spec)
    (got,) = run_emulated(spec, inputs, choice=choose(winograd=size))
    assert distance(got, expected(spec, inputs)) < {2: 6e-7, 6: 6e-6}[size]


@pytest.mark.parametrize("name", thinned(KERNELS, 4))
@pytest.mark.parametrize("target", ["raspberry-pi-4", "x86-64-v3"])
def test_no_calls_and_vector_arithmetic(name: str, target: str) -> None:
    """Nothing falls back to library calls (other than clearing memory) or to scalar multiply-adds
    (other than for the last odd column)."""
    board = load_cpu(target)
    code = assembly(KERNELS[name], board, 4)
    called = set(re.findall(r"(?<!%)\b(?:bl|callq)\s+([\w@]+)", code))
    assert not called - {"memset", "memset@PLT", "memcpy", "memcpy@PLT"}
    vector, scalar = (r"\bfmla\b", r"\bfmadd\b") if target == "raspberry-pi-4" else (r"vfmadd\w*ps\b", r"vfmadd\w*ss\b")
    assert len(re.findall(vector, code)) > 2 * len(re.findall(scalar, code))

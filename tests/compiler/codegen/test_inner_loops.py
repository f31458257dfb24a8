"""Register tiles for AArch64 stay in registers: what the innermost loops of matrix products and convolutions hold."""

from __future__ import annotations

import pytest

from benchmarks.assembly import around, hottest_loop, innermost_loops
from compiler.kernels.spec import MatmulSpec
from compiler.targets import load_cpu
from tests.compiler.codegen.contractions import Contraction, conv
from tests.compiler.codegen.halves import multiplied
from tests.kernel_harness.assembly import assembly
from tests.sample import thinned

PADS = (1, 1, 1, 1)
SPECS: dict[str, Contraction] = {
    "few steps": MatmulSpec(1, 3136, 144, 24, dtype="f32"),
    "few steps, b transposed": MatmulSpec(1, 12544, 32, 16, b_transposed=True, dtype="f32"),
    "forward": MatmulSpec(1, 196, 384, 64, dtype="f32"),
    "input gradient": MatmulSpec(1, 196, 96, 576, b_transposed=True, dtype="f32"),
    "weight gradient": MatmulSpec(1, 320, 1280, 49, a_transposed=True, dtype="f32"),
    "weight gradient, streamed": MatmulSpec(1, 32, 192, 3136, a_transposed=True, sums=True, dtype="f32"),
    "convolution": conv("forward", (1, 56, 56, 64), 64, (3, 3), (2, 2), PADS),
    "convolution, input gradient": conv("input_grad", (1, 56, 56, 64), 64, (3, 3), (2, 2), PADS),
    "convolution, weight gradient": conv("weight_grad", (1, 56, 56, 64), 64, (3, 3), (2, 2), PADS),
}


@pytest.mark.parametrize("target", ["raspberry-pi-4", "raspberry-pi-5"])
@pytest.mark.parametrize("name", thinned(SPECS, 4))
def test_the_hottest_loop_is_multiply_adds_from_registers(name: str, target: str) -> None:
    loop = hottest_loop(assembly(SPECS[name], load_cpu(target), load_cpu(target).cores))
    assert loop is not None
    assert loop.spills == 0, "\n".join(loop.instructions)
    assert loop.scalar_fmas == 0
    assert loop.multiply_adds == 4 * loop.fma_instructions, "every multiply-add fills its vector"
    assert loop.fma_instructions >= 2 * loop.loads, "an A76 starts as many loads as multiply-adds in a cycle"
    assert loop.fma_instructions >= 0.55 * len(loop.instructions)


def test_products_of_float16_fill_their_vectors() -> None:
    spec = multiplied("f16", MatmulSpec(1, 196, 384, 640, dtype="f32"), ("f16", None, "f16"))
    loop = hottest_loop(assembly(spec, load_cpu("raspberry-pi-5"), load_cpu("raspberry-pi-5").cores))
    assert loop is not None
    assert loop.spills == 0, "\n".join(loop.instructions)
    assert loop.multiply_adds == 8 * loop.fma_instructions
    assert loop.fma_instructions >= 2 * loop.loads


NESTED = """
kernel:
\tadd\tx29, sp, #16
.LBB0_1:
\tmov\tw1, #8
.LBB0_2:
\tldr\tq0, [x0], #16
\tldr\tq9, [{base}, #32]
\tfmla\tv1.4s, v0.4s, v9.s[0]
\tfmadd\ts2, s3, s4, s2
\tsubs\tw1, w1, #1
\tb.ne\t.LBB0_2
\tcbnz\tw2, .LBB0_1
"""


@pytest.mark.parametrize(("base", "spills"), [("sp", 1), ("x29", 1), ("x9", 0)])
def test_loops_are_read_as_written(base: str, spills: int) -> None:
    (loop,) = innermost_loops(NESTED.format(base=base))
    assert (loop.label, len(loop.instructions)) == (".LBB0_2", 6)
    assert (loop.multiply_adds, loop.fma_instructions, loop.scalar_fmas) == (5, 2, 1)
    assert (loop.loads, loop.spills, loop.accumulators) == (2, spills, 2)
    assert [line.split()[0] for line in around(NESTED, loop.label)] == ["mov", "cbnz"]


def test_a_frame_pointer_that_is_none_is_a_register() -> None:
    (loop,) = innermost_loops(NESTED.format(base="x29").replace("\tadd\tx29, sp, #16\n", ""))
    assert loop.spills == 0

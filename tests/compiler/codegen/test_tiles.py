"""Products in tile registers (AMX), emulated by C functions that check every configuration and every shape, and on a
machine that has them by its own instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import choices_of, frugal_choice
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget, load_cpu
from tests.compiler.codegen.paired import BOTH, HALF, SPECS, check, drawn, paired
from tests.compiler.codegen.tile_emulation import EMULATED, X86, emulated_kernels
from tests.kernel_harness.assembly import assembly
from tests.kernel_harness.launch import Kernel, build_in_process, build_object
from tests.sample import thinned
from tests.skips import needs_instructions

MORE = {
    "one band": paired(MatmulSpec(1, 7, 16, 64, dtype="f32"), HALF),
    "fewer steps than a register": paired(MatmulSpec(1, 20, 33, 18, dtype="f32"), HALF),
    "whole tiles": paired(MatmulSpec(1, 64, 64, 128, dtype="f32"), HALF),
    "whole tiles of a weight gradient": paired(MatmulSpec(1, 64, 48, 64, dtype="f32", a_transposed=True), BOTH),
    "long, in one pass": paired(MatmulSpec(1, 40, 40, 1000, dtype="f32"), HALF),
    "products over one B": paired(MatmulSpec(3, 40, 24, 70, dtype="f32", a_transposed=True, b_batched=False), BOTH),
}
ALL = SPECS | MORE


def check_products(name: str, target: CpuTarget, beside: Sequence[Path] = ()) -> None:
    spec, build = ALL[name], build_in_process if beside else build_object
    given, meant = drawn(spec)
    every = choices_of(spec, target, 2) if name.startswith("long") else ()
    for choice in dict.fromkeys((DEFAULT, *every, frugal_choice(spec, target, 2))):
        check(spec, Kernel(spec, target, 2, choice, beside, build).run(*given), meant)


@pytest.mark.parametrize("name", thinned(ALL, 8))
def test_products_in_tiles(name: str) -> None:
    with emulated_kernels() as functions:
        check_products(name, EMULATED, [functions])


@needs_instructions(X86)
@pytest.mark.parametrize("name", ALL)
def test_products_by_instructions(name: str) -> None:
    check_products(name, load_cpu(X86))


def test_tiles_are_multiplied_by_instructions() -> None:
    """Four products for two loads of each side; nothing is left to vectors but what rounds and packs."""
    text = assembly(MORE["whole tiles"], load_cpu(X86))
    assert text.count("tdpbf16ps") == text.count("tileloadd") == 4 * 4, "four turns, written out"
    assert text.count("tilestored") == 4
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert "vdpbf16ps" not in text
    assert "fmadd" not in text


def test_an_object_says_that_it_uses_them() -> None:
    """By a symbol, which tells the runtime to ask Linux for them; others of the same target have none of it."""
    product = MORE["whole tiles"]
    assert b"pf_uses_tiles" in build_object(product, load_cpu(X86)).object_bytes
    for spec, name in ((product, "x86-64-v4-bf16"), (replace(product, products=""), X86)):
        assert b"pf_uses_tiles" not in build_object(spec, load_cpu(name)).object_bytes

"""Rows that meet in few sets of the second-level cache are packed or copied; others are read where they lie."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from compiler.codegen.choice import choose
from compiler.codegen.matmul.cost import Core, crowded
from compiler.codegen.matmul.plan import plan
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import CpuTarget, load_cpu
from tests.compiler.codegen.contractions import distance, expected, random_inputs
from tests.compiler.codegen.reference import identity
from tests.compiler.codegen.test_matmul_updates import state
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target

V4, V3, PI5 = load_cpu("x86-64-v4"), load_cpu("x86-64-v3"), load_cpu("raspberry-pi-5")
SETS, LINE_BYTES = 1024, 64


def most_in_a_set(runs: int, lines: int, distance_lines: int) -> int:
    """Of the lines of a block, those that fall into the set where most do."""
    return max(Counter((run * distance_lines + line) % SETS for run in range(runs) for line in range(lines)).values())


@pytest.mark.parametrize("distance", [2, 16, 32, 48, 64, 80, 96, 128, 192, 1024], ids="{} lines".format)
@pytest.mark.parametrize(("runs", "lines"), [(128, 2), (256, 2), (256, 16), (512, 2), (512, 16), (1024, 1)])
def test_a_block_is_crowded_if_half_of_a_set_is_taken(runs: int, lines: int, distance: int) -> None:
    core = Core.of(V4, "f32")
    lines = min(lines, distance)
    ways = V4.l2_bytes // (SETS * LINE_BYTES)
    assert crowded(core, runs, lines * core.precision.line, distance * core.precision.line) == (
        2 * most_in_a_set(runs, lines, distance) >= ways
    )


@pytest.mark.parametrize("target", [V4, V3, PI5], ids=lambda target: target.name)
def test_far_rows_in_few_sets_are_not_read_where_they_lie(target: CpuTarget) -> None:
    gradient = MatmulSpec(1, 4096, 768, 512, a_transposed=True, dtype="f32")
    assert plan(gradient, target, 2).copies_a
    update = replace(gradient, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=state(gradient, 1)[:1])
    assert plan(update, target, 2).copies_a
    assert plan(MatmulSpec(1, 256, 4096, 768, dtype="f32"), target, 2).panels == "private"


def test_steps_that_outlast_the_first_level_cache_are_copied() -> None:
    long, short = (plan(MatmulSpec(1, 784, 768, k, a_transposed=True, dtype="f32"), V4, 2) for k in (256, 128))
    assert (long.copies_a, short.copies_a) == (True, False)


def test_near_rows_are_read_where_they_lie() -> None:
    gradient = plan(MatmulSpec(1, 192, 192, 788, a_transposed=True, dtype="f32"), V4, 2)
    assert (gradient.panels, gradient.copies_a) == ("direct", False)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("transposed", [False, True], ids=["by rows", "by steps"])
@pytest.mark.parametrize(("rows", "strategy"), [(8, "rows"), (13, "columns"), (5, "batch")])
def test_copied_blocks_are_the_same_product(rows: int, strategy: str, transposed: bool, residual: bool) -> None:
    """Several blocks of rows and of steps, the last ones short; with a residual the sums wait in the workspace."""
    batch = 2 if strategy == "batch" else 1
    spec = MatmulSpec(batch, 709, 210, 901, a_transposed=transposed, dtype="f32")
    if residual:
        spec = replace(spec, epilogue=Binary("add", Ref(0), Ref(1)), epilogue_inputs=(identity(batch, 709, 210),))
    way = choose(rows=rows, vectors=2, strategy=strategy, order="columns", panels="private", k_block=384, copies_a=True)
    target = load_cpu(native_target())
    found = plan(spec, target, 2, way)
    assert found.copies_a
    assert found.m_block < spec.m
    assert found.waiting == ("workspace" if residual else "output")
    inputs = random_inputs(spec)
    assert distance(Kernel(spec, target, 2, way).run(*inputs)[0], expected(spec, inputs)) < 6e-7


@pytest.mark.parametrize("k", [3072, 2048, 4096])
def test_rows_that_meet_in_one_set_of_the_first_level_cache_are_copied(k: int) -> None:
    product = MatmulSpec(1, 512, 768, k, dtype="f32")
    assert plan(product, V4, 2).copies_a
    assert not plan(replace(product, k=k + 16), V4, 2).copies_a

"""Rows that meet in few sets of the second-level cache are packed or copied; others are read where they lie."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from compiler.codegen.matmul.cost import Core, crowded
from compiler.codegen.matmul.plan import plan
from compiler.kernels.expressions import Binary, Ref
from compiler.kernels.spec import MatmulSpec
from compiler.targets import Target, load
from tests.compiler.codegen.test_matmul_updates import state

V4, V3, PI5 = load("x86-64-v4"), load("x86-64-v3"), load("raspberry-pi-5")
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
def test_far_rows_in_few_sets_are_not_read_where_they_lie(target: Target) -> None:
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

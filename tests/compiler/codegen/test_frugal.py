"""Schedules of least scratch: the same kernels, in fewer bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.codegen.api import workspace_bytes
from compiler.codegen.choice import DEFAULT
from compiler.codegen.family import frugal_choice
from compiler.kernels.expressions import Ref, add
from compiler.kernels.spec import ConvSpec, DepthwiseSpec, MapSpec, MatmulSpec
from compiler.targets import load
from tests.compiler.codegen.contractions import conv, depthwise, distance, expected, random_inputs
from tests.compiler.codegen.reference import identity
from tests.kernel_harness.launch import Kernel
from tests.kernel_harness.machine import native_target

WIDE = MatmulSpec(1, 16, 288, 160, dtype="f32", b_transposed=True, a_batched=False, b_batched=False)
SPARING: dict[str, MatmulSpec | ConvSpec] = {
    "stem": conv("forward", (1, 64, 60, 3), 16, (3, 3), (2, 2), (1, 1, 1, 1)),
    "input gradient": conv("input_grad", (2, 30, 28, 12), 20, (3, 3), (1, 1), (1, 1, 1, 1)),
    "winograd": conv("forward", (1, 28, 28, 32), 48, (3, 3), (1, 1), (1, 1, 1, 1)),
    "transposed": WIDE,
    "transposed, long": replace(WIDE, k=1100),
    "transposed, added to what it overwrites": replace(
        WIDE, epilogue=add(Ref(0), Ref(1)), epilogue_inputs=(identity(1, 16, 288),)
    ),
}
NO_OTHER = (
    MatmulSpec(1, 16, 64, 32, dtype="f32", a_batched=False, b_batched=False),
    conv("forward", (1, 9, 9, 8), 16, (1, 1), (1, 1), (0, 0, 0, 0)),
    depthwise("forward", (1, 9, 9, 8), (3, 3), (1, 1), (1, 1, 1, 1)),
    MapSpec((9,), (identity(9),), (identity(9),), (Ref(0),)),
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", sorted(SPARING))
def test_a_frugal_kernel_computes_the_same_in_fewer_bytes(case: str, threads: int) -> None:
    spec, target = SPARING[case], load(native_target())
    frugal = frugal_choice(spec, target, threads)
    assert workspace_bytes(spec, target, threads, frugal) < workspace_bytes(spec, target, threads)
    inputs = random_inputs(spec)
    (got,) = Kernel(spec, target, threads, frugal).run(*inputs)
    assert distance(got, expected(spec, inputs)) <= 1e-6
    assert np.isfinite(got).all()


@pytest.mark.parametrize("spec", NO_OTHER, ids=lambda spec: type(spec).__name__)
def test_what_needs_no_scratch_is_scheduled_as_ever(spec: MatmulSpec | ConvSpec | DepthwiseSpec | MapSpec) -> None:
    assert frugal_choice(spec, load(native_target()), 2) == DEFAULT


@pytest.mark.parametrize("case", sorted(SPARING))
@pytest.mark.parametrize("target", ["x86-64-v3", "raspberry-pi-4", "raspberry-pi-5"])
def test_no_target_s_frugal_schedule_takes_more(case: str, target: str) -> None:
    spec, machine = SPARING[case], load(target)
    sizes = [workspace_bytes(spec, machine, 2, choice) for choice in (frugal_choice(spec, machine, 2), DEFAULT)]
    assert sizes[0] <= sizes[1]

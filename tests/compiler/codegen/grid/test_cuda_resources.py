"""Every family's kernels at sizes of models: NVIDIA's compiler takes them, and what an item and a group ask fits."""

from __future__ import annotations

from typing import cast

import pytest

from compiler.codegen.artefacts import Launch
from compiler.codegen.family import GRID
from compiler.codegen.grid.occupancy import MULTIPROCESSORS, occupancy, resident_blocks
from compiler.targets import GridTarget, load
from tests.compiler.codegen.grid.representative import SPECS
from tests.kernel_harness.launch import build_object
from tests.sample import some, thinned

TARGETS = ("jetson-orin-nano/cuda", "x86-64-v3/cuda")
LEAST_OCCUPANCY = 0.25
"""A bound on what registers and shared memory may cost, not a speed: fewer warps hide little of the memory's time."""


def check(launch: Launch, capability: str) -> None:
    resources = launch.resources
    assert resources.spill_bytes == 0, f"{launch.entry}: {resources.spill_bytes} bytes of an item are in memory"
    assert resources.registers is not None
    assert resources.registers * launch.items <= MULTIPROCESSORS[capability].registers
    assert resources.shared_bytes <= 48 << 10
    assert resident_blocks(launch, capability) >= 1
    assert occupancy(launch, capability) >= LEAST_OCCUPANCY, f"{launch.entry}: {resources}"


@pytest.mark.parametrize("name", thinned(SPECS, 9))
def test_kernels_fit_both_generations(name: str) -> None:
    for target in (cast(GridTarget, load(one)) for one in TARGETS):
        built = build_object(SPECS[name], target)
        assert [one.form for one in built.artefacts] == ["cubin", "ptx"]
        for launch in some(built.launches):
            check(launch, target.capability)


def test_every_family_is_among_them() -> None:
    assert {type(spec) for spec in SPECS.values()} == set(GRID)

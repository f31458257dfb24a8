"""Resident warps of a multiprocessor, by hand from the limits of its generation."""

from __future__ import annotations

import pytest

from compiler.codegen.artefacts import Launch, Resources
from compiler.codegen.grid.occupancy import MULTIPROCESSORS, WARP, occupancy, resident_blocks
from compiler.errors import InternalError
from compiler.targets import load, names


def launch(items: int, registers: int | None, shared_bytes: int = 0) -> Launch:
    return Launch("pf_0", "grid", 100, items, (), Resources(shared_bytes, registers, 0))


@pytest.mark.parametrize(
    ("capability", "items", "registers", "shared_bytes", "blocks", "warps"),
    [
        ("sm_87", 64, 16, 0, 16, 32),  # as many blocks as there may be
        ("sm_87", 128, 32, 0, 12, 48),  # full
        ("sm_87", 256, 40, 0, 6, 48),  # full: 40 registers of 32 items are five units of 256
        ("sm_87", 256, 41, 0, 5, 40),  # one more is six
        ("sm_87", 256, 64, 0, 4, 32),
        ("sm_87", 256, 255, 0, 1, 8),  # the most that an item may have: what targets' `items` are chosen for
        ("sm_87", 256, 32, 49152, 3, 24),  # 48 KiB and the system's own in 164
        ("sm_87", 256, 32, 0, 6, 48),
        ("sm_87", 96, 72, 0, 9, 27),  # 28 warps have registers, in fours
        ("sm_87", 33, 16, 0, 16, 32),  # a warp for a single item
        ("sm_87", 1024, 65, 0, 0, 0),  # does not start
        ("sm_90", 64, 16, 0, 32, 64),
        ("sm_90", 256, 32, 0, 8, 64),
        ("sm_90", 1024, 32, 0, 2, 64),
        ("sm_90", 256, 32, 49152, 4, 32),  # in 228 KiB
        ("sm_90", 256, 128, 0, 2, 16),
        ("sm_90", 256, 0, 0, 8, 64),
    ],
)
def test_what_a_multiprocessor_holds(
    capability: str, items: int, registers: int, shared_bytes: int, blocks: int, warps: int
) -> None:
    asked = launch(items, registers, shared_bytes)
    assert resident_blocks(asked, capability) == blocks
    assert occupancy(asked, capability) == warps / MULTIPROCESSORS[capability].warps


def test_what_is_not_known_is_not_guessed() -> None:
    with pytest.raises(InternalError, match=r"sm_75 .* sm_87, sm_90$"):
        occupancy(launch(64, 16), "sm_75")
    with pytest.raises(InternalError, match=r"^pf_0: .* registers$"):
        occupancy(launch(64, None), "sm_87")


def test_a_group_of_any_target_fits_with_all_registers() -> None:
    for target in map(load, names("cuda")):
        assert target.kind == "cuda"
        assert target.items % WARP == 0
        assert resident_blocks(launch(target.items, 255, target.shared_bytes), target.capability) >= 1

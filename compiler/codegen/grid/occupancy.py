"""The share of an NVIDIA multiprocessor (SM) that a launch can fill with warps: plain arithmetic on what its items
take.

More resident warps hide more of the time that memory takes; it is a bound, no speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.artefacts import Launch
from compiler.errors import InternalError

WARP = 32
"""Items that run in step."""
_REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of it."""
_WARP_UNIT = 4
"""Registers of an SM lie in four parts, one for each of its schedulers."""
_SHARED_UNIT_BYTES = 128
_SYSTEM_BYTES = 1024
"""Bytes of shared memory in each block that the system keeps, from generation 8.0 on."""


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """The capacity of an SM at a time. `blocks`: most of them, whatever they take."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int


MULTIPROCESSORS: Mapping[str, Multiprocessor] = {
    "sm_87": Multiprocessor(warps=48, blocks=16, registers=65536, shared_bytes=164 << 10),
    "sm_90": Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=228 << 10),
}
"""Source: CUDA C++ Programming Guide, technical specifications per compute capability; the units above are those of the
occupancy calculator of Nsight Compute."""


def resident_blocks(launch: Launch, capability: str) -> int:
    """Returns how many of a launch's groups an SM holds at once; 0 if not even one fits. Raises: InternalError."""
    sm = multiprocessor(capability)
    warps = -(-launch.items // WARP)
    limits = [sm.blocks, sm.warps // warps]
    shared_bytes = _up(launch.resources.shared_bytes, _SHARED_UNIT_BYTES) + _SYSTEM_BYTES
    limits.append(sm.shared_bytes // shared_bytes)
    if launch.resources.registers is None:
        raise InternalError("nothing is known of its registers", where=launch.entry)
    registers = _up(launch.resources.registers * WARP, _REGISTER_UNIT)
    if registers:
        limits.append(sm.registers // registers // _WARP_UNIT * _WARP_UNIT // warps)
    return min(limits)


def occupancy(launch: Launch, capability: str) -> float:
    """Warps of a launch that an SM holds at once, of the most that it could. Raises: as `resident_blocks`."""
    warps = -(-launch.items // WARP)
    return resident_blocks(launch, capability) * warps / multiprocessor(capability).warps


def multiprocessor(capability: str) -> Multiprocessor:
    """Raises: InternalError for a generation that the table does not have."""
    if capability not in MULTIPROCESSORS:
        raise InternalError(f"no limits of {capability} are known, only of {', '.join(MULTIPROCESSORS)}")
    return MULTIPROCESSORS[capability]


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit

"""A board played by qemu's user-mode emulation: proves function, has no sensors, and its numbers mean nothing."""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.devices.board import Board, Reading
from device_agents.devices.kind import DeviceKind


@dataclass(frozen=True)
class EmulatedBoard:
    """What the emulated machine is said to be. Sources: the CPUs' reference manuals, the boards' data sheets."""

    cpu_model: str
    features: tuple[str, ...]
    cores: int
    memory_bytes: int
    targets: tuple[str, ...]


_ARMV8_0 = ("asimd", "cpuid", "crc32", "evtstrm", "fp")
_ARMV8_2 = tuple(
    sorted(
        (
            *_ARMV8_0,
            "aes",
            "asimddp",
            "asimdhp",
            "asimdrdm",
            "atomics",
            "dcpop",
            "fphp",
            "lrcpc",
            "pmull",
            "sha1",
            "sha2",
        )
    )
)
_ARMV9 = tuple(sorted((*_ARMV8_2, "bf16", "i8mm")))
_GIB = 1 << 30

EMULATED_BOARDS = {
    "raspberry-pi-3": EmulatedBoard("Cortex-A53 (emulated)", _ARMV8_0, 4, _GIB // 2, ("raspberry-pi-3",)),
    "raspberry-pi-4": EmulatedBoard("Cortex-A72 (emulated)", _ARMV8_0, 4, 4 * _GIB, ("raspberry-pi-4",)),
    "raspberry-pi-5": EmulatedBoard(
        "Cortex-A76 (emulated)", _ARMV8_2, 4, 8 * _GIB, ("raspberry-pi-5", "raspberry-pi-4")
    ),
    "jetson-orin-nano": EmulatedBoard("Cortex-A78AE (emulated)", _ARMV8_2, 6, 8 * _GIB, ("jetson-orin-nano",)),
    "jetson-agx-orin": EmulatedBoard(
        "Cortex-A78AE (emulated)", _ARMV8_2, 12, 32 * _GIB, ("jetson-agx-orin", "jetson-orin-nano")
    ),
    "snapdragon-8-gen-2": EmulatedBoard("Cortex-X3 (emulated)", _ARMV9, 8, 12 * _GIB, ("snapdragon-8-gen-2",)),
}


def _no_facts(_: Board) -> dict[str, str]:
    return {}


def _no_sensors(_: Board) -> Reading:
    return Reading()


def _never(_: Board) -> str | None:
    return None


KIND = DeviceKind(
    name="emulated",
    detect=_never,
    targets={name: board.targets for name, board in EMULATED_BOARDS.items()},
    facts=_no_facts,
    read=_no_sensors,
)

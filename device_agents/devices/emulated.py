"""A board played by qemu's user-mode emulation: proves function, has no sensors, and its numbers mean nothing."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.devices.board import Board, Reading
from device_agents.devices.kind import DeviceKind
from device_agents.errors import EnrolmentError
from device_agents.wire.log_lines import visible

PROBE_TIMEOUT_S = 60.0
_LOAD_ADDRESS = 0x400000
_HEADER_BYTES = 64 + 56
_EXIT_CODE = 97
_EXIT = struct.pack("<3I", 0xD2800000 | _EXIT_CODE << 5, 0xD2800BA8, 0xD4000001)
"""`mov x0, #97`, `mov x8, #93` (exit), `svc #0`: no program that merely ignores it ends so."""


@dataclass(frozen=True)
class EmulatedBoard:
    """The description of the emulated machine. Sources: the CPUs' reference manuals, the boards' data sheets."""

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


def smallest_program() -> bytes:
    """A static AArch64 executable that ends with code 97 at once.

    Source: System V ABI, chapters 4 and 5 (ELF header, program header); Arm ARM, C6.2 (the three instructions).
    """
    size_bytes = _HEADER_BYTES + len(_EXIT)
    identification = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    entry = _LOAD_ADDRESS + _HEADER_BYTES
    header = struct.pack("<2HI3QI6H", 2, 183, 1, entry, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<2I6Q", 1, 5, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size_bytes, size_bytes, 0x1000)
    return identification + header + segment + _EXIT


def working_runner(runner: str) -> tuple[str, ...]:
    """The words of an emulator's command, its program as a full path, after it has run an AArch64 program.

    Raises: `EnrolmentError` where there is no such program, or it does not run one.
    """
    name, *options = runner.split()
    program = shutil.which(name)
    if program is None:
        raise EnrolmentError(f"--runner {name}: no such program (Debian package qemu-user-static)")
    command = (program, *options)
    if problem := _why_not_run(command):
        raise EnrolmentError(f"--runner {name}: does not run an AArch64 program ({problem})")
    return command


def _why_not_run(command: Sequence[str]) -> str:
    """Why the emulator does not run the smallest program; empty if it does."""
    with tempfile.TemporaryDirectory(prefix="pockfarm-runner-") as folder:
        program = Path(folder) / "smallest"
        program.write_bytes(smallest_program())
        program.chmod(0o755)
        try:
            process = subprocess.run(
                [*command, str(program)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=PROBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it did not end within {PROBE_TIMEOUT_S:.0f} s"
        except OSError as problem:
            return str(problem)
    if process.returncode == _EXIT_CODE:
        return ""
    return (
        visible(process.stderr.decode("utf-8", "replace").strip())[-200:] or f"it ends with code {process.returncode}"
    )


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

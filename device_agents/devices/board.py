"""The board as seen through its files and a few tools: the one door of the device modules to the system.

`root` is `/`, or in tests a folder of synthetic files. Everything that is absent or unreadable is None.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOL_TIMEOUT_S = 2.0
"""`vcgencmd` is known to hang when the firmware is busy; no tool is worth more than this."""


def run_tool(argv: Sequence[str], timeout_s: float) -> str | None:
    """Standard output of a tool; on time-out what it had printed; None when it is absent or fails."""
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        return error.stdout.decode("utf-8", "replace") if error.stdout else None
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


@dataclass(frozen=True)
class Reading:
    """One look at the sensors. None: no such sensor, or it did not answer."""

    temperature_c: float | None = None
    frequency_hz: float | None = None
    throttled: bool | None = None
    power_mw: float | None = None
    energy_mj: float | None = None
    """A counter that only grows (differences are energy)."""
    energy_sensor: str | None = None
    """What `energy_mj`, or else `power_mw`, was read from."""


@dataclass(frozen=True)
class Board:
    """Reads files under `root` and runs tools."""

    root: Path = Path("/")
    tool: Callable[[Sequence[str], float], str | None] = run_tool

    def text(self, path: str) -> str | None:
        """A small file, without surrounding white space or device-tree NUL bytes."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(1 << 20).decode("utf-8", "replace").strip("\0 \t\r\n")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A file that holds one decimal integer."""
        text = self.text(path)
        return int(text) if text and re.fullmatch(r"-?\d+", text) else None

    def folders(self, pattern: str) -> list[str]:
        """Paths matching a glob, sorted, as absolute paths of the board."""
        try:
            found = sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return []
        return [f"/{path.relative_to(self.root)}" for path in found]

    def output(self, *argv: str, timeout_s: float = TOOL_TIMEOUT_S) -> str | None:
        """What a tool prints."""
        return self.tool(argv, timeout_s)


def hottest_c(board: Board, wanted: str) -> float | None:
    """The hottest thermal zone whose type matches the pattern `wanted` (sysfs gives millidegrees Celsius).

    Source: Documentation/driver-api/thermal/sysfs-api.rst of the Linux kernel.
    """
    temperatures = []
    for zone in board.folders("/sys/class/thermal/thermal_zone*"):
        value = board.number(f"{zone}/temp")
        if value is not None and re.search(wanted, board.text(f"{zone}/type") or "", re.IGNORECASE):
            temperatures.append(value / 1000)
    return max(temperatures) if temperatures else None


def mean_frequency_hz(board: Board) -> float | None:
    """Mean over the CPUs of cpufreq's `scaling_cur_freq` (kHz). None where the kernel has no cpufreq driver.

    Source: Documentation/admin-guide/pm/cpufreq.rst.
    """
    values = [
        board.number(f"{cpu}/cpufreq/scaling_cur_freq") for cpu in board.folders("/sys/devices/system/cpu/cpu[0-9]*")
    ]
    known = [value for value in values if value is not None]
    return 1000.0 * sum(known) / len(known) if known else None


def is_cooling_cpu(board: Board) -> bool | None:
    """Whether the kernel holds the CPU's clock down for heat now; None without such a cooling device.

    Source: `cur_state` in Documentation/driver-api/thermal/sysfs-api.rst; types `Processor` (ACPI) and `cpufreq-cpuN`.
    """
    states = [
        board.number(f"{device}/cur_state")
        for device in board.folders("/sys/class/thermal/cooling_device*")
        if re.search(r"^(Processor|.*cpufreq)", board.text(f"{device}/type") or "")
    ]
    known = [state for state in states if state is not None]
    return any(state > 0 for state in known) if known else None

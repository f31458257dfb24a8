"""The board as seen through its files and a few tools: the one door of the device modules to the system.

`root` is `/`, or in tests a folder of synthetic files. Everything that is absent or unreadable is None.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOOL_TIMEOUT_S = 2.0
"""`vcgencmd` is known to hang when the firmware is busy; no tool is worth more than this."""


COLDEST_C = -40.0
SLOWEST_HZ, FASTEST_HZ = 1.5e7, 9.9e9
"""Limits of a CPU's clock, less than a factor of a thousand apart: a value fits at most one unit."""


def run_tool(argv: Sequence[str], timeout_s: float) -> str | None:
    """Standard output of a tool; on time-out what it had printed; None when it is absent or fails."""
    try:
        process = subprocess.run(
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        return error.stdout.decode("utf-8", "replace") if error.stdout else None
    except OSError:
        return None
    return process.stdout.decode("utf-8", "replace") if process.returncode == 0 else None


@dataclass(frozen=True)
class Counter:
    """Energy since some moment, in millijoules; only differences matter. It wraps at `range_mj`, if that is known."""

    value_mj: float
    range_mj: float | None = None


@dataclass(frozen=True)
class Reading:
    """A reading of the sensors. None: no such sensor, or it did not answer."""

    temperature_c: float | None = None
    frequency_hz: float | None = None
    throttled: bool | None = None
    power_mw: float | None = None
    power_sensor: str | None = None
    """The sensor that `power_mw` was read from."""
    counters: Mapping[str, Counter] = field(default_factory=dict)
    """Energy counters by name (`rapl package-0`); the board's energy is their sum."""
    notes: tuple[str, ...] = ()
    """Reasons why a sensor's value was left out, or read in another unit."""


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
            paths = sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return []
        return [f"/{path.relative_to(self.root)}" for path in paths]

    def output(self, *argv: str, timeout_s: float = TOOL_TIMEOUT_S) -> str | None:
        """Returns the output of a tool."""
        return self.tool(argv, timeout_s)


def hottest_c(board: Board, pattern: str) -> float | None:
    """The hottest thermal zone whose type matches `pattern`.

    Source: Documentation/driver-api/thermal/sysfs-api.rst of the Linux kernel.
    """
    values = [
        board.number(f"{zone}/temp")
        for zone in board.folders("/sys/class/thermal/thermal_zone*")
        if re.search(pattern, board.text(f"{zone}/type") or "", re.IGNORECASE)
    ]
    temperatures = [celsius for value in values if value is not None and (celsius := to_celsius(value)) is not None]
    return max(temperatures) if temperatures else None


def to_celsius(value: float) -> float | None:
    """A thermal zone's value in degrees: sysfs has thousandths; some drivers give tenths or degrees.

    None for 0, which an unpowered sensor gives, and for a value that is impossible in each of these units.
    """
    size = abs(value)
    for divisor, least, most in ((1, 1, 150), (10, 151, 1500), (1000, 1501, 150_000)):
        if least <= size <= most:
            celsius = value / divisor
            return celsius if celsius >= COLDEST_C else None
    return None


def to_hertz(value: float) -> float | None:
    """A value of cpufreq in hertz: sysfs has kHz; some drivers give MHz or Hz. None if no unit gives a CPU's clock."""
    hertz = [value * factor for factor in (1e6, 1e3, 1.0) if SLOWEST_HZ <= value * factor <= FASTEST_HZ]
    return hertz[0] if len(hertz) == 1 else None


def mean_frequency_hz(board: Board) -> float | None:
    """Mean over the CPUs of cpufreq's `scaling_cur_freq`. None where the kernel has no cpufreq driver.

    Source: Documentation/admin-guide/pm/cpufreq.rst.
    """
    values = [
        board.number(f"{cpu}/cpufreq/scaling_cur_freq") for cpu in board.folders("/sys/devices/system/cpu/cpu[0-9]*")
    ]
    clocks = [hertz for value in values if value is not None and (hertz := to_hertz(value)) is not None]
    return sum(clocks) / len(clocks) if clocks else None


def is_cooling_cpu(board: Board) -> bool | None:
    """Whether the kernel holds the CPU's clock down for heat now; None without such a cooling device.

    Source: `cur_state` in Documentation/driver-api/thermal/sysfs-api.rst; types `Processor` (ACPI) and `cpufreq-cpuN`.
    """
    states = [
        board.number(f"{device}/cur_state")
        for device in board.folders("/sys/class/thermal/cooling_device*")
        if re.search(r"^(Processor|.*cpufreq)", board.text(f"{device}/type") or "")
    ]
    readable = [state for state in states if state is not None]
    return any(state > 0 for state in readable) if readable else None

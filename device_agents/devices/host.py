"""The device kind for any Linux machine: /proc and /sys only. Also the fallback for boards nobody knows by name.

Sources: Documentation/power/powercap/powercap.rst (RAPL: `energy_uj` in microjoules, wraps at `max_energy_range_uj`),
Documentation/admin-guide/pm/cpufreq.rst, proc(5).
"""

from __future__ import annotations

import platform
import re

from device_agents.devices.board import Board, Counter, Reading, hottest_c, is_cooling_cpu, mean_frequency_hz
from device_agents.devices.kind import DeviceKind

_CPU_ZONES = r"cpu|x86_pkg_temp|acpitz|soc|coretemp"
_LEVEL_3 = frozenset(["avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
_LEVEL_4 = frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_VNNI = {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_BEYOND_4 = {"amx": _BF16 | {"amx_tile", "amx_bf16"}, "bf16": _BF16, "vnni": _VNNI}
_ARM = frozenset(["asimd", "fp"])
_ARM_V8_0 = _ARM | {"crc32"}
_ARM_V8_2 = _ARM_V8_0 | {"asimddp", "asimdhp", "asimdrdm", "atomics", "fphp", "lrcpc"}


def cpu_features(board: Board) -> tuple[str, ...]:
    """The words of /proc/cpuinfo's `flags` (x86) or `Features` (ARM) of the first processor, sorted."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", board.text("/proc/cpuinfo") or "", re.MULTILINE)
    return tuple(sorted(set(match.group(1).split()))) if match else ()


def cpu_model(board: Board) -> str:
    """`model name` of /proc/cpuinfo, or the ARM implementer and part numbers."""
    text = board.text("/proc/cpuinfo") or ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if match:
        return match.group(1).strip()
    numbers = re.findall(r"^CPU (?:implementer|part)\s*:\s*(\S+)$", text, re.MULTILINE)
    return f"ARM {'/'.join(dict.fromkeys(numbers))}" if numbers else "unknown"


def core_count(board: Board) -> int:
    """Processors listed in /proc/cpuinfo; at least 1."""
    return max(1, len(re.findall(r"^processor\s*:", board.text("/proc/cpuinfo") or "", re.MULTILINE)))


def memory_bytes(board: Board) -> int:
    """`MemTotal` of /proc/meminfo."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", board.text("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 1


def x86_targets(features: tuple[str, ...]) -> tuple[str, ...]:
    """The x86-64 levels that this CPU has, best first."""
    have = frozenset(features)
    levels = []
    if have >= _LEVEL_3 | _LEVEL_4:
        levels.append("x86-64-v4")
        # The same machine, asked for by name where a step is in half precision, or multiplies bytes.
        levels += [f"x86-64-v4-{name}" for name, features in _BEYOND_4.items() if have >= features]
    if have >= _LEVEL_3:
        levels.append("x86-64-v3")
    return tuple(levels)


def arm_targets(features: tuple[str, ...]) -> tuple[str, ...]:
    """Generic AArch64 machines run what was built for a board with no more features than they have, best first."""
    have = frozenset(features)
    levels = []
    if have >= _ARM_V8_2:
        levels.append("raspberry-pi-5")
    if have >= _ARM_V8_0:
        levels.append("raspberry-pi-4")
    return with_any_arm(tuple(levels), features)


def with_any_arm(targets: tuple[str, ...], features: tuple[str, ...]) -> tuple[str, ...]:
    """The targets and, last, the one for AArch64 machines of any make, if this one has what all of them have."""
    fits = frozenset(features) >= _ARM and "aarch64" not in targets
    return (*targets, "aarch64") if fits else targets


def governor(board: Board) -> dict[str, str]:
    """The cpufreq governor of the first CPU, where there is one."""
    text = board.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {"governor": text} if text else {}


def max_frequency(board: Board) -> dict[str, str]:
    """The highest clock of any CPU (cpufreq's `cpuinfo_max_freq`, kHz), in hertz, where the kernel tells."""
    cpus = board.folders("/sys/devices/system/cpu/cpu[0-9]*")
    values = [board.number(f"{cpu}/cpufreq/cpuinfo_max_freq") for cpu in cpus]
    frequencies = [value for value in values if value is not None and value > 0]
    return {"max_frequency_hz": str(1000 * max(frequencies))} if frequencies else {}


def energy_counters(board: Board) -> dict[str, Counter]:
    """The readable RAPL package counters, each with the range after which it begins anew."""
    counters: dict[str, Counter] = {}
    for zone in board.folders("/sys/class/powercap/intel-rapl:*"):
        name = board.text(f"{zone}/name") or ""
        value, highest = board.number(f"{zone}/energy_uj"), board.number(f"{zone}/max_energy_range_uj")
        if value is not None and value >= 0 and name.startswith("package"):
            counters[f"rapl {name}"] = Counter(value / 1000, highest / 1000 if highest else None)
    return counters


def read(board: Board) -> Reading:
    return Reading(
        temperature_c=hottest_c(board, _CPU_ZONES),
        frequency_hz=mean_frequency_hz(board),
        throttled=is_cooling_cpu(board),
        counters=energy_counters(board),
    )


def _detect(board: Board) -> str | None:
    return "x86-64" if platform.machine() in ("x86_64", "AMD64") else "aarch64"


KIND = DeviceKind(
    name="host",
    detect=_detect,
    targets={},
    facts=governor,
    read=read,
)

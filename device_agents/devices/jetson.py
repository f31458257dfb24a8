"""NVIDIA Jetson Orin.

Sources: Jetson Linux Developer Guide, "Platform Power and Performance" (`nvpmodel -q`; INA3221 rails by hwmon:
`inN_label`, `inN_input` in mV, `currN_input` in mA; VDD_IN is the module's input) and "tegrastats" (`VDD_IN
4563mW/4563mW`: now/average). Modules by the device tree's `compatible`: p3767-0003/4/5 Orin Nano,
p3767-0000/1 Orin NX, p3701-* AGX Orin. Thermal zones `cpu-thermal`, `tj-thermal`.
"""

from __future__ import annotations

import re

from device_agents.devices.board import Board, Reading, hottest_c, is_cooling_cpu, mean_frequency_hz
from device_agents.devices.host import governor
from device_agents.devices.kind import DeviceKind

_MODULES = (
    (r"p3767-000[345]", "jetson-orin-nano"),
    (r"p3767-000[01]", "jetson-orin-nx"),
    (r"p3701-", "jetson-agx-orin"),
)
_TOTAL_RAILS = ("VDD_IN", "POM_5V_IN")
TEGRASTATS_TIMEOUT_S = 0.4


def _detect(board: Board) -> str | None:
    compatible = board.text("/proc/device-tree/compatible") or ""
    return next((name for pattern, name in _MODULES if re.search(pattern, compatible)), None)


def rails_mw(board: Board) -> dict[str, float]:
    """Power of each labelled INA3221 channel: millivolt times milliampere."""
    rails = {}
    for hwmon in board.folders("/sys/class/hwmon/hwmon*"):
        if board.text(f"{hwmon}/name") != "ina3221":
            continue
        for channel in (1, 2, 3):
            label = board.text(f"{hwmon}/in{channel}_label")
            millivolt = board.number(f"{hwmon}/in{channel}_input")
            milliampere = board.number(f"{hwmon}/curr{channel}_input")
            if label and millivolt is not None and milliampere is not None:
                rails[label] = millivolt * milliampere / 1000.0
    return rails


def tegrastats_mw(line: str) -> dict[str, float]:
    """Rails of one line of tegrastats: the value now, not the average."""
    return {name: float(now) for name, now in re.findall(r"(\w+) (\d+)mW/\d+mW", line)}


def total_power(rails: dict[str, float]) -> tuple[float, str] | None:
    """The module's input rail; on AGX Orin, which has none, the sum of the `VDD_*` rails."""
    for name in _TOTAL_RAILS:
        if name in rails:
            return rails[name], name
    parts = {name: value for name, value in rails.items() if name.startswith(("VDD_", "VDDQ_", "VIN_"))}
    return (sum(parts.values()), "+".join(sorted(parts))) if parts else None


def power_mode(text: str) -> str | None:
    """`NV Power Mode: 15W` of `nvpmodel -q`."""
    match = re.search(r"NV Power Mode:\s*(\S+)", text)
    return match.group(1) if match else None


def _power(board: Board) -> tuple[float, str] | None:
    measured = total_power(rails_mw(board))
    if measured:
        return measured[0], f"ina3221 {measured[1]}"
    line = board.output("tegrastats", "--interval", "100", timeout_s=TEGRASTATS_TIMEOUT_S) or ""
    measured = total_power(tegrastats_mw(line.strip().rpartition("\n")[2]))
    return (measured[0], f"tegrastats {measured[1]}") if measured else None


def _heat(board: Board) -> float | None:
    return hottest_c(board, r"^(cpu|tj)-thermal$|^CPU-therm$")


def read(board: Board) -> Reading:
    power = _power(board)
    return Reading(
        temperature_c=_heat(board),
        frequency_hz=mean_frequency_hz(board),
        throttled=is_cooling_cpu(board),
        power_mw=power[0] if power else None,
        power_sensor=power[1] if power else None,
    )


def _facts(board: Board) -> dict[str, str]:
    facts = {"model": board.text("/proc/device-tree/model") or "", **governor(board)}
    mode = power_mode(board.output("nvpmodel", "-q") or "")
    if mode:
        facts["power_mode"] = mode
    release = board.text("/etc/nv_tegra_release")
    if release:
        facts["jetson_linux"] = release.splitlines()[0][:120]
    return facts


KIND = DeviceKind(
    name="jetson",
    detect=_detect,
    targets={
        "jetson-orin-nano": ("jetson-orin-nano",),
        "jetson-orin-nx": ("jetson-orin-nano",),
        "jetson-agx-orin": ("jetson-agx-orin", "jetson-orin-nano"),
    },
    facts=_facts,
    read=read,
    heat=_heat,
)

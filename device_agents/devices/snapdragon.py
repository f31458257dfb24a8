"""Qualcomm Snapdragon boards and phones, on the device itself (Linux, or a shell under Android).

Sources: Documentation/ABI/testing/sysfs-class-power (`current_now` in microampere, negative or positive while
discharging, `voltage_now` in microvolt), Android's `dumpsys battery` (`temperature: 281` in tenths of a degree) and
`dumpsys thermalservice` (`Thermal Status: 0`..6, android.os.Temperature THROTTLING_*; `Temperature{mValue=35.2,
mType=0, mName=cpu0, mStatus=0}`, type 0 is a CPU), `getprop ro.soc.model`, device tree `qcom,sm8550`.
"""

from __future__ import annotations

import re

from device_agents.devices.board import Board, Reading, hottest_c, is_cooling_cpu, mean_frequency_hz
from device_agents.devices.host import governor
from device_agents.devices.kind import DeviceKind

_CHIPS = {"sm8550": "snapdragon-8-gen-2", "sm8650": "snapdragon-8-gen-3", "sm8450": "snapdragon-8-gen-1"}
_CPU_ZONES = r"^cpu(ss)?[-_0-9]"
_TEMPERATURE = re.compile(r"Temperature\{mValue=(-?[0-9.]+), mType=(\d+), mName=([^,]+), mStatus=(\d+)\}")


def _detect(board: Board) -> str | None:
    compatible = (board.text("/proc/device-tree/compatible") or "").replace("\0", " ")
    if "qcom" not in compatible and board.text("/system/build.prop") is None:
        return None
    words = f"{compatible} {board.output('getprop', 'ro.soc.model') or ''}".lower()
    return next((name for chip, name in _CHIPS.items() if chip in words), None)


def thermal_status(text: str) -> int | None:
    """`Thermal Status` of `dumpsys thermalservice`: 0 none, 1 light, 2 moderate, 3 severe and worse."""
    match = re.search(r"Thermal Status:\s*(\d+)", text)
    return int(match.group(1)) if match else None


def cpu_temperature_c(text: str) -> float | None:
    """The hottest CPU (type 0) of `dumpsys thermalservice`."""
    values = [float(value) for value, kind, _, _ in _TEMPERATURE.findall(text) if kind == "0"]
    return max(values) if values else None


def battery_fields(text: str) -> dict[str, str]:
    """The `name: value` lines of `dumpsys battery`."""
    return {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines()) if value
    }


def battery_power_mw(board: Board) -> float | None:
    """Returns the power that leaves the battery: |current| times voltage. None while it charges: the charger then feeds
    the board.
    """
    supply = "/sys/class/power_supply/battery"
    status = board.text(f"{supply}/status") or ""
    microampere, microvolt = board.number(f"{supply}/current_now"), board.number(f"{supply}/voltage_now")
    if microampere is None or microvolt is None or status.lower() != "discharging":
        return None
    return abs(microampere) * microvolt / 1e9


def read(board: Board) -> Reading:
    is_android = board.text("/system/build.prop") is not None
    service = (board.output("dumpsys", "thermalservice") or "") if is_android else ""
    status = thermal_status(service)
    temperature_c = hottest_c(board, _CPU_ZONES)
    power_mw = battery_power_mw(board)
    return Reading(
        temperature_c=temperature_c if temperature_c is not None else cpu_temperature_c(service),
        frequency_hz=mean_frequency_hz(board),
        throttled=status >= 1 if status is not None else is_cooling_cpu(board),
        power_mw=power_mw,
        power_sensor="battery" if power_mw is not None else None,
    )


def _facts(board: Board) -> dict[str, str]:
    facts = {"model": board.text("/proc/device-tree/model") or "", **governor(board)}
    fields = battery_fields(board.output("dumpsys", "battery") or "")
    if fields.get("temperature", "").isdigit():
        facts["battery_temperature_c"] = f"{int(fields['temperature']) / 10:.1f}"
    if "level" in fields:
        facts["battery_level"] = fields["level"]
    return facts


KIND = DeviceKind(
    name="snapdragon",
    detect=_detect,
    targets={name: (name,) if name == "snapdragon-8-gen-2" else () for name in _CHIPS.values()},
    facts=_facts,
    read=read,
)

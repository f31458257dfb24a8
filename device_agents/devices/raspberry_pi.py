"""Raspberry Pi 3 (and Zero 2 W, the same chip), 4 and 5.

Sources: raspberrypi.com/documentation/computers/os.html (`vcgencmd get_throttled`: bit 0 under-voltage, 1 clock capped,
2 throttled, 3 soft temperature limit; bits 16-19 the same since boot), the `raspberrypi-hwmon` driver (`rpi_volt`,
`in0_lcrit_alarm`), the firmware driver's `get_throttled` file, `vcgencmd pmic_read_adc` of the Pi 5 (rails as
`NAME_A current(n)=1.5A` and `NAME_V volt(n)=3.3V`).
"""

from __future__ import annotations

import re

from device_agents.devices.board import Board, Reading, hottest_c, mean_frequency_hz
from device_agents.devices.host import governor
from device_agents.devices.kind import DeviceKind

_NOW_BITS = 0b1111
_SYSFS_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
_RAIL = re.compile(r"(\w+)_([AV])\s+(?:current|volt)\(\d+\)=([0-9.]+)[AV]")


def _detect(board: Board) -> str | None:
    model = board.text("/proc/device-tree/model") or ""
    if re.match(r"Raspberry Pi Zero 2\b", model):
        return "raspberry-pi-3"
    match = re.match(r"Raspberry Pi (?:Compute Module )?([345])\b", model)
    return f"raspberry-pi-{match.group(1)}" if match else None


def throttled_bits(board: Board) -> int | None:
    """The firmware's throttling word, from `vcgencmd` or, when that is absent or hangs, from sysfs."""
    match = re.search(r"throttled=0x([0-9a-fA-F]+)", board.output("vcgencmd", "get_throttled") or "")
    if match:
        return int(match.group(1), 16)
    text = board.text(_SYSFS_THROTTLED) or ""
    return int(text, 16) if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text) else None


def pmic_power_mw(text: str) -> float | None:
    """Returns the sum over rails of current times voltage, from `vcgencmd pmic_read_adc`; None without a whole rail."""
    rails: dict[str, dict[str, float]] = {}
    for name, unit, value in _RAIL.findall(text):
        rails.setdefault(name, {})[unit] = float(value)
    powers = [rail["A"] * rail["V"] for rail in rails.values() if "A" in rail and "V" in rail]
    return 1000.0 * sum(powers) if powers else None


def _is_under_voltage(board: Board) -> bool | None:
    for hwmon in board.folders("/sys/class/hwmon/hwmon*"):
        if board.text(f"{hwmon}/name") == "rpi_volt":
            alarm = board.number(f"{hwmon}/in0_lcrit_alarm")
            return None if alarm is None else alarm != 0
    return None


def _heat(board: Board) -> float | None:
    return hottest_c(board, r"^cpu-thermal$")


def read(board: Board) -> Reading:
    bits = throttled_bits(board)
    power_mw = (
        pmic_power_mw(board.output("vcgencmd", "pmic_read_adc") or "") if _detect(board) == "raspberry-pi-5" else None
    )
    return Reading(
        temperature_c=_heat(board),
        frequency_hz=mean_frequency_hz(board),
        throttled=bool(bits & _NOW_BITS) if bits is not None else _is_under_voltage(board),
        power_mw=power_mw,
        power_sensor="pmic rails" if power_mw is not None else None,
    )


def _facts(board: Board) -> dict[str, str]:
    facts = {"model": board.text("/proc/device-tree/model") or "", **governor(board)}
    bits = throttled_bits(board)
    if bits is not None:
        facts["throttled_since_boot"] = f"0x{bits >> 16 & _NOW_BITS:x}"
    return facts


KIND = DeviceKind(
    name="raspberry-pi",
    detect=_detect,
    targets={
        "raspberry-pi-3": ("raspberry-pi-3",),
        "raspberry-pi-4": ("raspberry-pi-4", "raspberry-pi-3"),
        "raspberry-pi-5": ("raspberry-pi-5", "raspberry-pi-4", "raspberry-pi-3"),
    },
    facts=_facts,
    read=read,
    heat=_heat,
)

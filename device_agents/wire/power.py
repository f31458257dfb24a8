"""The power that a board draws, from idle to full load, by its class. For agent and farm; standard library only.

| class | least | most |
|---|---|---|
| Raspberry Pi 3, 4, 5 | a fifth of its typical current, 400, 600, 800 mA at 5 V | its supply's: 2.5, 3, 5 A |
| Jetson Orin Nano, NX, AGX | 1 W, AGX 2 W | 1.6 times its highest power mode, 25, 40, 60 W |
| Snapdragon 8 | 0.1 W: its battery lasts for days | 25 W |
| other boards | 0 | 300 W, what no board's rails give |
| hosts | 0 | 5 kW, what no host's supply gives |

The limits are generous, and less than a factor of a thousand apart, so that a value in another unit is recognised.

Sources: documentation of Raspberry Pi, "Power supply"; Jetson Linux Developer Guide, "Platform Power and Performance".
Those of Snapdragon are estimates.
"""

from __future__ import annotations

from typing import NamedTuple


class PowerRange(NamedTuple):
    """A range of power in milliwatts."""

    least_mw: float
    most_mw: float


_OF_CLASS = {
    "raspberry-pi-3": PowerRange(400.0, 12_500.0),
    "raspberry-pi-4": PowerRange(600.0, 15_000.0),
    "raspberry-pi-5": PowerRange(800.0, 25_000.0),
    "jetson-orin-nano": PowerRange(1000.0, 40_000.0),
    "jetson-orin-nx": PowerRange(1000.0, 64_000.0),
    "jetson-agx-orin": PowerRange(2000.0, 96_000.0),
    "snapdragon-8-gen-1": PowerRange(100.0, 25_000.0),
    "snapdragon-8-gen-2": PowerRange(100.0, 25_000.0),
    "snapdragon-8-gen-3": PowerRange(100.0, 25_000.0),
}
_OF_OTHERS = {"hardware": PowerRange(0.0, 3e5), "host": PowerRange(0.0, 5e6)}


def power_range(device_class: str, measurement_class: str) -> PowerRange | None:
    """The power that a device of this class can draw; None for emulated and simulated ones."""
    others = _OF_OTHERS.get(measurement_class)
    return _OF_CLASS.get(device_class, others) if measurement_class == "hardware" else others

"""The device modules, in one list. Adding a board: one file, one line here."""

from __future__ import annotations

from device_agents.devices import emulated, host, jetson, raspberry_pi, snapdragon
from device_agents.devices.board import Board, Counter, Reading
from device_agents.devices.kind import DeviceKind

DEVICE_KINDS: tuple[DeviceKind, ...] = (
    raspberry_pi.KIND,
    jetson.KIND,
    snapdragon.KIND,
    host.KIND,
    emulated.KIND,
)
"""The kinds of devices in the order of recognition; `host` knows every Linux machine, `emulated` is only ever chosen by
name.
"""

__all__ = ["DEVICE_KINDS", "Board", "Counter", "DeviceKind", "Reading"]

"""The identity of this machine: what a copied memory card or state folder does not carry along."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from device_agents.devices.board import Board
from device_agents.wire import Machine

SERIAL_FILES = (
    "/proc/device-tree/serial-number",
    "/sys/firmware/devicetree/base/serial-number",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/dmi/id/board_serial",
)
"""Device tree of boards; SMBIOS of PCs, which root alone may read.

Source: Documentation/ABI/testing/sysfs-firmware-dmi-tables of the Linux kernel, and devicetree.org's root node."""
LEAST_DIFFERENT = 4
"""Characters: firmware that was never given a serial number says zeros, or one letter over and over."""
PLACEHOLDERS = re.compile(r"to be filled|default string|not specified|none|serial", re.IGNORECASE)


def machine_of(board: Board, state: Path) -> Machine:
    """The machine with this `state` folder."""
    return Machine(
        serial=(_serial(board) or _network_card(board))[:100],
        boot_id=(board.text("/proc/sys/kernel/random/boot_id") or "")[:40],
        host=socket.gethostname()[:100],
        folder=str(state)[-300:],
        folder_id=str(state.stat().st_ino),
    )


def _serial(board: Board) -> str:
    in_cpuinfo = re.search(r"^Serial\s*:\s*(\S+)$", board.text("/proc/cpuinfo") or "", re.MULTILINE)
    texts = [*map(board.text, SERIAL_FILES), in_cpuinfo.group(1) if in_cpuinfo else None]
    if board.text("/system/build.prop") is not None:
        texts.append(board.output("getprop", "ro.serialno"))
    return next((text.strip() for text in texts if text and _is_serial(text.strip())), "")


def _is_serial(text: str) -> bool:
    return len(set(text)) >= LEAST_DIFFERENT and not PLACEHOLDERS.search(text)


def _network_card(board: Board) -> str:
    """The address of the first network card that is a device, and not made by software."""
    cards = (card for card in board.folders("/sys/class/net/*") if board.folders(f"{card}/device"))
    addresses = (board.text(f"{card}/address") or "" for card in cards)
    return next((address for address in addresses if _is_serial(address)), "")

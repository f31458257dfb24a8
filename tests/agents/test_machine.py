"""Which machine an agent runs on, from files of boards and PCs as their kernels write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_agents.devices import Board
from device_agents.devices.machine import machine_of

UUID = "4c4c4544-0042-3510-8051-b4c04f4e3732"
CARD = {"/sys/class/net/eth0/address": "dc:a6:32:01:02:03\n", "/sys/class/net/eth0/device/uevent": ""}


def board(root: Path, files: dict[str, str]) -> Board:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Board(root, tool=lambda argv, _: "R58N123ABC\n" if argv[-1] == "ro.serialno" else None)


@pytest.mark.parametrize(
    ("files", "serial"),
    [
        ({"/proc/device-tree/serial-number": "10000000a1b2c3d4\0"}, "10000000a1b2c3d4"),
        ({"/proc/cpuinfo": "model name\t: ARMv7\nSerial\t\t: 00000000a1b2c3d4\n", **CARD}, "00000000a1b2c3d4"),
        ({"/sys/class/dmi/id/product_uuid": f"{UUID}\n"}, UUID),
        ({"/sys/class/dmi/id/board_serial": "To be filled by O.E.M.\n", **CARD}, "dc:a6:32:01:02:03"),
        ({"/proc/device-tree/serial-number": "0000000000000000\0", **CARD}, "dc:a6:32:01:02:03"),
        ({"/system/build.prop": ""}, "R58N123ABC"),
        ({"/sys/class/net/docker0/address": "02:42:ac:11:00:02\n"}, ""),
        ({}, ""),
    ],
)
def test_serial_number(tmp_path: Path, files: dict[str, str], serial: str) -> None:
    assert machine_of(board(tmp_path, files), tmp_path).serial == serial


def test_a_copy_of_a_state_folder_has_another_id(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    machines = [machine_of(Board(), tmp_path / name) for name in ("first", "second", "first")]
    assert machines[0] == machines[2]
    assert machines[0].folder_id != machines[1].folder_id
    assert (machines[0].serial, machines[0].boot_id) == (machines[1].serial, machines[1].boot_id)

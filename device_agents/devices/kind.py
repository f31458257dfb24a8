"""The form of a device module: a record of plain functions over a `Board`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from device_agents.devices.board import Board, Reading


@dataclass(frozen=True)
class DeviceKind:
    """A family of boards that is recognised and read in one way."""

    name: str
    detect: Callable[[Board], str | None]
    """The device class (`raspberry-pi-4`) if this board is of the family, else None."""
    targets: Mapping[str, tuple[str, ...]]
    """Device class -> compiler targets it can run, best first."""
    facts: Callable[[Board], dict[str, str]]
    """Facts that identify the state of the board beside a number: model, power mode, governor, firmware."""
    read: Callable[[Board], Reading]
    heat: Callable[[Board], float | None] | None = None
    """The temperature of a reading alone, where tools make a whole one slow."""

    def temperature_c(self, board: Board) -> float | None:
        """Returns the temperature of the hottest processor zone; None without such a sensor."""
        return self.heat(board) if self.heat is not None else self.read(board).temperature_c

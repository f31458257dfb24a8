"""The unit of a board's power sensor: the one in which its values are possible, the same for a whole run."""

from __future__ import annotations

from dataclasses import replace

from device_agents.devices.board import Reading
from device_agents.wire import PowerRange

FACTORS = (1.0, 1e3, 1e6, 1e-3)
"""They correct a power: right, current or voltage in thousandths for millionths, both, microwatts."""


class PowerUnit:
    """Corrects the power of readings. The first value that fits in exactly one unit decides; others are left out."""

    def __init__(self, bounds: PowerRange) -> None:
        self._bounds = bounds
        self._factor: float | None = None

    def corrected(self, reading: Reading) -> Reading:
        """The reading with its power in milliwatts, or without it, and with a note on either correction."""
        if reading.power_mw is None:
            return reading
        if self._factor is None:
            factors = FACTORS if self._bounds.least_mw > 0 else FACTORS[:1]
            fitting = [factor for factor in factors if self._fits(reading.power_mw * factor)]
            self._factor = 1.0 if 1.0 in fitting else fitting[0] if len(fitting) == 1 else None
        between = f"between {self._bounds.least_mw:,.0f} and {self._bounds.most_mw:,.0f} mW"
        if self._factor is None or not self._fits(reading.power_mw * self._factor):
            note = f"values of {reading.power_sensor} are left out: such a board draws {between}"
            return replace(reading, power_mw=None, power_sensor=None, notes=(*reading.notes, note))
        if self._factor == 1.0:
            return reading
        note = f"{reading.power_sensor} is multiplied by {self._factor:,.9g}: such a board draws {between}"
        return replace(reading, power_mw=reading.power_mw * self._factor, notes=(*reading.notes, note))

    def _fits(self, power_mw: float) -> bool:
        return self._bounds.least_mw <= power_mw <= self._bounds.most_mw

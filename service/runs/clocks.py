"""How long a run and an attempt may take: as long as its user asked for, else the farm's own limit; never more than the
farm's ceiling."""

from __future__ import annotations

from device_agents.wire import EMULATION_TIME_FACTOR, RunSettings
from service.database.models import Device
from service.problems import Invalid
from service.settings import Settings


def run_s(settings: Settings, wanted: RunSettings | None = None) -> float:
    """Seconds for all processes of an attempt together, as for a real board; None: of a run that asks for nothing."""
    return settings.run_s if wanted is None or wanted.time_limit_s is None else wanted.time_limit_s


def most_run_s(settings: Settings) -> float:
    """What a run may ask for."""
    return max(settings.run_s, settings.run_most_s)


def check_asked(settings: Settings, wanted: RunSettings) -> None:
    """That a run asks for no more than it can have. Raises: Invalid."""
    most_s = most_run_s(settings)
    if run_s(settings, wanted) > most_s:
        raise Invalid("limits.run-time", f"{wanted.time_limit_s:,.0f} s asked, a run may take {most_s:,.0f}",
                      where="time_limit_s", hint="ask for less, and start another run from its weights; or ask the "
                      "operator for a higher POCKFARM_RUN_MOST_S")  # fmt: skip


def clock_s(settings: Settings, device: Device, wanted: RunSettings | None = None) -> float:
    """Seconds that an attempt on the device may take, transfer and run together."""
    factor = EMULATION_TIME_FACTOR if device.measurement_class == "emulated" else 1.0
    return settings.transfer_s + run_s(settings, wanted) * factor

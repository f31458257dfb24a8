"""Time limits of a run and an attempt: what the user asked for, else the farm's default, and never more than the farm's
ceiling.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from device_agents.wire import EMULATION_TIME_FACTOR, SUSTAIN_SHARE, RunSettings
from service.base.problems import Forbidden, Invalid
from service.base.settings import Settings
from service.people.quotas.limits import HINT, limit_of, quotas_of
from service.store.database.models import Device
from service.store.database.scope import organisation_of


def run_s(settings: Settings, requested: RunSettings | None = None) -> float:
    """Returns the seconds for all processes of an attempt together, as for a real board; None: of a run that asks for
    nothing. A long sustained measurement gets enough time without its user asking.
    """
    if requested is None or requested.time_limit_s is None:
        return max(settings.run_s, _sustained_s(requested))
    return requested.time_limit_s


def _sustained_s(requested: RunSettings | None) -> float:
    return requested.sustained_s / SUSTAIN_SHARE if requested is not None and requested.mode == "sustained" else 0.0


def most_run_s(settings: Settings) -> float:
    """Returns the longest time that a run may ask for."""
    return max(settings.run_s, settings.run_most_s)


def check_asked(session: Session, settings: Settings, requested: RunSettings) -> None:
    """Checks that a run asks for no more time than it can have. Raises: Invalid; Forbidden (more than its organisation
    may).
    """
    most_s, asked_s = most_run_s(settings), run_s(settings, requested)
    where, asks = ("time_limit_s", "asked") if requested.time_limit_s is not None else ("sustain_s", "needed")
    if asked_s > most_s:
        raise Invalid(
            "limits.run-time",
            f"{asked_s:,.0f} s {asks}, a run may take {most_s:,.0f}",
            where=where,
            hint="ask for less, and start another run from its weights; or ask the "
            "operator for a higher POCKFARM_RUN_MOST_S",
        )
    if requested.time_limit_s is None and asked_s <= settings.run_s:
        return
    limit_s = limit_of(settings, quotas_of(session, organisation_of(session)), "run_s")
    if limit_s is not None and asked_s > limit_s:
        raise Forbidden(
            "quota.run_s",
            f"{asked_s:,.0f} s {asks}, a run of this organisation may take {limit_s:,.0f}",
            where=where,
            hint=f"ask for less, and start another run from its weights; {HINT}",
            cause="limits",
            extra={"quota": "run_s", "limit": limit_s, "use": asked_s},
        )


def clock_s(settings: Settings, device: Device, requested: RunSettings | None = None) -> float:
    """Returns the seconds that an attempt on the device may take, transfer and run together."""
    return settings.transfer_s + run_s(settings, requested) * time_factor(device)


def longest_s(settings: Settings, device: Device) -> float:
    """Returns the seconds that an attempt on the device may take at most, whatever its run asks for."""
    return settings.transfer_s + most_run_s(settings) * time_factor(device)


def time_factor(device: Device) -> float:
    """Returns the factor by which the device gets more time for a run than a board."""
    return EMULATION_TIME_FACTOR if device.measurement_class == "emulated" else 1.0


def free_s(settings: Settings, device: Device, requested: RunSettings | None) -> float:
    """Returns the seconds without maintenance that a device needs before it gets the run. A device that asks for work
    is only told whether a run of the farm's own limit fits, so a shorter one waits as long as that.
    """
    return max(clock_s(settings, device), clock_s(settings, device, requested))

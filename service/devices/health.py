"""A device's health now, in one word: what pages, the API and the command line show."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.devices.sightings import SILENT_AFTER_S
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device
from service.store.database.scope import EVERYONES

Health = Literal["online", "busy", "offline", "quarantined", "draining", "drained", "removed"]


def health_of(device: Device, *, is_busy: bool, now: float | None = None) -> Health:
    """Returns the device's health. `offline`: it has not been heard of for 90 s; `draining`: it finishes its run and
    takes nothing new.
    """
    if device.state == "removed":
        return "removed"
    if device.state == "quarantined":
        return "quarantined"
    if (time.time() if now is None else now) - device.last_seen_at > SILENT_AFTER_S:
        return "offline"
    if device.drained_at is not None:
        return "draining" if is_busy else "drained"
    return "busy" if is_busy else "online"


def busy_devices(session: Session, device_ids: Collection[str] | None = None) -> frozenset[str]:
    """Returns those of the devices that have a run now, whoever sent it; None: of all devices."""
    live = select(Attempt.device_id).where(Attempt.state.in_(LIVE_ATTEMPT_STATES))
    if device_ids is not None:
        live = live.where(Attempt.device_id.in_(device_ids))
    return frozenset(session.scalars(live, execution_options=dict(EVERYONES)))

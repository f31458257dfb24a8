"""Gives timed canaries to devices that work: small models whose steps are measured again and again, for ever."""

from __future__ import annotations

import random
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import RunSettings
from service.canary.building import BATCH, COMPILE_PAUSE_S, SILENT_AFTER_S, TIMED, bundle_for, is_building, queue
from service.database.models import OPEN_RUN_STATES, Device, Run
from service.devices import blame
from service.farm import Farm
from service.settings import Settings

SETTINGS = RunSettings("profile", steps=100)
"""Five blocks of twenty steps."""
FIRST_AFTER_S = 3600.0
"""A device that is new has other things to do."""
SOONER = 6
"""After times that may have changed, the next canary comes in so much less time."""
TIMED_CLASSES = ("hardware", "host")
"""An emulator's times say nothing."""


def due(farm: Farm) -> list[str]:
    """Ids of devices that work, and whose time for the next canaries has come."""
    if farm.settings.timed_canary_s <= 0:
        return []
    now = time.time()
    query = select(Device.id).where(*_is_due(now), Device.last_seen_at > now - SILENT_AFTER_S)
    with farm.database.read() as session:
        return list(session.scalars(query.order_by(Device.timed_canary_at).limit(BATCH)))


def _is_due(now: float):  # type: ignore[no-untyped-def]
    works = (Device.state == "active", Device.drained_at.is_(None), Device.canary_off.is_(False))
    return (*works, Device.measurement_class.in_(TIMED_CLASSES), Device.timed_canary_at <= now)


def send(session: Session, farm: Farm, device_id: str) -> list[Run]:
    """A run of each canary that has none, if they are still due; those whose bundle is being built come later."""
    now, pause_s = time.time(), farm.settings.timed_canary_s
    query = select(Device).where(Device.id == device_id, *_is_due(now)).with_for_update(skip_locked=True)
    device = session.scalar(query, execution_options=blame.FRESH)
    if device is None:
        return []
    if device.timed_canary_at == 0:  # those of a fleet that starts together are spread over the pause
        device.timed_canary_at = now + min(FIRST_AFTER_S, pause_s) * random.uniform(0.5, 1.5)
        return []
    mine = select(Run.id).where(Run.is_canary, Run.wanted_device_id == device.id, Run.state.in_(OPEN_RUN_STATES))
    device.timed_canary_at = now + COMPILE_PAUSE_S
    if session.scalar(mine.limit(1)) is not None or is_building(session):
        return []
    bundles = [bundle_for(session, farm, device, canary) for canary in TIMED]
    if is_building(session):
        return []
    device.timed_canary_at = now + pause_s * random.uniform(0.9, 1.1)
    return [queue(session, device, bundle, SETTINGS) for bundle in bundles if bundle is not None]


def soon(device: Device, settings: Settings) -> None:
    """Its newest times may have changed for good: a few more show it."""
    pause_s = settings.timed_canary_s / SOONER * random.uniform(0.9, 1.1)
    device.timed_canary_at = min(device.timed_canary_at, time.time() + pause_s)

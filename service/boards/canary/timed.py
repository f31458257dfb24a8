"""Gives timed canaries to devices that work: small models whose steps are measured again and again, for ever."""

from __future__ import annotations

import random
import time

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from device_agents.wire import REAL_CLASSES, RunSettings
from service.base.settings import Settings
from service.boards.canary.building import (
    COMPILE_PAUSE_S,
    MAY_BE_GIVEN,
    TIMED,
    bundle_for,
    has_one,
    is_building,
    locked_device,
    queue,
    there,
)
from service.store.database.models import Device, Run
from service.store.farm import Farm

SETTINGS = RunSettings("profile", steps=100)
"""Five blocks of twenty steps."""
FIRST_AFTER_S = 3600.0
"""A device that is new has other things to do."""
SOONER = 6
"""Factor by which the pause before the next canary is shortened after times that may have changed."""


def due(farm: Farm) -> list[str]:
    """Returns the ids of devices that work, and whose time for the next canaries has come."""
    return there(farm, Device.timed_canary_at, *_is_due(time.time())) if farm.settings.timed_canary_s > 0 else []


def _is_due(now: float) -> tuple[ColumnElement[bool], ...]:
    is_real = Device.measurement_class.in_(REAL_CLASSES)
    return (Device.state == "active", *MAY_BE_GIVEN, is_real, Device.timed_canary_at <= now)


def send(session: Session, farm: Farm, device_id: str) -> list[Run]:
    """Queues a run of each canary that has none, if they are still due; those whose bundle is being built come
    later.
    """
    now, pause_s = time.time(), farm.settings.timed_canary_s
    device = locked_device(session, device_id, *_is_due(now))
    if device is None:
        return []
    if device.timed_canary_at == 0:  # those of a fleet that starts together are spread over the pause
        device.timed_canary_at = now + min(FIRST_AFTER_S, pause_s) * random.uniform(0.5, 1.5)
        return []
    device.timed_canary_at = now + COMPILE_PAUSE_S
    if has_one(session, device) or is_building(session):
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

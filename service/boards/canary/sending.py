"""Gives canary runs to quarantined devices: the sweeper's step, and the data."""

from __future__ import annotations

import io
import secrets
import time

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from device_agents.wire import RunSettings
from service.artefacts.datasets import service as datasets
from service.artefacts.datasets.arrays import ArrayInfo
from service.boards.canary.building import (
    COMPILE_PAUSE_S,
    HEALTH,
    MAY_BE_GIVEN,
    bundle_for,
    has_one,
    locked_device,
    queue,
    there,
)
from service.devices import blame
from service.store.database.models import Bundle, Device, Run
from service.store.farm import Farm


def due(farm: Farm) -> list[str]:
    """Returns the ids of devices that strikes have quarantined, that ask for work, and whose pause is over."""
    return there(farm, Device.canary_at, *_is_due(time.time())) if farm.settings.canary_s > 0 else []


def _is_due(now: float) -> tuple[ColumnElement[bool], ...]:
    is_ill = (Device.state == "quarantined", Device.quarantined_for == blame.BY_STRIKES)
    return (*is_ill, *MAY_BE_GIVEN, Device.canary_at <= now)


def send(session: Session, farm: Farm, device_id: str) -> Run | None:
    """Queues a canary run for the device if it is still due; else, or while its bundle is being built, returns None."""
    now = time.time()
    device = locked_device(session, device_id, *_is_due(now))
    if device is None:
        return None
    if device.canary_at == 0:  # just quarantined: who mends it gets some time
        device.canary_at = now + farm.settings.canary_s
        return None
    device.canary_at = now + COMPILE_PAUSE_S
    bundle = None if has_one(session, device) else bundle_for(session, farm, device, HEALTH)
    return _send(session, farm, device, bundle) if bundle is not None else None


def _send(session: Session, farm: Farm, device: Device, bundle: Bundle) -> Run:
    from service.devices import canary_reference as reference

    seed = secrets.randbelow(1 << 31)
    data = reference.archive(seed)
    stored = farm.storage.put(io.BytesIO(data), limit_bytes=len(data))
    x, y = reference.data(seed)
    arrays = {"x": ArrayInfo(str(x.dtype), x.shape), "y": ArrayInfo(str(y.dtype), y.shape)}
    dataset = datasets.keep(session, stored, arrays, name=HEALTH.name, settings=farm.settings).dataset
    settings = RunSettings("train", steps=reference.STEPS, seed=seed)
    run = queue(session, device, bundle, settings, dataset.digest)
    blame.note(session, device.id, "canary", f"run {run.id} is to show whether it works again")
    return run

"""Gives canary runs to quarantined devices: the sweeper's step, and the data."""

from __future__ import annotations

import io
import secrets
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from device_agents.wire import RunSettings
from service.canary.building import BATCH, COMPILE_PAUSE_S, HEALTH, SILENT_AFTER_S, bundle_for, queue
from service.database.models import OPEN_RUN_STATES, Bundle, Device, Run
from service.datasets import service as datasets
from service.datasets.arrays import ArrayInfo
from service.devices import blame
from service.farm import Farm


def due(farm: Farm) -> list[str]:
    """Ids of devices that strikes have quarantined, that ask for work, and whose pause is over."""
    if farm.settings.canary_s <= 0:
        return []
    now = time.time()
    query = select(Device.id).where(*_is_due(now), Device.last_seen_at > now - SILENT_AFTER_S)
    with farm.database.read() as session:
        return list(session.scalars(query.limit(BATCH)))


def _is_due(now: float):  # type: ignore[no-untyped-def]
    is_ill = (Device.state == "quarantined", Device.quarantined_for == blame.BY_STRIKES)
    return (*is_ill, Device.canary_off.is_(False), Device.drained_at.is_(None), Device.canary_at <= now)


def send(session: Session, farm: Farm, device_id: str) -> Run | None:
    """A canary run for the device if it is still due; else, or while its bundle is being built, None."""
    now = time.time()
    query = select(Device).where(Device.id == device_id, *_is_due(now)).with_for_update(skip_locked=True)
    device = session.scalar(query, execution_options=blame.FRESH)
    if device is None:
        return None
    if device.canary_at == 0:  # just quarantined: who mends it gets some time
        device.canary_at = now + farm.settings.canary_s
        return None
    mine = select(Run.id).where(Run.is_canary, Run.wanted_device_id == device.id, Run.state.in_(OPEN_RUN_STATES))
    device.canary_at = now + COMPILE_PAUSE_S
    bundle = None if session.scalar(mine.limit(1)) else bundle_for(session, farm, device, HEALTH)
    return _send(session, farm, device, bundle) if bundle is not None else None


def _send(session: Session, farm: Farm, device: Device, bundle: Bundle) -> Run:
    from service.canary import reference

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

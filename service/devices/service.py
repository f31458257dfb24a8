"""Devices as operators and the sweeper see them: listed, quarantined, released, removed, struck."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import states
from service.database.models import Device, DeviceEvent, EnrolmentToken
from service.database.paging import newest_first
from service.devices.blame import forget_strikes, hold_alone, note
from service.identifiers import clean_text, new_secret, secret_hash
from service.problems import Conflict, NotFound

SOON = 1.0
"""A moment that has passed, and is not 0, which says that nothing has been planned."""
EVENTS = {"active": "release", "quarantined": "quarantine", "removed": "remove"}


def find(session: Session, device_id: str) -> Device:
    """The device. Raises: NotFound."""
    device = session.get(Device, device_id)
    if device is None:
        raise NotFound("device.unknown", f"no device {device_id!r:.60}", hint="GET /devices lists them")
    return device


def newest_devices(
    session: Session, filters: Mapping[str, str | None], *, limit: int, cursor: str | None
) -> tuple[Sequence[Device], str | None]:
    """A page of devices whose columns equal the given filters, the newest first, and the next cursor."""
    query = select(Device)
    for column, value in filters.items():
        if value is not None:
            query = query.where(getattr(Device, column) == value)
    return newest_first(session, query, Device.id, limit=limit, cursor=cursor)


def history(session: Session, device_id: str, *, limit: int = 100) -> Sequence[DeviceEvent]:
    """The newest lines of a device's health history, the newest first."""
    query = select(DeviceEvent).where(DeviceEvent.device_id == device_id)
    return session.scalars(query.order_by(DeviceEvent.id.desc()).limit(limit)).all()


def set_state(session: Session, device_id: str, state: str, reason: str) -> Device:
    """Quarantine (no more work), release or remove (never again) a device. Raises: NotFound; Conflict if removed."""
    device = hold_alone(session, device_id) or find(session, device_id)
    if device.state == "removed" and state != "removed":
        raise Conflict("device.removed", "this device was removed", hint="enrol it again with a new token")
    states.move(session, device, EVENTS[state], message=reason)
    device.state_reason, device.quarantined_for = clean_text(reason, 1000), ""
    if state == "active":
        device.released_at = time.time()
        forget_strikes(session, device)
    return device


def set_canary(session: Session, device_id: str, *, enabled: bool) -> Device:
    """Turn canary runs on (the next one comes at once) or off for a device. Raises: NotFound."""
    device = hold_alone(session, device_id) or find(session, device_id)
    device.canary_off = not enabled
    device.canary_at = min(device.canary_at or SOON, SOON) if enabled else device.canary_at
    note(
        session, device.id, "canary", "an operator turned canary runs on" if enabled else "an operator turned them off"
    )
    return device


def create_enrolment_token(session: Session, *, device_class: str | None, lifetime_s: float) -> tuple[str, float]:
    """A one-time enrolment token, and when it expires."""
    token, expires_at = new_secret(), time.time() + lifetime_s
    session.add(EnrolmentToken(token_hash=secret_hash(token), device_class=device_class, expires_at=expires_at))
    return token, expires_at

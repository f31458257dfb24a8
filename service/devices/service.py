"""Devices as operators and the sweeper see them: listed, quarantined, released, removed, struck."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.base.identifiers import clean_text
from service.base.problems import Conflict, Forbidden, Invalid, NotFound
from service.devices.blame import forget_strikes, hold_alone, note
from service.devices.wants import TAG_KEY, TAG_VALUE
from service.store import states
from service.store.calls import call_device
from service.store.database.models import LIVE_ATTEMPT_STATES, Attempt, Device, DeviceEvent
from service.store.database.paging import newest_first
from service.store.database.scope import KEY, organisation_of

MOST_TAGS = 64
SHOWN = 3
"""Devices of one name that an answer tells of."""
SOON = 1.0
"""A moment that has passed, and is not 0, which says that nothing has been planned."""
EVENTS = {"active": "release", "quarantined": "quarantine", "removed": "remove"}


def find(session: Session, device_id: str) -> Device:
    """Returns the device. Raises: NotFound."""
    device = session.get(Device, device_id)
    if device is None:
        raise NotFound("device.unknown", f"no device {device_id!r:.60}", hint=_called(session, device_id))
    return device


def _called(session: Session, name: str) -> str:
    """Refuses a name in place of an id, since several devices may have it. Says which devices have it."""
    query = select(Device.id).where(Device.name == name[:300], Device.state != "removed").order_by(Device.id)
    ids = session.scalars(query.limit(SHOWN + 1)).all()
    if not ids:
        return "GET /devices lists them"
    more = ", and more" if len(ids) > SHOWN else ""
    return f"that is a name, of {', '.join(ids[:SHOWN])}{more}: name a device by its id"


def is_own(session: Session, device: Device) -> bool:
    """Whether it belongs to the session's organisation."""
    return organisation_of(session) == device.organisation_id


def newest_devices(
    session: Session, filters: Mapping[str, str | None], *, limit: int, cursor: str | None
) -> tuple[Sequence[Device], str | None]:
    """Returns a page of devices whose columns equal the given filters, the newest first, and the next cursor."""
    query = select(Device)
    for column, value in filters.items():
        if value is not None:
            query = query.where(getattr(Device, column) == value)
    return newest_first(session, query, Device.id, limit=limit, cursor=cursor)


def history(session: Session, device_id: str, *, limit: int = 100) -> Sequence[DeviceEvent]:
    """Returns the newest lines of a device's health history, the newest first."""
    query = select(DeviceEvent).where(DeviceEvent.device_id == device_id)
    return session.scalars(query.order_by(DeviceEvent.id.desc()).limit(limit)).all()


def set_state(session: Session, device_id: str, state: str, reason: str) -> Device:
    """Quarantines (no more work), releases or removes (never again) a device. Raises: NotFound; Conflict if removed."""
    device = owned_device(session, device_id)
    if device.state == "removed" and state != "removed":
        raise Conflict("device.removed", "this device was removed", hint="enrol it again with a new token")
    states.move(session, device, EVENTS[state], message=reason)
    device.state_reason, device.quarantined_for = clean_text(reason, 1000), ""
    call_device(session, device.id)
    if state == "active":
        device.released_at = time.time()
        forget_strikes(session, device)
    return device


def owned_device(session: Session, device_id: str) -> Device:
    """Returns the device, held. Raises: NotFound; Forbidden for one that others share with the session's
    organisation.
    """
    device = hold_alone(session, device_id) or find(session, device_id)
    whose = session.info.get(KEY)
    if whose is not None and whose != device.organisation_id:
        raise Forbidden(
            "device.owner",
            "this device is shared with your organisation, and belongs to another",
            where="device_id",
            hint="its owner decides about it; ask whoever runs the farm",
        )
    return device


def set_canary(session: Session, device_id: str, *, enabled: bool) -> Device:
    """Turns canary runs on (the next one comes at once) or off for a device. Raises: NotFound."""
    device = owned_device(session, device_id)
    device.canary_off = not enabled
    call_device(session, device_id)
    device.canary_at = min(device.canary_at or SOON, SOON) if enabled else device.canary_at
    note(
        session, device.id, "canary", "an operator turned canary runs on" if enabled else "an operator turned them off"
    )
    return device


def set_drained(session: Session, device_id: str, *, reason: str | None) -> Device:
    """Drains a device for a reason (it finishes what it has, and takes nothing new), or, with None, lets it take work
    again. Raises: NotFound; Conflict if removed.
    """
    device = owned_device(session, device_id)
    if device.state == "removed":
        raise Conflict("device.removed", "this device was removed", hint="enrol it again with a new token")
    if reason is None:
        if device.drained_at is not None:
            note(session, device.id, "resumed")
        call_device(session, device_id)
        device.drained_at, device.drain_reason = None, ""
        call_device(session, device.id)
        return device
    device.drained_at, device.drain_reason = device.drained_at or time.time(), clean_text(reason, 1000)
    note(session, device.id, "drained", device.drain_reason)
    return device


def change_tags(session: Session, device_id: str, *, add: Mapping[str, str], remove: Sequence[str]) -> Device:
    """Sets and removes tags of a device. Raises: NotFound, Invalid (no tag; too many)."""
    for key, value in add.items():
        if not re.fullmatch(TAG_KEY, key) or (value and not re.fullmatch(TAG_VALUE, value)):
            raise Invalid(
                "device.tag",
                f"{key!r:.80} = {value!r:.80} is no tag",
                where=f"set.{key}"[:200],
                hint="keys: lower-case letters, digits, ._/-; values: letters, digits, ._:@+/-",
            )
    device = owned_device(session, device_id)
    tags = {key: value for key, value in device.tags.items() if key not in remove} | dict(add)
    if len(tags) > MOST_TAGS:
        raise Invalid(
            "device.tags",
            f"{len(tags)} tags, a device has {MOST_TAGS} at most",
            where="set",
            hint="take some away with `remove`",
        )
    if tags != device.tags:
        device.tags = tags
        call_device(session, device.id)
        note(session, device.id, "tags", " ".join(f"{key}={value}" if value else key for key, value in tags.items()))
    return device


def working_on(session: Session, device_id: str) -> str | None:
    """Returns the run that the device has now."""
    live = select(Attempt.run_id).where(Attempt.device_id == device_id, Attempt.state.in_(LIVE_ATTEMPT_STATES))
    return session.scalar(live)

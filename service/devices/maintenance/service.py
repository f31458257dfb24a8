"""Maintenance windows as operators see them: made, listed, removed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.base.identifiers import clean_text
from service.base.problems import Invalid, NotFound, TooMany
from service.base.schemas import LAST_MOMENT, utc_text
from service.devices.blame import note
from service.devices.maintenance.schemas import WindowCreate, WindowView
from service.devices.maintenance.windows import WEEK_S, Times
from service.devices.service import owned_device
from service.store.calls import call_device
from service.store.database.models import Device, MaintenanceWindow
from service.store.database.paging import newest_first

MOST = 200
LONGEST_S = 366 * 86400.0


def create(session: Session, body: WindowCreate) -> MaintenanceWindow:
    """Creates a window. Raises: Invalid (times, both a device and a class), NotFound or Forbidden (the device),
    TooMany.
    """
    starts_at, ends_at = body.starts_at.timestamp(), body.ends_at.timestamp()
    _check_times(starts_at, ends_at, weekly=body.weekly)
    if body.device is not None and body.device_class is not None:
        raise Invalid(
            "maintenance.about",
            "a device and a class: one of them at most",
            where="device_class",
            hint="make a window for each",
        )
    device = owned_device(session, body.device) if body.device is not None else None
    if (session.scalar(select(func.count()).select_from(MaintenanceWindow)) or 0) >= MOST:
        raise TooMany(
            "maintenance.quota",
            f"{MOST} windows are the most",
            retry_after_s=3600,
            where="windows",
            hint="remove those that are over: DELETE /maintenance/ID",
        )
    window = MaintenanceWindow(
        device_id=device.id if device else None,
        device_class=body.device_class,
        starts_at=starts_at,
        ends_at=ends_at,
        every_s=WEEK_S if body.weekly else None,
        reason=clean_text(body.reason, 1000),
    )
    session.add(window)
    session.flush()
    if device is not None:
        note(session, device.id, "maintenance", _said(window))
    return window


def _check_times(starts_at: float, ends_at: float, *, weekly: bool) -> None:
    hint = "times have a zone: 2026-12-01T02:00:00Z"
    if not 0 <= starts_at < ends_at <= LAST_MOMENT:
        raise Invalid("maintenance.times", "it ends before it starts", where="ends_at", hint=hint)
    if not weekly and ends_at <= time.time():
        raise Invalid("maintenance.times", "it is over already", where="ends_at", hint=hint)
    most_s = WEEK_S if weekly else LONGEST_S
    if ends_at - starts_at >= most_s:
        raise Invalid(
            "maintenance.times",
            f"it is {(ends_at - starts_at) / 86400:.1f} days long, and less than {most_s / 86400:.0f} are allowed",
            where="ends_at",
            hint="drain the devices instead: POST /devices/ID/drain",
        )


def _said(window: MaintenanceWindow) -> str:
    every = ", every week" if window.every_s else ""
    why = f": {window.reason}" if window.reason else ""
    return f"{utc_text(window.starts_at)} to {utc_text(window.ends_at)}{every}{why}"


def listed(session: Session, *, limit: int, cursor: str | None) -> tuple[Sequence[MaintenanceWindow], str | None]:
    """Returns a page of windows, the newest first."""
    return newest_first(session, select(MaintenanceWindow), MaintenanceWindow.id, limit=limit, cursor=cursor)


def remove(session: Session, window_id: str) -> MaintenanceWindow:
    """Removes a window; runs that it held back may start. Raises: NotFound."""
    window = session.get(MaintenanceWindow, window_id)
    if window is None:
        raise NotFound("maintenance.unknown", f"no maintenance window {window_id!r:.60}", hint="GET /maintenance")
    if window.device_id is not None and session.get(Device, window.device_id) is not None:
        note(session, window.device_id, "maintenance", f"removed: {_said(window)}")
        call_device(session, window.device_id)
    session.delete(window)
    return window


def view(window: MaintenanceWindow) -> WindowView:
    """Returns the view of a window for the API."""
    coming = Times(window.starts_at, window.ends_at, window.every_s).next_after(time.time())
    return WindowView(
        id=window.id,
        device_id=window.device_id,
        device_class=window.device_class,
        starts_at=window.starts_at,
        ends_at=window.ends_at,
        weekly=window.every_s is not None,
        next_starts_at=coming[0] if coming else None,
        next_ends_at=coming[1] if coming else None,
        reason=window.reason,
        created_at=window.created_at,
    )

"""Whether a device may begin something new now, as far as its operators go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.base.durations import format_duration
from service.devices.maintenance.windows import Times, first_touched
from service.store.database.memory import recalled
from service.store.database.models import Device, MaintenanceWindow
from service.store.database.scope import EVERYONES

WINDOWS = frozenset({MaintenanceWindow.__tablename__})
DRAINED: Final = "drained"
MAINTENANCE: Final = "maintenance"


@dataclass(frozen=True, slots=True)
class Hold:
    """The reason that keeps new work from a device, and until when, if that is known."""

    code: Literal["drained", "maintenance"]
    message: str
    until: float | None = None


class Window(NamedTuple):
    """A maintenance window, as far as it decides about devices."""

    organisation_id: str
    device_id: str | None
    device_class: str | None
    starts_at: float
    ends_at: float
    every_s: float | None
    reason: str


class Calendar:
    """The maintenance windows that are not over, read at most once a second."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows

    @classmethod
    def read(cls, session: Session) -> Calendar:
        """Reads all maintenance windows: there are few."""

        def read() -> Calendar:
            is_open = or_(MaintenanceWindow.every_s.is_not(None), MaintenanceWindow.ends_at > time.time())
            query = select(*(getattr(MaintenanceWindow, name) for name in Window._fields)).where(is_open)
            return cls([Window(*row) for row in session.execute(query, execution_options=EVERYONES)])

        return recalled(session, "calendar", WINDOWS, read)

    def hold(self, device: Device, needed_s: float) -> Hold | None:
        """Returns what keeps the device from work that may take `needed_s`; None if nothing does."""
        if device.drained_at is not None:
            return Hold(DRAINED, f"is drained: {device.drain_reason or 'an operator said so'}")
        if not self._windows:
            return None
        now = time.time()
        windows = self._of(device)
        touched = first_touched(windows, now, now + needed_s)
        if touched is None:
            return None
        starts_at, ends_at, times = touched
        why = f": {windows[times].reason}" if windows[times].reason else ""
        if starts_at <= now:
            return Hold(MAINTENANCE, f"is in maintenance for {format_duration(ends_at - now)} more{why}", ends_at)
        begins_in, needed = format_duration(starts_at - now), format_duration(needed_s)
        return Hold(MAINTENANCE, f"has maintenance in {begins_in}, and a run may take {needed}{why}", ends_at)

    def next_at(self, device: Device, within_s: float) -> float | None:
        """Returns when the device's next maintenance begins, or has begun; None if not so soon."""
        now = time.time()
        touched = first_touched(self._of(device), now, now + within_s) if self._windows else None
        return touched and touched[0]

    def _of(self, device: Device) -> dict[Times, Window]:
        return {_times(window): window for window in self._windows if _is_about(window, device)}


def _times(window: Window) -> Times:
    return Times(window.starts_at, window.ends_at, window.every_s)


def _is_about(window: Window, device: Device) -> bool:
    """Returns whether the window applies to the device: an organisation's windows apply to its devices only."""
    if window.organisation_id != device.organisation_id:
        return False
    if window.device_id is not None:
        return window.device_id == device.id
    return window.device_class in (None, device.device_class)

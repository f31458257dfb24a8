"""When devices were last seen: noted in memory by each process, written by its sweeper: no request waits for that."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from sqlalchemy import Update, select, update

from service.store.database.engine import Database
from service.store.database.models import Device

ENOUGH_S = 45.0
"""A device that was seen longer ago is written down at once: it may have been taken to be away."""
SILENT_AFTER_S = 90.0
"""A device that has not asked for work or sent a heartbeat for so long is taken to be away."""
AT_ONCE = 500


@dataclass(slots=True)
class Sightings:
    """Devices that the database has not been told of."""

    _new: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, device_id: str) -> None:
        """Notes that the device is there."""
        with self._lock:
            self._new[device_id] = time.time()

    def write(self, database: Database) -> None:
        """Writes the sightings to the database; what fails now is written the next time."""
        with self._lock:
            new, self._new = self._new, {}
        remaining = sorted(new)
        try:
            while remaining:
                with database.transaction() as session:
                    at = min(new[device_id] for device_id in remaining[:AT_ONCE])
                    session.execute(_seen(remaining[:AT_ONCE], at), execution_options={"synchronize_session": False})
                remaining = remaining[AT_ONCE:]
        except BaseException:
            with self._lock:
                self._new = {device_id: new[device_id] for device_id in remaining} | self._new
            raise


def _seen(device_ids: list[str], at: float) -> Update:
    """Returns the statement that updates when the devices were last seen. It skips locked rows: whoever holds one has
    seen the device too, or decides something more important.
    """
    stale = select(Device.id).where(Device.id.in_(device_ids), Device.last_seen_at < at)
    free = stale.with_for_update(skip_locked=True).scalar_subquery()
    return update(Device).where(Device.id.in_(free)).values(last_seen_at=at)

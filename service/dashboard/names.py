"""Names of rows that pages link to by their ids."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.models import Device


def device_names(session: Session, ids: Collection[str | None]) -> dict[str, str]:
    """Returns the names of those of these devices that the session sees, by their ids."""
    distinct = {device_id for device_id in ids if device_id is not None}
    return dict(session.execute(select(Device.id, Device.name).where(Device.id.in_(distinct))).all())

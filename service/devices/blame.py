"""A device's health history, and the strikes that quarantine it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.database.models import Device, DeviceEvent
from service.identifiers import clean_text


def note(session: Session, device_id: str, kind: str, message: str = "") -> None:
    """Add a line to a device's health history."""
    session.add(DeviceEvent(device_id=device_id, kind=kind, message=clean_text(message, 1000)))


def strike(session: Session, device: Device, reason: str, *, most: int) -> None:
    """Count a lost attempt against a device; the `most`th in a row quarantines it."""
    device.strikes += 1
    note(session, device.id, "lost", reason)
    if device.strikes >= most and device.state == "active":
        device.state = "quarantined"
        device.state_reason = f"{device.strikes} attempts were lost in a row; the last: {reason}"[:1000]
        note(session, device.id, "quarantined", device.state_reason)

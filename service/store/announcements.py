"""Events that the farm announces in the transaction in which they happen, to listeners such as the webhooks' outbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.store.database.engine import LISTENERS
from service.store.database.models import CanaryChange, DeviceEvent, Job, Run

JOB_ENDED, RUN_ENDED, DEVICE_SLOWER, TWO_MACHINES = "job.ended", "run.ended", "device.slower", "device.two-machines"
EVENTS = (JOB_ENDED, RUN_ENDED, DEVICE_SLOWER, TWO_MACHINES)


@dataclass(frozen=True, slots=True)
class Announcement:
    """An event of one organisation. `subject`: the id of the row that the event is about."""

    event: str
    subject: str
    organisation_id: str


Listener = Callable[[Session, Announcement], None]
"""Writes in the session's transaction, before it commits; it must not raise."""


def announce_end(session: Session, row: Job | Run) -> None:
    """Announces that a job or run has ended. The farm's runs (canaries) are announced to nobody."""
    if isinstance(row, Run) and row.is_canary:
        return
    _announce(session, RUN_ENDED if isinstance(row, Run) else JOB_ENDED, row.id, row.organisation_id)


def announce_slower(session: Session, change: CanaryChange, organisation_id: str) -> None:
    """Announces that a device has become slower, to the organisation that owns it."""
    _announce(session, DEVICE_SLOWER, change.id, organisation_id)


def announce_two_machines(session: Session, line: DeviceEvent, organisation_id: str) -> None:
    """Announces that two machines work as one device. `line`: the entry of the device's history."""
    _announce(session, TWO_MACHINES, str(line.id), organisation_id)


def _announce(session: Session, event: str, subject: str, organisation_id: str) -> None:
    listeners: Sequence[Listener] = session.info.get(LISTENERS, ())
    for listener in listeners:
        listener(session, Announcement(event, subject, organisation_id))

"""Writes down, in the transaction in which something happens, whom to tell of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database.memory import recalled
from service.store.database.models import CanaryChange, DeviceEvent, Job, Run, Webhook, WebhookDelivery

JOB_ENDED, RUN_ENDED, DEVICE_SLOWER = "job.ended", "run.ended", "device.slower"
TWO_MACHINES, TEST = "device.two-machines", "webhook.test"
WEBHOOKS = frozenset({Webhook.__tablename__})
EVENTS = (JOB_ENDED, RUN_ENDED, DEVICE_SLOWER, TWO_MACHINES)
"""That one can ask for; `TEST` comes to all that are tested."""


def announce_end(session: Session, row: Job | Run) -> None:
    """Queue a delivery to each webhook of the row's owner that asks for it. The farm's own runs have nobody to tell."""
    if isinstance(row, Run) and row.is_canary:
        return
    _announce(session, RUN_ENDED if isinstance(row, Run) else JOB_ENDED, row.id, row.organisation_id)


def announce_slower(session: Session, change: CanaryChange, organisation_id: str) -> None:
    """Queue a delivery to each webhook of the device's owner that asks for it."""
    _announce(session, DEVICE_SLOWER, change.id, organisation_id)


def announce_two_machines(session: Session, line: DeviceEvent, organisation_id: str) -> None:
    """Queue a delivery to each webhook of the device's owner that asks for it. `line`: of the device's history."""
    _announce(session, TWO_MACHINES, str(line.id), organisation_id)


def _announce(session: Session, event: str, subject: str, organisation_id: str) -> None:
    for webhook_id, events in _webhooks(session, organisation_id):
        if event in events:
            session.add(
                WebhookDelivery(webhook_id=webhook_id, organisation_id=organisation_id, event=event, subject=subject)
            )


def _webhooks(session: Session, organisation_id: str) -> list[tuple[str, list[str]]]:
    """Ids and what they ask for; one that another process has just made is heard of a second later."""

    def read() -> list[tuple[str, list[str]]]:
        query = select(Webhook.id, Webhook.events)
        is_good = (Webhook.removed_at.is_(None), Webhook.unconfirmed_at.is_(None))
        good = query.where(Webhook.organisation_id == organisation_id, *is_good)
        return [(webhook_id, events) for webhook_id, events in session.execute(good)]

    return recalled(session, ("webhooks", organisation_id), WEBHOOKS, read)

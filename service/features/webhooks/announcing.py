"""Queues deliveries of the farm's announcements, in the transaction in which something happens."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.announcements import Announcement
from service.store.database.memory import recalled
from service.store.database.models import Webhook, WebhookDelivery

TEST = "webhook.test"
"""The event of a test: it goes to the webhook under test, whatever that asks for."""
WEBHOOKS = frozenset({Webhook.__tablename__})


def queue_deliveries(session: Session, announcement: Announcement) -> None:
    """Queues a delivery to each webhook of the organisation that asks for the event."""
    for webhook_id, events in _webhooks(session, announcement.organisation_id):
        if announcement.event in events:
            session.add(
                WebhookDelivery(
                    webhook_id=webhook_id,
                    organisation_id=announcement.organisation_id,
                    event=announcement.event,
                    subject=announcement.subject,
                )
            )


def _webhooks(session: Session, organisation_id: str) -> list[tuple[str, list[str]]]:
    """Returns ids and the events that each asks for; a webhook that another process has just created counts a second
    later.
    """

    def read() -> list[tuple[str, list[str]]]:
        query = select(Webhook.id, Webhook.events)
        in_force = (Webhook.removed_at.is_(None), Webhook.unconfirmed_at.is_(None))
        rows = query.where(Webhook.organisation_id == organisation_id, *in_force)
        return [(webhook_id, events) for webhook_id, events in session.execute(rows)]

    return recalled(session, ("webhooks", organisation_id), WEBHOOKS, read)

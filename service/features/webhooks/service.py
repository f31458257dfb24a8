"""Webhooks as their owners see them: made, listed, tested, removed. One of another owner is one that is not there."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.base.problems import Conflict, NotFound, TooMany
from service.features.webhooks.addresses import check_url, networks
from service.features.webhooks.announcing import TEST
from service.features.webhooks.sending import new_webhook_secret
from service.features.webhooks.settings import WebhookSettings
from service.people.keys.service import Principal
from service.store.database.models import Webhook, WebhookDelivery
from service.store.database.paging import newest_first

TESTS_PER_MINUTE = 6


def create(
    session: Session, settings: WebhookSettings, principal: Principal, *, url: str, events: Sequence[str]
) -> Webhook:
    """Creates a webhook of the caller's organisation. Raises: Invalid (the URL), TooMany."""
    check_url(url, networks(settings.webhook_networks))
    query = select(func.count()).select_from(Webhook).where(Webhook.removed_at.is_(None))
    most = settings.webhooks_per_organisation
    if (session.scalar(query) or 0) >= most:
        raise TooMany(
            "webhook.quota",
            f"{most} webhooks are the most for one organisation",
            retry_after_s=60,
            where="webhooks_per_organisation",
            hint="remove one: DELETE /webhooks/ID",
        )
    webhook = Webhook(api_key_id=principal.key_id, url=url, events=sorted(set(events)), secret=new_webhook_secret())
    session.add(webhook)
    session.flush()
    return webhook


def listed(session: Session, *, limit: int, cursor: str | None) -> tuple[Sequence[Webhook], str | None]:
    """Returns a page of the organisation's webhooks, the newest first; those that are removed too."""
    return newest_first(session, select(Webhook), Webhook.id, limit=limit, cursor=cursor)


def find(session: Session, webhook_id: str) -> Webhook:
    """Returns the organisation's webhook. Raises: NotFound."""
    webhook = session.get(Webhook, webhook_id)
    if webhook is None:
        raise NotFound("webhook.unknown", f"no webhook {webhook_id!r:.60}", hint="GET /webhooks lists yours")
    return webhook


def remove(session: Session, webhook_id: str) -> Webhook:
    """Removes a webhook: nothing more is sent to it. Raises: NotFound."""
    webhook = find(session, webhook_id)
    if webhook.removed_at is None:
        webhook.removed_at, webhook.removed_because = time.time(), "its owner removed it"
    return webhook


def deliveries(
    session: Session, webhook_id: str, *, limit: int, cursor: str | None
) -> tuple[Sequence[WebhookDelivery], str | None]:
    """Returns a page of deliveries, the newest first. Raises: NotFound."""
    webhook = find(session, webhook_id)
    query = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook.id)
    return newest_first(session, query, WebhookDelivery.id, limit=limit, cursor=cursor)


def queue_test(session: Session, webhook_id: str) -> str:
    """Queues a test delivery and returns its id. Raises: NotFound; Conflict (removed); TooMany: it sends at once."""
    webhook = find(session, webhook_id)
    if webhook.removed_at is not None:
        raise Conflict(
            "webhook.removed",
            f"this webhook was removed: {webhook.removed_because}",
            hint="make another: POST /webhooks",
        )
    if webhook.unconfirmed_at is not None:
        raise Conflict(
            "webhook.unconfirmed",
            "this webhook came back by a restore, and nobody has said that it is still wanted",
            hint="ask whoever runs the farm to confirm it, or make another",
        )
    newest = (
        select(func.count())
        .select_from(WebhookDelivery)
        .where(WebhookDelivery.event == TEST)
        .where(WebhookDelivery.created_at > time.time() - 60)
    )
    if (session.scalar(newest) or 0) >= TESTS_PER_MINUTE:
        raise TooMany(
            "webhook.tests",
            f"{TESTS_PER_MINUTE} tests a minute are the most",
            retry_after_s=60,
            where="tests",
            hint="wait a minute",
        )
    delivery = WebhookDelivery(webhook_id=webhook.id, event=TEST, subject=webhook.id)
    session.add(delivery)
    session.flush()
    return delivery.id

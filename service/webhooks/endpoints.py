"""`/webhooks`: who is told when jobs and runs end."""

from __future__ import annotations

from fastapi import APIRouter

from service.access import FarmDep, PrincipalDep
from service.database.models import WebhookDelivery
from service.pagination import Cursor, Limit, Page
from service.problems import Conflict
from service.webhooks import courier, service
from service.webhooks.schemas import DeliveryView, WebhookCreate, WebhookCreated, WebhookView

router = APIRouter(prefix="/webhooks", tags=["webhooks"])


@router.post("", status_code=201)
def create_webhook(body: WebhookCreate, farm: FarmDep, principal: PrincipalDep) -> WebhookCreated:
    """Be told at a URL when the organisation's jobs and runs end. The secret is in this answer and nowhere else."""
    with farm.database.transaction() as session:
        made = service.create(session, farm.settings, principal, url=body.url, events=body.events)
        return WebhookCreated.model_validate(made)


@router.get("")
def list_webhooks(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[WebhookView]:
    """The organisation's webhooks, the newest first; removed ones too, for their reason."""
    with farm.database.read() as session:
        rows, following = service.listed(session, limit=limit, cursor=cursor)
        return Page(items=[WebhookView.model_validate(row) for row in rows], next=following)


@router.delete("/{webhook_id}")
def remove_webhook(webhook_id: str, farm: FarmDep, _: PrincipalDep) -> WebhookView:
    """Tell a webhook nothing more, not even what waits."""
    with farm.database.transaction() as session:
        return WebhookView.model_validate(service.remove(session, webhook_id))


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str, farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeliveryView]:
    """What a webhook was told, or is to be, the newest first; kept for a month."""
    with farm.database.read() as session:
        rows, following = service.deliveries(session, webhook_id, limit=limit, cursor=cursor)
        return Page(items=[DeliveryView.model_validate(row) for row in rows], next=following)


@router.post("/{webhook_id}/test")
def send_test(webhook_id: str, farm: FarmDep, _: PrincipalDep) -> DeliveryView:
    """Send a `webhook.test` now, once, and say what came of it."""
    with farm.database.transaction() as session:
        delivery_id = service.queue_test(session, webhook_id)
    sent: WebhookDelivery | None = courier.deliver(farm, delivery_id)
    if sent is None:
        raise Conflict("webhook.under-way", "another process of the farm sends it; its deliveries say what came of it",
                       hint=f"GET /webhooks/{webhook_id}/deliveries")  # fmt: skip
    return DeliveryView.model_validate(sent)

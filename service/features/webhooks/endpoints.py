"""`/webhooks`: who is told when jobs and runs end."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from service.base.pagination import Cursor, Limit, Page
from service.base.problems import Conflict
from service.features.webhooks import courier, service
from service.features.webhooks.schemas import DeliveryView, WebhookCreate, WebhookCreated, WebhookView
from service.features.webhooks.sending import TIMEOUT_S
from service.features.webhooks.settings import WebhookSettings
from service.people.access import FarmDep, PrincipalDep
from service.people.idempotency import EVERY_TIME, RepeatsDep
from service.store.database.models import WebhookDelivery
from service.store.farm import Farm

router = APIRouter(prefix="/webhooks", tags=["webhooks"])
TEST_WITHIN_S = TIMEOUT_S + 5
"""A test is waited for that long: sending takes `TIMEOUT_S` at most, and who does it looks now and then."""


@router.post("", status_code=201)
def create_webhook(
    body: WebhookCreate, farm: FarmDep, principal: PrincipalDep, repeats: RepeatsDep = EVERY_TIME
) -> WebhookCreated:
    """Creates a webhook: the farm sends to its URL when the organisation's jobs and runs end. The secret is in this
    answer and nowhere else.
    """

    def create() -> WebhookCreated:
        webhook = service.create(
            session, farm.settings.section(WebhookSettings), principal, url=body.url, events=body.events
        )
        return WebhookCreated.model_validate(webhook)

    with farm.database.transaction() as session:
        return repeats.once(session, body, WebhookCreated, create, shows_secret=True)


@router.get("")
def list_webhooks(farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None) -> Page[WebhookView]:
    """Lists the organisation's webhooks, the newest first; removed ones too, with their reason."""
    with farm.database.read() as session:
        rows, following = service.listed(session, limit=limit, cursor=cursor)
        return Page(items=[WebhookView.model_validate(row) for row in rows], next=following)


@router.delete("/{webhook_id}")
def remove_webhook(webhook_id: str, farm: FarmDep, _: PrincipalDep) -> WebhookView:
    """Removes a webhook. Nothing more is sent to it, not even deliveries that wait."""
    with farm.database.transaction() as session:
        return WebhookView.model_validate(service.remove(session, webhook_id))


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str, farm: FarmDep, _: PrincipalDep, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeliveryView]:
    """Lists the past and coming deliveries of a webhook, the newest first; kept for a month."""
    with farm.database.read() as session:
        rows, following = service.deliveries(session, webhook_id, limit=limit, cursor=cursor)
        return Page(items=[DeliveryView.model_validate(row) for row in rows], next=following)


@router.post("/{webhook_id}/test")
async def send_test(webhook_id: str, farm: FarmDep, _: PrincipalDep) -> DeliveryView:
    """Sends a `webhook.test` now, once, and returns the outcome."""
    delivery_id = await run_in_threadpool(_begin_test, farm, webhook_id)
    give_up_at = time.monotonic() + TEST_WITHIN_S
    while (delivery := await run_in_threadpool(_outcome_of, farm, delivery_id)) is None:
        if time.monotonic() > give_up_at:
            raise Conflict(
                "webhook.under-way",
                f"the farm's courier has not sent it within {TEST_WITHIN_S:.0f} s",
                hint=f"GET /webhooks/{webhook_id}/deliveries says what comes of it; if that stays "
                "`waiting`, the operator looks whether the courier runs",
            )
        await asyncio.sleep(farm.settings.poll_s)
    return delivery


def _begin_test(farm: Farm, webhook_id: str) -> str:
    """Queues the test and returns the delivery's id; it is sent now, unless the courier is to send it."""
    with farm.database.transaction() as session:
        delivery_id = service.queue_test(session, webhook_id)
    if farm.settings.section(WebhookSettings).send_webhooks:
        courier.deliver(farm.database, farm.settings, delivery_id)
    return delivery_id


def _outcome_of(farm: Farm, delivery_id: str) -> DeliveryView | None:
    """Returns the outcome of a delivery; None while there is none."""
    with farm.database.read() as session:
        delivery = session.get_one(WebhookDelivery, delivery_id)
        return None if delivery.state == "waiting" else DeliveryView.model_validate(delivery)

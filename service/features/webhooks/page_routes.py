"""The addresses of the webhooks' page: `/dashboard/admin/webhooks`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from service.dashboard import addresses, forms, visitors
from service.dashboard.admin_forms import Find, part_page, submit_form
from service.dashboard.forms import TypedDep
from service.dashboard.pages.admin.listing import ListQuery
from service.dashboard.pages.admin.part import CreationNotice, path
from service.dashboard.query_values import OfRow
from service.features.webhooks import endpoints, page
from service.people.access import FarmDep, PrincipalDep

router = APIRouter(prefix=f"{addresses.ROOT}/admin", dependencies=[Depends(visitors.meet)], include_in_schema=False)
BeforeHook = Annotated[str, Query(max_length=200), OfRow("before", "hook")]


@router.get("/webhooks")
def show_webhooks(farm: FarmDep, find: Find = "", before: BeforeHook = "") -> Response:
    """Shows the webhooks."""
    return part_page(farm, page.part, ListQuery(find, before))


@router.post("/webhooks")
def add_webhook(typed: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Adds a webhook. The answer shows the secret with which deliveries are signed."""

    def add() -> CreationNotice:
        return page.creation_notice(endpoints.create_webhook(page.body(typed), farm, principal))

    return submit_form(farm, page.part, typed, add, "webhooks")


@router.post("/webhooks/{webhook_id}/remove")
def remove_webhook(webhook_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Removes a webhook."""
    removed = endpoints.remove_webhook(webhook_id, farm, principal)
    return forms.redirect_with_notice(path("webhooks"), f"{removed.url} is told nothing more")


@router.post("/webhooks/{webhook_id}/test")
async def send_test(webhook_id: str, _: TypedDep, farm: FarmDep, principal: PrincipalDep) -> Response:
    """Sends a test to a webhook, and shows the outcome."""
    delivery = await endpoints.send_test(webhook_id, farm, principal)
    is_bad = delivery.state != "delivered"
    return forms.redirect_with_notice(path("webhooks"), page.outcome(delivery), "bad" if is_bad else "good")

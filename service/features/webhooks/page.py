"""Webhooks: who is told when jobs and runs end, how that goes, tried out and removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.dashboard import format as fmt
from service.dashboard import forms, visitors
from service.dashboard.actions import Action
from service.dashboard.extensions import Concern
from service.dashboard.forms import Field, Form, Typed
from service.dashboard.pages.admin.listing import FIRST, ListQuery, page_of
from service.dashboard.pages.admin.part import AdminPart, CreationNotice, path
from service.dashboard.tables import Column, Row, Value, table
from service.features.webhooks.schemas import DeliveryView, WebhookCreate, WebhookCreated
from service.store.database.models import Webhook

NAME = "webhooks"
MOST_NAMED = 20
"""Failing webhooks that the first page looks at."""
EVENTS = (
    ("job.ended", "a compile ends"),
    ("run.ended", "a run ends"),
    ("device.slower", "a device has become slower"),
    ("device.two-machines", "a device's identity is used on two machines"),
)
COLUMNS = (
    Column("url", "Address", primary=True, wrap=True),
    Column("standing", "Standing", "state"),
    Column("failures", "Failed in a row", "number", wide_only=True),
    Column("events", "Told of", wrap=True, wide_only=True),
    Column("created_at", "Made", "time", "UTC", wide_only=True),
    Column("id", "Its id", "code", wide_only=True),
)
EMPTY = "Nobody is told yet. Name an address of yours below, and the farm posts to it when something ends."


def part(
    session: Session, query: ListQuery = FIRST, form: Form | None = None, created: CreationNotice | None = None
) -> AdminPart:
    """Returns the part with the organisation's webhooks, and the form for another."""
    listing = page_of(session, Webhook, Webhook.id, query, names=(Webhook.url,))
    webhooks = table(NAME, "Webhooks, newest first", COLUMNS, [_row(row) for row in listing.rows])
    lead = "The farm posts to these addresses when a compile or run ends, a device becomes slower, or its identity \
is used on two machines. Each message is signed; one that fails is sent again, later and later."
    offered = (form or blank(),) if visitors.current().may("submit") else ()
    return AdminPart(
        NAME,
        "Webhooks",
        lead,
        webhooks,
        EMPTY,
        offered,
        created,
        listing.message("webhook"),
        found_by="address",
        **asdict(listing.links(NAME)),
    )


def blank() -> Form:
    """Returns the form for a new one."""
    fields = (
        Field("url", "Address", "url", required=True, max_length=1000, hint="https://…; redirects are not followed"),
        Field("events", "When", "checks", options=EVENTS, ticked=tuple(name for name, _ in EVENTS)),
    )
    return Form("new-webhook", "Tell an address", path(NAME), "Add it", fields)


def body(typed: Typed) -> WebhookCreate:
    """Reads the request out of the form. Raises: Invalid."""
    return forms.body_of(WebhookCreate, {"url": typed.text("url"), "events": list(typed.all("events"))})


def creation_notice(webhook: WebhookCreated) -> CreationNotice:
    """Returns the notice with the secret with which its messages are signed."""
    note = "Whoever receives the messages checks their signature with it (docs/api.md). It is shown here only. Then \
send a test from the list below."
    return CreationNotice("The address is told from now on", (("The secret of its signatures", webhook.secret),), note)


def outcome(delivery: DeliveryView) -> str:
    """Describes the outcome of a test."""
    if delivery.state == "delivered":
        return f"The test arrived: the address answered {delivery.status}"
    answered = f"answered {delivery.status}" if delivery.status else "did not answer"
    return f"The test failed: the address {answered}{f' ({delivery.error})' if delivery.error else ''}"


def standing_of(webhook: Webhook) -> str:
    """Returns the webhook's state: `in force`, `failing`, `unconfirmed` or `removed`."""
    if webhook.removed_at is not None:
        return "removed"
    if webhook.unconfirmed_at is not None:
        return "unconfirmed"
    return "failing" if webhook.failures else "in force"


def _row(webhook: Webhook) -> Row:
    now = standing_of(webhook)
    values: dict[str, Value] = {
        "url": webhook.url,
        "standing": now,
        "failures": webhook.failures,
        "events": ", ".join(webhook.events),
        "created_at": fmt.iso(webhook.created_at),
        "id": webhook.id,
    }
    is_there = now != "removed" and visitors.current().may("submit")
    sure = "It is told nothing more, not even what waits to be sent."
    actions = (
        Action(path(NAME, webhook.id, "test"), "Send a test", of=webhook.url),
        Action(path(NAME, webhook.id, "remove"), "Remove", sure=sure, of=webhook.url, is_grave=True),
    )
    notes = {"standing": webhook.removed_because} if webhook.removed_because else {}
    return Row(values, {}, notes, anchor=webhook.id, dimmed=now == "removed", actions=actions if is_there else ())


def failing_webhooks(session: Session) -> Sequence[Concern]:
    """Finds webhooks whose last delivery failed."""
    if not visitors.current().may("submit"):
        return ()
    failing = select(Webhook).where(Webhook.removed_at.is_(None), Webhook.failures > 0).order_by(Webhook.id.desc())
    webhooks = session.scalars(failing.limit(MOST_NAMED)).all()
    if not webhooks:
        return ()
    advice = f"{fmt.some([webhook.url for webhook in webhooks], 2)}: look whether it answers, then send a test"
    return [Concern(len(webhooks), f"{fmt.plural(len(webhooks), 'webhook')} cannot be told", advice, path("webhooks"))]

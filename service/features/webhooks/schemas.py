"""Bodies of the webhook endpoints."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from service.base.schemas import RequestBody, Timestamp, View

EventName = Literal["job.ended", "run.ended", "device.slower", "device.two-machines"]
ALL_EVENTS = get_args(EventName)


class WebhookCreate(RequestBody):
    """A new webhook: the address to send to, and the events to send."""

    url: str = Field(min_length=1, max_length=1000, description="https:// (or http://); redirects are not followed")
    events: list[EventName] = Field(default=[*ALL_EVENTS], min_length=1, max_length=len(ALL_EVENTS))


class WebhookView(View):
    """A webhook without its secret."""

    id: str
    url: str
    events: list[str]
    created_at: Timestamp
    removed_at: Timestamp | None
    removed_because: str
    failures: int
    """Deliveries in a row that failed."""


class WebhookCreated(WebhookView):
    """A webhook with the secret that its deliveries are signed with, shown this once."""

    secret: str


class DeliveryView(View):
    """A delivery that was sent, or is to be."""

    id: str
    event: str
    subject: str
    """Id of the job, run, change of a device's times, or line of a device's history."""
    state: Literal["waiting", "delivered", "failed"]
    attempts: int
    status: int | None
    """Status that the address answered last."""
    error: str
    next_at: Timestamp | None
    """When it is sent again."""
    created_at: Timestamp
    finished_at: Timestamp | None

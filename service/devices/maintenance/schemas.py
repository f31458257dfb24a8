"""Bodies of the maintenance endpoints."""

from __future__ import annotations

from pydantic import AwareDatetime, Field

from service.base.schemas import RequestBody, Timestamp, View


class WindowCreate(RequestBody):
    """A time without new work: for a device, a class of devices, or (neither given) all."""

    starts_at: AwareDatetime = Field(description="RFC 3339, with its zone; of a weekly window: its first time")
    ends_at: AwareDatetime
    weekly: bool = Field(default=False, description="Every 7 x 24 hours from then on")
    device: str | None = Field(default=None, max_length=100, description="Id of one device")
    device_class: str | None = Field(default=None, max_length=100)
    reason: str = Field(default="", max_length=1000)


class WindowView(View):
    """A maintenance window."""

    id: str
    device_id: str | None
    device_class: str | None
    starts_at: Timestamp
    ends_at: Timestamp
    weekly: bool
    next_starts_at: Timestamp | None
    """Start of the time that goes on now, or of the next one; null: it is over."""
    next_ends_at: Timestamp | None
    reason: str
    created_at: Timestamp

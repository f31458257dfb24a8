"""Bodies of the user endpoints."""

from __future__ import annotations

from pydantic import Field

from service.schemas import RequestBody, Timestamp, View


class UserCreate(RequestBody):
    """A new person of the caller's organisation."""

    name: str = Field(min_length=1, max_length=200)


class UserView(View):
    """A person."""

    id: str
    name: str
    organisation_id: str
    created_at: Timestamp
    removed_at: Timestamp | None

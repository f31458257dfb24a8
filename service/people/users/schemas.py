"""Bodies of the user endpoints."""

from __future__ import annotations

from service.base.schemas import NameText, RequestBody, Timestamp, View


class UserCreate(RequestBody):
    """A new person of the caller's organisation."""

    name: NameText


class UserView(View):
    """A person."""

    id: str
    name: str
    organisation_id: str
    created_at: Timestamp
    removed_at: Timestamp | None

"""Bodies of the key and link endpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.schemas import RequestBody, Timestamp, View


class KeyCreate(RequestBody):
    """A new key."""

    name: str = Field(min_length=1, max_length=200)
    role: Literal["user", "operator"] = "user"


class KeyView(View):
    """A key without its secret."""

    id: str
    name: str
    role: Literal["user", "operator"]
    created_at: Timestamp
    revoked_at: Timestamp | None


class KeyCreated(KeyView):
    """A key with its secret, shown this once."""

    secret: str


class LinkCreated(View):
    """A one-time link into the dashboard."""

    url: str
    token: str
    expires_at: Timestamp

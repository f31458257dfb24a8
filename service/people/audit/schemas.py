"""Bodies of the audit endpoint."""

from __future__ import annotations

from typing import Literal

from service.base.schemas import Timestamp, View


class AuditView(View):
    """A request that changed something, or was to."""

    id: str
    at: Timestamp
    key_id: str | None
    """Null: the farm's administrators, about the organisation."""
    key_name: str | None
    user_id: str | None
    user_name: str | None
    address: str
    """Address from which the request came."""
    action: str
    """Method and path."""
    subject: str
    """Ids and digests that it named, or what it made."""
    outcome: Literal["done", "refused", "failed"]
    status: int
    code: str
    detail: str
